"""Tokens, certificates, pods and kubeconfigs: where access comes from and how it changes."""

from __future__ import annotations

import base64
import http.server
import json
import shutil
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.client import ApiUnreachableError, KubeClient
from kubeletplugin.credentials import Access, CredentialsError
from kubeletplugin.kubeconfig import load_kubeconfig

TLS = Path(__file__).parents[2] / "data" / "tls"


class TlsServer:
    """An HTTPS server that answers {} and remembers whether clients showed a certificate."""

    def __init__(self, *, wants_client: bool) -> None:
        self.subjects: list[Any] = []
        subjects = self.subjects

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                peer = self.connection.getpeercert()  # type: ignore[attr-defined] # it is an SSLSocket
                subjects.append(peer and peer["subject"])
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Failed handshakes are what some tests are about."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.crt", TLS / "server.key")
        if wants_client:
            context.load_verify_locations(TLS / "ca.crt")
            context.verify_mode = ssl.CERT_REQUIRED
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def tls_server() -> Iterator[TlsServer]:
    server = TlsServer(wants_client=False)
    yield server
    server.close()


@pytest.fixture
def strict_server() -> Iterator[TlsServer]:
    server = TlsServer(wants_client=True)
    yield server
    server.close()


def test_the_clusters_ca_is_trusted(tls_server: TlsServer) -> None:
    with KubeClient(tls_server.url, ca=TLS / "ca.crt") as client:
        assert client.get("/x") == {}


def test_a_ca_can_be_given_as_text(tls_server: TlsServer) -> None:
    with KubeClient(tls_server.url, ca=(TLS / "ca.crt").read_text()) as client:
        assert client.get("/x") == {}


