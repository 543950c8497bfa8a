"""Start, look at and end a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from . import access, binaries, images, node, pki, processes
from .components import API_PORT, START_ORDER, Components, started
from .layout import NODE_NAME, ClusterError, Layout, State
from .processes import Process

Report = Callable[[str], None]
_MARKER = "gpudra-cluster"
"""File in the root folder that says whose it is: ``down`` removes no folder without it."""


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """One command at a time changes a cluster; a second one waits."""
    layout.lock.parent.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(layout: Layout, version: str = binaries.DEFAULT_VERSION, *, owner: int | None = None,
       control_plane: bool = False, report: Report = print) -> State:  # fmt: skip
    """Build what is missing, start everything, wait until the node is ready. A running cluster is left as it is.

    Args:
        owner: a process whose end ends the cluster, however it ends.
        control_plane: only etcd, API server, scheduler and controller manager, without a node.

    Raises:
        ClusterError: something did not start; what was started is ended again.
    """
    folder = binaries.build(version, report=report)
    with locked(layout):
        if is_running(layout):
            state = layout.load()
            if state.version != version:
                raise ClusterError(
                    f"a cluster of version {state.version} runs in {layout.root}: end it with down first"
                )
            if state.control_plane != control_plane:
                kind = "without" if state.control_plane else "with"
                raise ClusterError(f"a cluster {kind} a node runs in {layout.root}: end it with down first")
            return state
        _remove(layout)
        try:
            return _start(layout, version, folder, owner, control_plane, report)
        except BaseException:
            _remove(layout, keep_logs=True)
            raise


def _start(layout: Layout, version: str, folder: Path, owner: int | None, control_plane: bool, report: Report) -> State:
    begin = time.monotonic()
    _make_folders(layout)
    init = node.start_init(layout)
    if owner is not None:
        _start_guard(layout, owner)
    link, gateway, address = node.choose_link()
    node.connect(init, link, gateway, address)
    state = State(version, str(folder), address, gateway, link, control_plane)
    layout.save(state)
    pki.create(layout.pki, address)
    access.write_tokens(layout)
    access.write_kubeconfigs(layout, state)
    Components(layout, state).write()
    for name in started(state):
        start_component(layout, name)
        report(f"{time.monotonic() - begin:5.1f} s  {name}")
    if control_plane:
        access.install_driver_objects(layout)
    else:
        _complete_node(layout, state)
    # Without it no pod is admitted; its controller starts last.
    access.kubectl(layout, "wait", "--for=create", "serviceaccount/default", "-n", "default", "--timeout=60s")
    ready = "the control plane" if control_plane else f"node {NODE_NAME}"
    report(f"{time.monotonic() - begin:5.1f} s  {ready} is ready")
    return state


def _complete_node(layout: Layout, state: State) -> None:
    """Give the node what its pods need, and wait until it is ready."""
    access.kubectl(layout, "wait", "--for=create", f"node/{NODE_NAME}", "--timeout=60s")
    _import_images(layout)
    access.install_driver_objects(layout)
    access.write_agent_kubeconfig(layout, state)
    access.kubectl(layout, "wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=60s")


def _make_folders(layout: Layout) -> None:
    layout.root.mkdir(mode=0o755, parents=True)
    (layout.root / _MARKER).write_text(
        "This folder belongs to python -m hack.cluster and is removed by its verb down.\n"
    )
    for folder in (layout.logs, layout.pids, layout.pki, layout.config, layout.kubelet, layout.plugins,
                   layout.registry, layout.cdi, layout.containerd_socket.parent):  # fmt: skip
        folder.mkdir(parents=True)
    layout.pki.chmod(0o700)


def start_component(layout: Layout, name: str) -> Process:
    """Start one component inside the running node and wait until it serves."""
    init = _require_init(layout)
    state = layout.load()
    environment = os.environ | {"PATH": f"{state.binaries}:/usr/sbin:/usr/bin:/sbin:/bin"}
    argv = Components(layout, state).argv(name)
    process = processes.spawn(name, node.enter(init), argv, layout.log(name), environment=environment)
    process.save(layout.pid_file(name))
    check = _readiness(layout, state, name)
    processes.wait_for(f"{name} to be ready", check, process, layout.log(name))
    return process


def stop_component(layout: Layout, name: str, *, grace: float = 10.0) -> None:
    """End one component; 0 seconds of grace kill it."""
    process = Process.load(layout.pid_file(name))
    if process is not None:
        processes.end(process, grace=grace)
    layout.pid_file(name).unlink(missing_ok=True)


def restart_kubelet(layout: Layout, between: Callable[[], object] = lambda: None) -> None:
    """End the kubelet, do something, start it again."""
    stop_component(layout, "kubelet")
    between()
    start_component(layout, "kubelet")


@contextlib.contextmanager
def kubelet_settings(layout: Layout, **settings: object) -> Iterator[None]:
    """A kubelet with other settings (fields of KubeletConfiguration) inside the block; restarted for both changes."""
    file = layout.config / "kubelet.json"
    before = file.read_text()
    restart_kubelet(layout, lambda: file.write_text(json.dumps(json.loads(before) | settings, indent=2) + "\n"))
    try:
        yield
    finally:
        restart_kubelet(layout, lambda: file.write_text(before))


def component(layout: Layout, name: str) -> Process:
    """A running component.

    Raises:
        ClusterError: it does not run.
    """
    process = Process.load(layout.pid_file(name))
    if process is None or not process.alive():
        raise ClusterError(f"{name} does not run; its log ends with\n{processes.tail(layout.log(name))}")
    return process


def _require_init(layout: Layout) -> Process:
    init = Process.load(layout.pid_file("init"))
    if init is None or not init.alive():
        raise ClusterError(f"no cluster runs in {layout.root}: start one with python -m hack.cluster up")
    return init


def _readiness(layout: Layout, state: State, name: str) -> Callable[[], bool]:
    """The question that shows a component to serve. Status 200 counts, not the text: a failing readyz says ok too."""
    token = layout.token().read_text()
    urls = {
        "kube-apiserver": f"https://{state.address}:{API_PORT}/readyz",
        "kubelet": f"https://{state.address}:10250/healthz",
    }
    if name in urls:
        return lambda: _answers(urls[name], token)
    if name == "containerd":
        return layout.containerd_socket.exists
    return lambda: True  # a client of the API server, or behind it: what it does not do shows in the node's readiness


def _answers(url: str, token: str) -> bool:
    # The kubelet makes its own certificate; nothing but readiness is asked here.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _import_images(layout: Layout) -> None:
    archive = layout.root / "images.tar"
    images.write_archive(archive)
    import_image(layout, archive)
    archive.unlink()


def import_image(layout: Layout, archive: Path) -> None:
    """Give an OCI archive to containerd, in the namespace that the kubelet looks at."""
    ctr = Path(layout.load().binaries) / "ctr"
    command = [
        str(ctr),
        f"--address={layout.containerd_socket}",
        "--namespace=k8s.io",
        "images",
        "import",
        str(archive),
    ]
    processes.run_checked(command)


def is_running(layout: Layout) -> bool:
    """Whether the cluster lives and every component with it."""
    try:
        components = started(layout.load())
    except ClusterError:  # nothing was started, or nobody can say any more what
        return False
    records = [Process.load(layout.pid_file(name)) for name in ("init", *components)]
    return all(record is not None and record.alive() for record in records)


def status(layout: Layout) -> dict[str, str]:
    """Each component's state in words."""
    answer = {}
    for name in ("init", *START_ORDER, "agent"):
        process = Process.load(layout.pid_file(name))
        if process is None:
            answer[name] = "not started"
        else:
            answer[name] = f"running, PID {process.pid}" if process.alive() else "ended"
    return answer


