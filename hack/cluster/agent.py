"""The driver's agent as a plain process beside the cluster, on a mock node."""

from __future__ import annotations

import sys
from pathlib import Path

from . import processes
from .layout import NODE_NAME, Layout
from .processes import Process

REPOSITORY = Path(__file__).parents[2]


def command(layout: Layout, profile: str, mock_root: Path, *extra: str) -> list[str]:
    """The command line: identity and folders of this cluster's node, hardware of a mock profile, free ports."""
    return [
        str(Path(sys.executable).with_name("gpudra")),
        "agent",
        f"--node-name={NODE_NAME}",
        f"--kubeconfig={layout.kubeconfig('agent')}",
        f"--plugins-dir={layout.plugins}",
        f"--registry-dir={layout.registry}",
        f"--cdi-dir={layout.cdi}",
        f"--mock-profile={profile}",
        f"--mock-root={mock_root}",
        "--metrics-address=127.0.0.1",
        "--metrics-port=0",
        "--health-port=0",
        *extra,
    ]


def start(layout: Layout, profile: str) -> Process:
    """Start it as part of the cluster: ``down`` ends it. Its mock node stands in the cluster's folder.

    Raises:
        ClusterError: it ended at once.
    """
    wrapper = ("sh", "-c", '"$@"; exit $?', "sh")  # a parent that waits, for spawn
    process = processes.spawn("agent", wrapper, command(layout, profile, layout.root / "mock"), layout.log("agent"))
    process.save(layout.pid_file("agent"))
    processes.wait_for(
        "the agent's registration",
        lambda: any(layout.registry.glob("*.sock")),
        process,
        layout.log("agent"),
    )
    return process
