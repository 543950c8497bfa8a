"""The namespaces that the node lives in, its network, and what the kernel keeps of it after its death.

One veth pair joins the node to the machine: the machine reaches the API server through it, the node reaches nothing
else. iptables rules, CNI interfaces, mounts and processes of the cluster exist only inside the namespaces and vanish
with them; cgroups are the exception and are removed by name.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from .layout import NODE_NAME, ClusterError, Layout
from .processes import Process, of_pid, run_checked, spawn, wait_gone

_CGROUP_MOUNT = Path("/sys/fs/cgroup")
_UNSHARE = ("unshare", "--fork", "--kill-child", "--pid", "--mount", "--net", "--uts", "--propagation=private",
            "--mount-proc", "--")  # fmt: skip


def start_init(layout: Layout) -> Process:
    """Create the namespaces; return their PID 1."""
    script = Path(__file__).with_name("init.py")
    command = [sys.executable, "-I", "-S", str(script), NODE_NAME]
    init = spawn("init", _UNSHARE, command, layout.log("init"), announced=True)
    init.save(layout.pid_file("init"))
    return init


def enter(init: Process) -> tuple[str, ...]:
    """The command prefix that runs a program inside the node."""
    return ("nsenter", f"--target={init.pid}", "--mount", "--net", "--uts", "--pid", "--")


def choose_link() -> tuple[str, str, str]:
    """A veth name and a /30 that nothing on the machine uses: (name, machine's address, node's address)."""
    routes = json.loads(run_checked(["ip", "-json", "-4", "route", "show", "table", "all"]))
    taken = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in routes
        if route.get("dst", "default") != "default" and ":" not in route["dst"]
    ]
    for number in range(256):
        link, network = f"gpudra{number}", ipaddress.ip_network(f"10.213.{number}.0/30")
        if not any(network.overlaps(other) for other in taken) and not Path(f"/sys/class/net/{link}").exists():
            gateway, node = network.hosts()
            return link, str(gateway), str(node)
    raise ClusterError("no free subnet in 10.213.0.0/16 for the cluster's veth pair")


def connect(init: Process, link: str, gateway: str, address: str) -> None:
    """Make the veth pair and give both ends their addresses. Pods are routed by the node itself."""
    run_checked(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(init.pid)])
    run_checked(["ip", "address", "add", f"{gateway}/30", "dev", link])
    run_checked(["ip", "link", "set", link, "up"])
    inside = ("nsenter", f"--target={init.pid}", "--net", "--")
    run_checked([*inside, "ip", "address", "add", f"{address}/30", "dev", "eth0"])
    run_checked([*inside, "ip", "link", "set", "eth0", "up"])
    run_checked([*inside, "ip", "route", "add", "default", "via", gateway])


def remove_link(link: str) -> None:
    """Delete the veth pair of a dead node, unless the kernel has already done so."""
    subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)


def remove_cgroups(containers: Iterable[str]) -> None:
    """Remove the empty cgroups that the containers of a dead node left, in each hierarchy (v1) or the one (v2).

    containerd puts them below its namespace, which may be somebody else's too: only these containers are touched.

    Raises:
        ClusterError: one is still in use.
    """
    parents = [*_CGROUP_MOUNT.glob("*/k8s.io"), _CGROUP_MOUNT / "k8s.io"]
    for parent in filter(Path.is_dir, parents):
        for container in containers:
            top = parent / container
            if top.is_dir():
                inner = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
                for folder in [*inner, top]:
                    _remove_cgroup(folder)
        with contextlib.suppress(OSError):  # somebody else's containers are in it
            parent.rmdir()


def _remove_cgroup(folder: Path) -> None:
    """rmdir, which the kernel refuses for a moment after the last process of a cgroup was killed."""
    deadline = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            members = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {folder} cannot be removed: {error}; processes {members}") from error
            for pid in members:
                wait_gone(of_pid("a container's process", pid), 1)
        else:
            return


def unmount_below(folder: Path, inside: Process | None = None) -> None:
    """Unmount a folder and what is below it.

    Args:
        folder: on the machine, for example the cluster's, where a test could not clean up.
        inside: the node's PID 1: as the node sees it.
    """
    mounts = Path(f"/proc/{inside.pid if inside else 'self'}/mountinfo")
    while True:
        lines = mounts.read_text().splitlines()
        points = (Path(line.split()[4].encode().decode("unicode_escape")) for line in lines)  # spaces stand as \\040
        topmost = next((point for point in points if point.is_relative_to(folder)), None)
        if topmost is None:
            return
        # What is mounted below it goes with it (MNT_DETACH in umount(2)).
        run_checked([*(enter(inside) if inside else ()), "umount", "--lazy", str(topmost)])
