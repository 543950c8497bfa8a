"""Where the files of a cluster lie, and what is remembered of one that runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT_ROOT = Path("/var/tmp/gpudra-cluster")
NODE_NAME = "node-a"
AGENT_NAMESPACE = "gpudra-system"
DRIVER_NAME = "gpu.nvidia.com"
SUN_PATH_LIMIT = 107
"""Bytes that fit into ``sockaddr_un.sun_path`` beside its terminating zero (unix(7))."""
SHADOWED = (Path("/run"), Path("/var/lib"), Path("/var/log"), Path("/proc"))
"""Folders that the node sees as empty ones of its own: see ``node.py``."""


class ClusterError(Exception):
    """The cluster cannot be built, started or ended; the text says why and what helps."""


@dataclass(frozen=True, slots=True)
class State:
    """What ``up`` leaves for the other verbs (``state.json``)."""

    version: str
    binaries: str
    address: str
    """The node's address on the veth pair: the API server listens there, port 6443."""
    gateway: str
    """The address of the machine's end of the pair."""
    link: str
    """The name of the machine's end of the pair."""
    control_plane: bool = False
    """No node of its own: only what decides, for Node objects that tests make."""

    @property
    def server(self) -> str:
        return f"https://{self.address}:6443"

    @property
    def minor_version(self) -> tuple[int, int]:
        """(1, 37) for 1.37.2."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Layout:
    """The one folder that holds everything of a cluster. Paths are short because sockets lie in it."""

    root: Path

    @classmethod
    def default(cls) -> Layout:
        """The folder named by ``GPUDRA_CLUSTER_DIR``, or ``/var/tmp/gpudra-cluster``.

        Raises:
            ClusterError: the path cannot serve, for its length or because the node has something else there.
        """
        layout = cls(Path(os.environ.get("GPUDRA_CLUSTER_DIR") or DEFAULT_ROOT).absolute())
        longest = layout.kubelet / "plugins" / DRIVER_NAME / f"dra-{'0' * 36}.sock"
        if len(os.fsencode(longest)) > SUN_PATH_LIMIT:
            raise ClusterError(f"{layout.root} is too long a path: sockets below it would pass {SUN_PATH_LIMIT} bytes")
        for shadowed in SHADOWED:
            if layout.root.is_relative_to(shadowed):
                raise ClusterError(
                    f"{layout.root} lies below {shadowed}, which the node replaces; choose another folder"
                )
        return layout

    @property
    def lock(self) -> Path:
        return self.root.parent / f".{self.root.name}.lock"

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def kubelet(self) -> Path:
        """The kubelet's root directory: ``plugins`` and ``plugins_registry`` are in it."""
        return self.root / "kubelet"

    @property
    def plugins(self) -> Path:
        return self.kubelet / "plugins"

    @property
    def registry(self) -> Path:
        return self.kubelet / "plugins_registry"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd" / "containerd.sock"

    @property
    def audit_log(self) -> Path:
        """Requests of the agent's service account, one audit.k8s.io/v1 Event a line."""
        return self.logs / "audit.log"

    @property
    def ca(self) -> Path:
        return self.pki / "ca.crt"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.config / f"{user}.kubeconfig"

    def token(self, user: str = "admin") -> Path:
        return self.config / f"{user}.token"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    def pid_file(self, component: str) -> Path:
        return self.pids / f"{component}.json"

    def save(self, state: State) -> None:
        self.state_file.write_text(json.dumps(asdict(state), indent=2) + "\n")

    def load(self) -> State:
        """Read what ``up`` left.

        Raises:
            ClusterError: no cluster was started here, or the file is damaged.
        """
        try:
            return State(**json.loads(self.state_file.read_text()))
        except FileNotFoundError:
            raise ClusterError(f"no cluster runs in {self.root}: start one with python -m hack.cluster up") from None
        except (ValueError, TypeError) as error:
            raise ClusterError(
                f"{self.state_file} is damaged ({error}): python -m hack.cluster down, then up"
            ) from error
