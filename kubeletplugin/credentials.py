"""Where the API server is and how we prove who we are: tokens and certificates, re-read when their files change.

Wherever a secret is asked for, a ``str`` is the secret itself (a token, PEM text) and a ``Path`` is a file that holds
it. Files are looked at before each request (a ``stat``), because the kubelet rotates a pod's token and CA in place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ssl  # imported with the first request: see kubeletplugin.client

Secret: TypeAlias = str | Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class CredentialsError(Exception):
    """The credentials cannot be used as they are; the text says which file or setting and what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """One API server and one identity. ``repr`` shows no secret."""

    server: str
    token: Secret | None = field(default=None, repr=False)
    ca: Secret | None = field(default=None, repr=False)
    client_cert: tuple[Secret, Secret] | None = field(default=None, repr=False)
    """Certificate and key."""
    insecure_skip_verify: bool = False
    tls_server_name: str | None = None

    @classmethod
    def from_pod(cls, root: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> Access:
        """The service account that the kubelet mounts into every pod.

        Raises:
            CredentialsError: not in a pod, or the token is not mounted.
        """
        host = environ.get("KUBERNETES_SERVICE_HOST")
        port = environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise CredentialsError(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod; use a kubeconfig"
            )
        token, ca = root / "token", root / "ca.crt"
        for file in (token, ca):
            if not file.is_file():
                raise CredentialsError(f"{file} is missing: is automountServiceAccountToken false for this pod?")
        address = f"[{host}]" if ":" in host else host
        return cls(server=f"https://{address}:{port}", token=token, ca=ca)


def _signature(secret: Secret | None) -> tuple[int, ...]:
    """Changes when the file behind ``secret`` was replaced or written."""
    if not isinstance(secret, Path):
        return ()
    try:
        stat = secret.stat()
    except OSError as error:
        raise CredentialsError(f"{secret} cannot be read: {error.strerror}") from error
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _read(secret: Secret) -> str:
    if isinstance(secret, str):
        return secret
    try:
        return secret.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{secret} cannot be read: {error}") from error


class TokenSource:
    """The bearer token as it is now. A newline at the end of the file is not part of it."""

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._token: str | None = None

    @property
    def may_change(self) -> bool:
        """Whether reading again after a 401 can help."""
        return isinstance(self._secret, Path)

    def get(self, *, force: bool = False) -> str | None:
        """The token, or None where there is none.

        Raises:
            CredentialsError: the file is unreadable or empty, or holds something that is no token.
        """
        if self._secret is None:
            return None
        with self._lock:
            signature = _signature(self._secret)
            if force or signature != self._seen:
                self._token = self._check(_read(self._secret).strip())
                self._seen = signature
            return self._token

    def _check(self, token: str) -> str:
        where = str(self._secret) if isinstance(self._secret, Path) else "the given token"
        if not token:
            raise CredentialsError(f"{where} is empty")
        if not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
            raise CredentialsError(f"{where} holds characters that cannot stand in an Authorization header")
        return token


@contextlib.contextmanager
def _in_memory_file(text: str) -> Iterator[str]:
    """A path to ``text`` that never touches a disk: ssl loads certificates from files only."""
    descriptor = os.memfd_create("gpudra-client-cert", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as stream:
            stream.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class TlsSource:
    """The TLS context as it is now, made anew when a certificate file changes."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, ...], ...] | None = None
        self._context: ssl.SSLContext | None = None

    def get(self) -> ssl.SSLContext:
        """The context; the same object as long as no file changed.

        Raises:
            CredentialsError: a certificate or key is unreadable or is not PEM.
        """
        cert, key = self._access.client_cert or (None, None)
        with self._lock:
            signature = (_signature(self._access.ca), _signature(cert), _signature(key))
            if self._context is None or signature != self._seen:
                self._context = self._make()
                self._seen = signature
            return self._context

    def _make(self) -> ssl.SSLContext:
        import ssl

        try:
            # The cluster's own CA instead of the public ones, not beside them: those also take 30 ms and 1 MiB to load.
            authority = None if self._access.ca is None else _read(self._access.ca)
            if authority is not None and not authority.strip():
                raise ValueError("the CA is empty")  # noqa: TRY301 - told below with the others
            context = ssl.create_default_context(cadata=authority)
            # Python 3.13 turned this on by default; many clusters' CAs lack the authority key identifier it demands.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self._access.insecure_skip_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self._access.client_cert is not None:
                cert, key = self._access.client_cert
                with _in_memory_file(_read(cert).rstrip() + "\n" + _read(key)) as both:
                    context.load_cert_chain(both)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsError(f"certificates for {self._access.server} cannot be used: {error}") from error
        return context