@pytest.mark.parametrize("ca", [TLS / "other-ca.crt", None], ids=["another CA", "the public CAs"])
def test_nobody_else_is_trusted(tls_server: TlsServer, ca: Path | None) -> None:
    with (
        KubeClient(tls_server.url, ca=ca) as client,
        pytest.raises(ApiUnreachableError, match="certificate verify failed"),
    ):
        client.get("/x")


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_ca_trusts_nobody_instead_of_everybody_public(
    tls_server: TlsServer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.crt"))
    with KubeClient(tls_server.url, ca=text) as client, pytest.raises(CredentialsError, match="the CA is empty"):
        client.get("/x")


def test_beside_the_clusters_ca_no_public_one_is_loaded(tls_server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.crt"))
    with (
        KubeClient(tls_server.url, ca=TLS / "other-ca.crt") as client,
        pytest.raises(ApiUnreachableError, match="certificate verify failed"),
    ):
        client.get("/x")


def test_a_ca_file_is_read_again_when_it_changes(tls_server: TlsServer, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    shutil.copy(TLS / "other-ca.crt", ca)
    with KubeClient(tls_server.url, ca=ca) as client:
        with pytest.raises(ApiUnreachableError):
            client.get("/x")
        shutil.copy(TLS / "ca.crt", tmp_path / "new")
        (tmp_path / "new").rename(ca)

        assert client.get("/x") == {}


def test_verification_is_left_out_only_when_asked(tls_server: TlsServer, caplog: pytest.LogCaptureFixture) -> None:
    with KubeClient(tls_server.url, insecure_skip_verify=True) as client:
        assert client.get("/x") == {}

    assert "are not verified, as asked for" in caplog.text


def test_the_name_in_the_certificate_can_be_another_than_the_address(tls_server: TlsServer) -> None:
    with KubeClient(tls_server.url, ca=TLS / "ca.crt", tls_server_name="kubernetes.default") as client:
        assert client.get("/x") == {}
    with (
        KubeClient(tls_server.url, ca=TLS / "ca.crt", tls_server_name="elsewhere.example.com") as client,
        pytest.raises(ApiUnreachableError, match="elsewhere"),
    ):
        client.get("/x")


@pytest.mark.parametrize("as_text", [False, True], ids=["files", "text"])
def test_a_client_certificate_is_shown(strict_server: TlsServer, as_text: bool) -> None:
    cert, key = TLS / "client.crt", TLS / "client.key"
    pair = (cert.read_text(), key.read_text()) if as_text else (cert, key)
    with KubeClient(strict_server.url, ca=TLS / "ca.crt", client_cert=pair) as client:
        client.get("/x")

    assert strict_server.subjects == [((("commonName", "test client"),),)]


def test_a_key_that_does_not_fit_is_named(strict_server: TlsServer) -> None:
    pair = (TLS / "client.crt", TLS / "server.key")
    with (
        KubeClient(strict_server.url, ca=TLS / "ca.crt", client_cert=pair) as client,
        pytest.raises(CredentialsError, match=r"certificates for https://127.0.0.1.* cannot be used"),
    ):
        client.get("/x")


def test_a_missing_file_is_named(tls_server: TlsServer, tmp_path: Path) -> None:
    with (
        KubeClient(tls_server.url, ca=tmp_path / "nope") as client,
        pytest.raises(CredentialsError, match="nope cannot be read: No such file"),
    ):
        client.get("/x")


def test_secrets_are_not_shown() -> None:
    access = Access("https://x", token="sesame", ca="pem", client_cert=("cert", "key"))

    assert repr(access) == "Access(server='https://x', insecure_skip_verify=False, tls_server_name=None)"


# In a pod


def test_a_pod_finds_its_server_and_its_account(tmp_path: Path) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")

    access = Access.from_pod(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"})

    assert access == Access("https://10.96.0.1:443", token=tmp_path / "token", ca=tmp_path / "ca.crt")


def test_an_ipv6_server_is_put_in_brackets(tmp_path: Path) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")

    access = Access.from_pod(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})

    assert access.server == "https://[fd00::1]:443"


def test_outside_a_pod_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="this is not a pod; use a kubeconfig"):
        Access.from_pod(tmp_path, {})


def test_a_pod_without_an_account_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="token is missing: is automountServiceAccountToken false"):
        Access.from_pod(tmp_path, {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"})


# Kubeconfig


def config(**user: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [
            {"name": "main", "context": {"cluster": "c", "user": "u"}},
            {"name": "other", "context": {"cluster": "d"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://c:6443", "certificate-authority": "ca.crt"}},
            {"name": "d", "cluster": {"server": "http://d", "insecure-skip-tls-verify": True, "tls-server-name": "k"}},
        ],
        "users": [{"name": "u", "user": user}],
    }


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "config"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    access = load_kubeconfig(write(tmp_path, config(token="secret")))

    assert access == Access("https://c:6443", token="secret", ca=tmp_path / "ca.crt")


def test_another_context_can_be_named(tmp_path: Path) -> None:
    access = load_kubeconfig(write(tmp_path, config()), "other")

    assert access == Access("http://d", insecure_skip_verify=True, tls_server_name="k")


def test_a_kubeconfig_is_usually_yaml(tmp_path: Path) -> None:
    text = """
current-context: main
contexts: [{name: main, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://c:6443'}}]
users: [{name: u, user: {tokenFile: sub/token}}]
"""

    assert load_kubeconfig(write(tmp_path, text)).token == tmp_path / "sub" / "token"


def test_data_in_the_file_wins_over_paths(tmp_path: Path) -> None:
    document = config(**{"client-certificate-data": encoded("CERT"), "client-certificate": "x", "client-key": "/k"})
    document["clusters"][0]["cluster"]["certificate-authority-data"] = encoded("CA")

    access = load_kubeconfig(write(tmp_path, document))

    assert access.ca == "CA"
    assert access.client_cert == ("CERT", Path("/k"))


@pytest.mark.parametrize("plugin", ["exec", "auth-provider"])
def test_a_credential_plugin_is_refused_with_a_remedy(tmp_path: Path, plugin: str) -> None:
    with pytest.raises(CredentialsError, match=f"from a plugin .{plugin}.*kubectl create token"):
        load_kubeconfig(write(tmp_path, config(**{plugin: {"command": "aws"}})))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.pop("current-context"), "no current-context; name one"),
        (lambda d: d.update({"current-context": "gone"}), "contexts holds no entry named 'gone'"),
        (lambda d: d["contexts"][0]["context"].update(cluster="gone"), "clusters holds no entry named 'gone'"),
        (lambda d: d["contexts"][0]["context"].update(user="gone"), "users holds no entry named 'gone'"),
        (lambda d: d["clusters"][0]["cluster"].pop("server"), "cluster.server is missing"),
        (lambda d: d["users"][0]["user"].update({"client-key": "x"}), "client-key go together"),
        (lambda d: d["users"][0]["user"].update({"client-key-data": "%%"}), "client-key-data is not base64"),
        (lambda d: d.update(users="odd"), "users holds no entry named 'u'"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_named(tmp_path: Path, change: Any, problem: str) -> None:
    document = config()
    change(document)

    with pytest.raises(CredentialsError, match=problem):
        load_kubeconfig(write(tmp_path, document))


@pytest.mark.parametrize("text", ["- a\n- b", '"text"', "a: [", "\x00"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CredentialsError, match="config"):
        load_kubeconfig(write(tmp_path, text))


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="nope cannot be read: No such file"):
        load_kubeconfig(tmp_path / "nope")


def test_a_client_is_made_from_a_kubeconfig(tls_server: TlsServer, tmp_path: Path) -> None:
    document = config(token="secret")
    document["clusters"][0]["cluster"] = {"server": tls_server.url, "certificate-authority": str(TLS / "ca.crt")}

    with KubeClient.from_kubeconfig(write(tmp_path, document)) as client:
        assert client.get("/x") == {}
