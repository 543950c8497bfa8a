"""A real etcd and kube-apiserver on the loopback, from the cache of ``hack.cluster``; nothing else of a cluster.

Both die with the benchmark, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hack.cluster import binaries, pki
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient

PATIENCE = 90.0
"""Seconds for both to serve."""
_POLL = 0.1
_TIED = ("setpriv", "--pdeathsig", "KILL", "--")


class ServerError(Exception):
    """The API server cannot be had; the message says why and what helps."""


class ApiServer:
    """A running API server with one administrator's token."""

    def __init__(self, folder: Path, port: int, token: str) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.ca = folder / "pki" / "ca.crt"
        self.token = token
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))

    def client(self) -> KubeClient:
        """A client without a limit of its own."""
        return KubeClient(self.url, token=self.token, ca=self.ca, rate=1e6, burst=1_000_000)

    def _kubeconfig(self) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "bench", "user": {"token": self.token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }


@contextlib.contextmanager
def running(folder: Path, version: str = binaries.DEFAULT_VERSION) -> Iterator[ApiServer]:
    """Start both and end both.

    Args:
        folder: empty; for their data, logs and keys.
        version: of Kubernetes; built before by ``make test-cluster``.

    Raises:
        ServerError: they are not built, or do not come up.
    """
    programs = binaries.cache_folder(version)
    if not (programs / "kube-apiserver").exists() or not (programs / "etcd").exists():
        raise ServerError(f"{programs} has no etcd and kube-apiserver: make test-cluster builds them")
    (folder / "pki").mkdir()
    pki.create(folder / "pki", "127.0.0.1")
    token = secrets.token_hex(16)
    (folder / "pki" / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    client_port, peer_port, api_port = _free_ports(3)
    with contextlib.ExitStack() as stack:
        commands = {
            "etcd": _etcd(folder, client_port, peer_port),
            "kube-apiserver": _kube_apiserver(folder / "pki", client_port, api_port),
        }
        started = []
        for name, arguments in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            command = [*_TIED, str(programs / name), *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            stack.callback(_end, process)
            started.append(process)
        server = ApiServer(folder, api_port, token)
        _wait_ready(server, started, folder)
        yield server


def _etcd(folder: Path, client_port: int, peer_port: int) -> Iterator[str]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    yield from ("--name=etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync=true", "--log-level=error")
    yield from (f"--listen-client-urls={client}", f"--advertise-client-urls={client}")
    yield from (f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}")


def _kube_apiserver(keys: Path, etcd_port: int, port: int) -> Iterator[str]:
    yield from (f"--etcd-servers=http://127.0.0.1:{etcd_port}", f"--secure-port={port}", "--bind-address=127.0.0.1")
    yield from (f"--tls-cert-file={keys}/apiserver.crt", f"--tls-private-key-file={keys}/apiserver.key")
    yield from (f"--token-auth-file={keys}/tokens.csv", "--authorization-mode=Node,RBAC", f"--cert-dir={keys}")
    yield from (f"--service-account-key-file={keys}/sa.key", f"--service-account-signing-key-file={keys}/sa.key")
    yield from ("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/24")


def _wait_ready(server: ApiServer, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    with server.client() as client:
        while True:
            try:
                client.text("/readyz", timeout=2)
            except (ApiError, ApiUnreachableError) as error:
                if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                    raise ServerError(f"the API server does not serve ({error}); see the logs in {folder}") from error
                # A pause that the end of the server cuts short; nothing says when it is ready.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    processes[-1].wait(_POLL)
            else:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
