"""Reads as much of a kubeconfig file as a driver needs: server, CA, token, client certificate.

Format: k8s.io/client-go/tools/clientcmd/api/v1 (Config). Relative paths are relative to the file.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

import msgspec

from kubeletplugin.credentials import Access, CredentialsError, Secret


def load_kubeconfig(path: str | Path, context: str | None = None) -> Access:
    """The access that ``context`` (default: the current one) of the file at ``path`` describes.

    Raises:
        CredentialsError: the file cannot be read, names something it does not hold, or needs a credential plugin.
    """
    file = Path(path).expanduser()
    document = _parse(file)
    name = context or document.get("current-context")
    if not name:
        raise CredentialsError(f"{file}: no current-context; name one (kubectl config use-context NAME)")
    chosen = _named(file, document, "contexts", "context", str(name))
    cluster = _named(file, document, "clusters", "cluster", str(chosen.get("cluster", "")))
    user = _named(file, document, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    server = cluster.get("server")
    if not isinstance(server, str) or not server:
        raise CredentialsError(f"{file}: clusters[{chosen.get('cluster')!r}].cluster.server is missing")
    _refuse_plugins(file, str(chosen.get("user")), user)
    return Access(
        server=server,
        token=_token(file, user),
        ca=_data_or_file(file, cluster, "certificate-authority"),
        client_cert=_client_cert(file, user),
        insecure_skip_verify=cluster.get("insecure-skip-tls-verify") is True,
        tls_server_name=cluster.get("tls-server-name") or None,
    )


def _parse(file: Path) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise CredentialsError(f"kubeconfig {file} cannot be read: {error.strerror}") from error
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = _parse_yaml(file, raw)
    if not isinstance(document, dict):
        raise CredentialsError(f"{file} is not a kubeconfig: the document is not a mapping")
    return document


def _parse_yaml(file: Path, raw: bytes) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise CredentialsError(
            f"{file} is YAML and PyYAML is not installed: install it, "
            "or write the file as JSON (kubectl config view --raw --flatten -o json)"
        ) from error
    try:
        return yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CredentialsError(f"{file} is neither JSON nor YAML: {error}") from error


def _named(file: Path, document: dict[str, Any], section: str, key: str, name: str) -> dict[str, Any]:
    entries = document.get(section) or []
    if isinstance(entries, list):
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key) or {}, dict):
                return dict(entry.get(key) or {})
    raise CredentialsError(f"{file}: {section} holds no entry named {name!r}")


def _refuse_plugins(file: Path, name: str, user: dict[str, Any]) -> None:
    for key in ("exec", "auth-provider"):
        if user.get(key):
            raise CredentialsError(
                f"{file}: user {name!r} gets its credentials from a plugin ({key}), which this client does not run; "
                "use a token instead (kubectl create token SERVICEACCOUNT), as token or tokenFile of the user"
            )


def _token(file: Path, user: dict[str, Any]) -> Secret | None:
    if user.get("tokenFile"):
        return _path(file, user["tokenFile"])
    return str(user["token"]) if user.get("token") else None


def _client_cert(file: Path, user: dict[str, Any]) -> tuple[Secret, Secret] | None:
    cert = _data_or_file(file, user, "client-certificate")
    key = _data_or_file(file, user, "client-key")
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise CredentialsError(f"{file}: client-certificate and client-key go together; one of them is missing")
    return cert, key


def _data_or_file(file: Path, section: dict[str, Any], key: str) -> Secret | None:
    """``<key>-data`` (base64 of PEM) wins over ``<key>`` (a file), as in kubectl."""
    data = section.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise CredentialsError(f"{file}: {key}-data is not base64 of PEM text: {error}") from error
    return _path(file, section[key]) if section.get(key) else None


def _path(file: Path, value: Any) -> Path:
    return file.parent / Path(str(value)).expanduser()
