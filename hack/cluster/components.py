"""What each component of the cluster is started with: command lines and configuration files.

The reasons for the less obvious flags stand beside them. Everything listens on the node's own network namespace, so
the usual port numbers are free there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .layout import NODE_NAME, Layout, State

POD_SUBNET = "10.244.0.0/24"
SERVICE_SUBNET = "10.96.0.0/24"
API_PORT = 6443
CNI_PLUGINS = "/usr/lib/cni"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10.2"
"""The name that containerd 2.4 and the kubelet 1.37 agree on; the image itself is made by ``images.py``."""
_HASTE = ("--kube-api-qps=1000", "--kube-api-burst=1000")
"""Of clients in a cluster where thousands of pods come and go, one after the other."""
HEALTH_GATE = "ResourceHealthStatus"
"""Device health in pod status; on by default from Kubernetes 1.36 on. Before, the API server has it switched on here,
and the kubelet only where a test asks for it: as an alpha feature it complains about plugins that report no health."""
START_ORDER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
)
CONTROL_PLANE = START_ORDER[:4]
"""Those that need no node."""
CONTROLLERS = ("resourceclaim-controller", "serviceaccount-controller")
"""Of a control plane without nodes: claims are freed when their pods are gone, and pods are admitted. The others would
only be in the way: no kubelet keeps the made-up nodes alive."""


def started(state: State) -> tuple[str, ...]:
    """The components that such a cluster has, in the order of their start."""
    return CONTROL_PLANE if state.control_plane else START_ORDER


@dataclass(frozen=True, slots=True)
class Components:
    """Command lines and configuration for one cluster."""

    layout: Layout
    state: State

    def argv(self, name: str) -> tuple[str, ...]:
        """The command line of a component of ``START_ORDER``."""
        arguments = {
            "etcd": self._etcd,
            "kube-apiserver": self._apiserver,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
            "containerd": self._containerd,
            "kubelet": self._kubelet,
            "kube-proxy": self._proxy,
        }[name]
        return (str(Path(self.state.binaries) / name), *arguments())

    def write(self) -> None:
        """Write every configuration file."""
        config = self.layout.config
        (config / "cni").mkdir(parents=True, exist_ok=True)
        (config / "containerd.toml").write_text(self._containerd_config())
        _write_json(config / "kubelet.json", self._kubelet_config())
        _write_json(config / "cni" / "10-gpudra.conflist", _cni_config())
        _write_json(config / "audit-policy.json", _audit_policy())

    def _etcd(self) -> Iterator[str]:
        yield from ("--name=etcd", f"--data-dir={self.layout.root}/etcd", "--unsafe-no-fsync=true")
        yield from ("--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379")
        yield from ("--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380")
        yield from ("--initial-cluster=etcd=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn")

    def _apiserver(self) -> Iterator[str]:
        pki, address = self.layout.pki, self.state.address
        yield from ("--etcd-servers=http://127.0.0.1:2379", f"--secure-port={API_PORT}", "--bind-address=0.0.0.0")
        yield from (f"--advertise-address={address}", f"--cert-dir={pki}", f"--client-ca-file={self.layout.ca}")
        yield from (f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key")
        # Scheduler and controller manager keep asking for this part of the authentication configuration.
        yield from (f"--requestheader-client-ca-file={self.layout.ca}", "--requestheader-allowed-names=front-proxy")
        yield from ("--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group")
        yield "--requestheader-extra-headers-prefix=X-Remote-Extra-"
        yield from (f"--token-auth-file={pki}/tokens.csv", "--authorization-mode=Node,RBAC")
        yield from (f"--service-account-key-file={pki}/sa.key", f"--service-account-signing-key-file={pki}/sa.key")
        yield from ("--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged=true")
        yield from (f"--service-cluster-ip-range={SERVICE_SUBNET}", "--enable-admission-plugins=NodeRestriction")
        # Without it logs and exec go to the name node-a, which nobody resolves.
        yield "--kubelet-preferred-address-types=InternalIP"
        # The contract tests read older versions of the same objects.
        yield "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"
        yield from (f"--audit-policy-file={self.layout.config}/audit-policy.json",)
        yield from (f"--audit-log-path={self.layout.audit_log}", "--audit-log-mode=blocking")
        if self.state.minor_version < (1, 36):
            yield f"--feature-gates={HEALTH_GATE}=true"

    def _controller_manager(self) -> Iterator[str]:
        yield from self._client("system:kube-controller-manager")
        yield from (f"--service-account-private-key-file={self.layout.pki}/sa.key", "--use-service-account-credentials")
        yield from (f"--root-ca-file={self.layout.ca}", "--leader-elect=false", "--bind-address=127.0.0.1")
        yield f"--cert-dir={self.layout.pki}/kube-controller-manager"
        if self.state.control_plane:
            yield from (f"--controllers={','.join(CONTROLLERS)}", *_HASTE)

    def _scheduler(self) -> Iterator[str]:
        yield from self._client("system:kube-scheduler")
        yield from ("--leader-elect=false", "--bind-address=127.0.0.1")
        yield f"--cert-dir={self.layout.pki}/kube-scheduler"
        if self.state.control_plane:
            yield from _HASTE

    def _client(self, user: str) -> Iterator[str]:
        for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"):
            yield f"--{flag}={self.layout.kubeconfig(user)}"

    def _containerd(self) -> Iterator[str]:
        yield f"--config={self.layout.config}/containerd.toml"

    def _kubelet(self) -> Iterator[str]:
        layout = self.layout
        yield from (f"--config={layout.config}/kubelet.json", f"--root-dir={layout.kubelet}")
        yield from (f"--kubeconfig={layout.kubeconfig('kubelet')}", f"--hostname-override={NODE_NAME}")
        yield from (f"--node-ip={self.state.address}", f"--cert-dir={layout.pki}/kubelet")

    def _proxy(self) -> Iterator[str]:
        yield from (f"--kubeconfig={self.layout.kubeconfig('kube-proxy')}", f"--hostname-override={NODE_NAME}")
        # Conntrack's size belongs to the whole machine: 0 leaves it alone.
        yield from ("--proxy-mode=iptables", "--conntrack-max-per-core=0", f"--cluster-cidr={POD_SUBNET}")

    def _containerd_config(self) -> str:
        """Configuration version 4. The state folder stays /run/containerd: /run is the node's own."""
        folder = self.layout.root / "containerd"
        runtime = "io.containerd.cri.v1.runtime"
        return "\n".join([
            "version = 4",
            f"root = '{folder}/root'",
            "imports = []",
            "disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.tracing.processor.v1.otlp']",
            f"[plugins.'{runtime}']",
            # Lowering one's score needs CAP_SYS_RESOURCE, which containers that run tests often lack.
            "restrict_oom_score_adj = true",
            f"cdi_spec_dirs = ['{self.layout.cdi}']",
            f"[plugins.'{runtime}'.cni]",
            f"bin_dirs = ['{CNI_PLUGINS}']",
            f"conf_dir = '{self.layout.config}/cni'",
            "[plugins.'io.containerd.cri.v1.images'.pinned_images]",
            f"sandbox = '{PAUSE_IMAGE}'",
            "[plugins.'io.containerd.internal.v1.opt']",
            f"path = '{folder}/opt'",
            "[plugins.'io.containerd.server.v1.grpc']",
            f"address = '{self.layout.containerd_socket}'",
            "[plugins.'io.containerd.server.v1.ttrpc']",
            f"address = '{self.layout.containerd_socket}.ttrpc'",
            "",
        ])  # fmt: skip

    def _kubelet_config(self) -> dict[str, object]:
        root = self.layout.root
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "containerLogMaxSize": "10Mi",
            "containerRuntimeEndpoint": f"unix://{self.layout.containerd_socket}",
            "enforceNodeAllocatable": [],
            # No eviction and no image collection by the machine's disk, which others fill too.
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "0%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "podLogsDir": f"{root}/pod-logs",
            "resolvConf": "",
            "volumePluginDir": f"{root}/volume-plugins",
        }


def _cni_config() -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "gpudra",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-networks",
                    "ranges": [[{"subnet": POD_SUBNET}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _audit_policy() -> dict[str, object]:
    """Record what the agent asks for, nothing else: the tests compare it with what its role allows."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:gpudra-system"]},
            {"level": "None"},
        ],
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
