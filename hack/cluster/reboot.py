"""The node loses its power and comes back, while the control plane goes on as if it were on another machine.

What is lost: every process of the node, all that is in memory (/run with containerd's state and the pods' networks, the
mounts of containers and pod volumes, cgroups, CDI specifications, MPS folders) and the boot id. What stays is the disk:
the folders of the kubelet, of containerd and of the agent. Nothing of it is told in advance: everything gets SIGKILL.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import lifecycle, node, processes
from .agent import Agent
from .layout import DRIVER_NAME, ClusterError
from .processes import Process, run_checked

NODE_COMPONENTS = ("containerd", "kubelet", "kube-proxy")
"""In the order of their start."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def powered_off(agent: Agent, *, stale_sockets: bool = True) -> Iterator[None]:
    """The node is off inside the block; behind it everything of it but the agent runs again.

    The block reboots the mock machine (``MockNode.reboot``), whose boot id the kubelet reads too from then on.

    Args:
        agent: the node's; killed, and left to the caller to be started again.
        stale_sockets: plugin sockets are left over, as on a node with the kubelet's folders on its disk; False: they
            were in memory, as on one that boots from an image.
    """
    try:
        _power_off(agent)
        _empty_memory(agent, stale_sockets=stale_sockets)
        yield
    finally:
        for name in NODE_COMPONENTS:
            lifecycle.start_component(agent.layout, name)


def _power_off(agent: Agent) -> None:
    layout = agent.layout
    init = lifecycle.component(layout, "init")
    # The kubelet first: it is the only one that would do something about the end of the others.
    for name in reversed(NODE_COMPONENTS):
        lifecycle.stop_component(layout, name, grace=0)
    agent.kill()
    _kill_daemons(agent)
    processes.wait_for("the end of all containers", lambda: _kill_containers(init), init, layout.log("init"))


def _empty_memory(agent: Agent, *, stale_sockets: bool) -> None:
    layout = agent.layout
    init = lifecycle.component(layout, "init")
    node.remove_cgroups(lifecycle.container_ids(layout))
    for folder in (layout.kubelet, Path("/run"), BOOT_ID):
        node.unmount_below(folder, init)
    enter = node.enter(init)
    run_checked([*enter, "mount", "-t", "tmpfs", "-o", "mode=755", "gpudra-node", "/run"])
    own_boot_id = agent.mock_root / BOOT_ID.relative_to("/")
    run_checked([*enter, "mount", "--bind", str(own_boot_id), str(BOOT_ID)])
    for path in (*layout.cdi.iterdir(), *layout.containerd_socket.parent.glob("*.sock*")):
        path.unlink()
    shutil.rmtree(agent.mps_dir, ignore_errors=True)  # it is not there where nobody has used MPS
    if not stale_sockets:
        for socket in (*layout.registry.iterdir(), *(layout.plugins / DRIVER_NAME).glob("*.sock")):
            socket.unlink()


def _kill_daemons(agent: Agent) -> None:
    """Kill the mock machine's programs that the agent has left running: MPS daemons and their servers."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ClusterError):  # a kernel thread, or one that has ended
            if (entry / "exe").readlink().is_relative_to(agent.mock_root):
                processes.end(processes.of_pid("a daemon", int(entry.name)), grace=0)


def _kill_containers(init: Process) -> bool:
    """Kill what descends from the node's PID 1 (shims, their containers); True where there is nothing any more.

    The components are no descendants: nsenter, outside, is their parent.
    """
    found = list(_descendants(init.pid))
    for pid in found:
        with contextlib.suppress(ClusterError):  # it ended with another one
            processes.end(processes.of_pid("a container's process", pid), grace=0)
    return not found


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)
