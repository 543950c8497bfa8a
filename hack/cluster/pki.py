"""The cluster's certificate authority, the API server's certificate and the key that signs service account tokens.

Made with openssl(1): an own authority, because controllers publish it as a trust bundle and want the CA bit set.
"""

from __future__ import annotations

from pathlib import Path

from .processes import run_checked

SERVICE_ADDRESS = "10.96.0.1"
_DAYS = "3650"
_CA_EXTENSIONS = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature")


def create(folder: Path, address: str) -> None:
    """Write ``ca.{crt,key}``, ``apiserver.{crt,key}`` and ``sa.key`` to ``folder``.

    Raises:
        ClusterError: openssl failed.
    """
    ca_key, ca = folder / "ca.key", folder / "ca.crt"
    extensions = [part for extension in _CA_EXTENSIONS for part in ("-addext", extension)]
    run_checked(["openssl", "req", "-x509", *_new_key(ca_key), "-out", str(ca), "-days", _DAYS,
                 "-subj", "/CN=gpudra-cluster", *extensions])  # fmt: skip
    request, certificate = folder / "apiserver.csr", folder / "apiserver.crt"
    run_checked(
        ["openssl", "req", *_new_key(folder / "apiserver.key"), "-out", str(request), "-subj", "/CN=kube-apiserver"]
    )
    names = ["DNS:localhost", "DNS:kubernetes.default.svc", "DNS:kubernetes.default", "DNS:kubernetes"]
    addresses = [f"IP:{a}" for a in ("127.0.0.1", SERVICE_ADDRESS, address)]
    profile = folder / "apiserver.cnf"
    profile.write_text(
        f"subjectAltName={','.join([*names, *addresses])}\nextendedKeyUsage=serverAuth\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    run_checked(["openssl", "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key), "-days", _DAYS,
                 "-CAcreateserial", "-extfile", str(profile), "-out", str(certificate)])  # fmt: skip
    run_checked(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"])


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]
