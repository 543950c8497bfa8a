"""Who may talk to the cluster: static tokens, kubeconfigs, and the agent's own identity."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from .layout import AGENT_NAMESPACE, NODE_NAME, Layout, State
from .processes import run_checked

DEPLOY = Path(__file__).parents[2] / "deploy"
AGENT_ACCOUNT = "gpudra-agent"


@dataclass(frozen=True, slots=True)
class User:
    """A user of the static token file: the name of its kubeconfig, its user name and its groups."""

    config: str
    name: str
    groups: str = ""


USERS = (
    User("admin", "admin", "system:masters"),
    User("kubelet", f"system:node:{NODE_NAME}", "system:nodes"),
    User("system:kube-controller-manager", "system:kube-controller-manager"),
    User("system:kube-scheduler", "system:kube-scheduler"),
    User("kube-proxy", "system:kube-proxy"),
)


def write_tokens(layout: Layout) -> None:
    """Make a token for each user."""
    lines = []
    for user in USERS:
        token = secrets.token_hex(16)
        write_secret(layout.token(user.config), token)
        lines.append(f'{token},{user.name},{user.config},"{user.groups}"\n')
    write_secret(layout.pki / "tokens.csv", "".join(lines))


def write_kubeconfigs(layout: Layout, state: State) -> None:
    """Write a kubeconfig for each user."""
    for user in USERS:
        write_kubeconfig(layout, state, user.config, layout.token(user.config).read_text())


def write_kubeconfig(layout: Layout, state: State, name: str, token: str) -> None:
    """Write ``config/<name>.kubeconfig`` for the bearer of a token."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gpudra", "cluster": {"server": state.server, "certificate-authority": str(layout.ca)}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "gpudra", "context": {"cluster": "gpudra", "user": name}}],
        "current-context": "gpudra",
    }
    write_secret(layout.kubeconfig(name), json.dumps(document, indent=2) + "\n")


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)


def kubectl(layout: Layout, *arguments: str, stdin: str | None = None) -> str:
    """Run kubectl as the administrator.

    Raises:
        ClusterError: it failed; with its words.
    """
    binary = Path(layout.load().binaries) / "kubectl"
    command = [str(binary), f"--kubeconfig={layout.kubeconfig()}", f"--cache-dir={layout.root}/kubectl", *arguments]
    return run_checked(command, stdin=stdin)


def install_driver_objects(layout: Layout) -> None:
    """Apply what a user installs beside the DaemonSet: namespace, role, admission policy, device classes."""
    for name in ("namespace.yaml", "rbac.yaml", "deviceclasses.yaml", "admission-policy.yaml"):
        kubectl(layout, "apply", "--server-side", "-f", str(DEPLOY / name))


def write_agent_kubeconfig(layout: Layout, state: State, node: str = NODE_NAME, name: str = "agent") -> None:
    """Give an agent that runs as a plain process the identity that the DaemonSet's pods have.

    A service account token bound to the Node carries the node's name as the pod's own token does
    (``authentication.kubernetes.io/node-name``, KEP-4193), so that role and admission policy apply alike.
    """
    token = kubectl(
        layout, "create", "token", AGENT_ACCOUNT, "-n", AGENT_NAMESPACE,
        "--bound-object-kind=Node", f"--bound-object-name={node}", "--duration=24h",
    ).strip()  # fmt: skip
    write_secret(layout.token(name), token)
    write_kubeconfig(layout, state, name, token)