def down(layout: Layout) -> None:
    """End everything and leave nothing. Right whatever state the cluster is in, and when there is none.

    Raises:
        ClusterError: the folder is not a cluster's, or something of it cannot be removed.
    """
    with locked(layout):
        _remove(layout)


def _remove(layout: Layout, *, keep_logs: bool = False) -> None:
    init = Process.load(layout.pid_file("init"))
    if init is not None:
        processes.end(init, grace=0)  # the kernel kills every process of the node with it
    agent = Process.load(layout.pid_file("agent"))
    if agent is not None:
        processes.end(agent, grace=5)
    guard = Process.load(layout.pid_file("guard"))
    if guard is not None and guard.pid != os.getpid():
        processes.end(guard, grace=0)
    with contextlib.suppress(ClusterError):  # no state: the node died before it had a network
        node.remove_link(layout.load().link)
    node.remove_cgroups(container_ids(layout))
    node.unmount_below(layout.root)
    if not layout.root.exists():
        return
    if not (layout.root / _MARKER).exists():
        raise ClusterError(f"{layout.root} is not a cluster's folder (no file {_MARKER} in it): it is left alone")
    if keep_logs:
        kept = layout.root.with_name(f"{layout.root.name}-failed")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(layout.logs, kept)
    shutil.rmtree(layout.root)


def container_ids(layout: Layout) -> list[str]:
    """The containers and sandboxes that containerd remembers on disk."""
    return [
        path.name for path in (layout.containerd_socket.parent / "root").glob("io.containerd.runtime.v2.task/k8s.io/*")
    ]


def _start_guard(layout: Layout, owner: int) -> None:
    """Start the process that ends the cluster when its owner ends."""
    command = [sys.executable, "-m", "hack.cluster", "guard", "--owner", str(owner)]
    environment = os.environ | {
        "GPUDRA_CLUSTER_DIR": str(layout.root),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    # The wrapper is a shell that waits: spawn returns the child that does the work.
    wrapper = ("sh", "-c", '"$@"; exit $?', "sh")
    guard = processes.spawn("guard", wrapper, command, layout.log("guard"), environment=environment)
    guard.save(layout.pid_file("guard"))


def guard(layout: Layout, owner: int) -> None:
    """Wait for the end of the owner, then end the cluster; return when the cluster was ended by somebody else."""
    init = _require_init(layout)
    poller = select.poll()
    watched = {}
    for name, pid in (("owner", owner), ("init", init.pid)):
        with contextlib.suppress(ProcessLookupError):  # gone before we looked: treated as gone below
            watched[name] = os.pidfd_open(pid)
            poller.register(watched[name], select.POLLIN)
    if "init" in watched and "owner" in watched:
        ended = {descriptor for descriptor, _ in poller.poll()}
        if watched["owner"] not in ended:
            return
    down(layout)
