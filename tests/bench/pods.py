"""What a claim adds to a pod on the real cluster: ``make bench-pods``, or ``python -m tests.bench.pods --help``.

Pods with a claim for one GPU and pods without one, in turn, on the one-node cluster of ``make test-cluster`` with the
agent on a mock DGX H100. The scheduler, the kubelet and containerd do all that they do on any node, so only the
difference between the two kinds of pods is the claim's: the controller that makes it from its template, the
allocation, the kubelet's own GETs, and Prepare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from hack.cluster import binaries, lifecycle
from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api, path
from hack.cluster.layout import DRIVER_NAME, NODE_NAME, Layout
from hack.cluster.scene import Container, Namespace, temporary_namespace
from native.mock import MockNode
from tests.bench.awake import cpus_awake
from tests.bench.stats import Spread

STAGES = ("scheduled", "started", "gone")
"""From the pod's creation until it has a node and until containerd has started its container; from its deletion until
it is gone, which is after Unprepare."""
AIMS = {"scheduled": 36.0, "started": 48.0, "NodePrepareResources": 7.0}
"""Milliseconds that a claim adds at most on a quiet machine of two cores."""
_TITLES = {
    "scheduled": "created until scheduled",
    "started": "created until the container starts",
    "gone": "deleted until gone",
    "NodePrepareResources": "NodePrepareResources as the kubelet sees it, mean",
}
_SILENT_SECONDS = 5.0
_TASK_START = re.compile(r"^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)? \+0000 UTC \S+ /tasks/start (\{.*\})$")
_KUBELET_TIME = re.compile(r"^dra_grpc_operations_duration_seconds_(sum|count)\{(.*)\} (\S+)$")


def task_start(line: str) -> tuple[str, float] | None:
    """A container's id and the time (seconds since 1970) at which its task started; None: the line of ``ctr events``
    is about something else.

    containerd's own times, because the pod's status is told in whole seconds and after the kubelet's next look.
    """
    found = _TASK_START.match(line)
    if found is None:
        return None
    day, clock, fraction, body = found.groups()
    seconds = datetime.fromisoformat(f"{day}T{clock}+00:00").timestamp()
    return str(json.loads(body)["container_id"]), seconds + float(fraction or 0)


def kubelet_prepares(lines: Iterable[str], driver: str = DRIVER_NAME) -> tuple[float, float]:
    """Seconds that the kubelet spent in NodePrepareResources of a driver, and calls, from its ``/metrics``."""
    totals = {"sum": 0.0, "count": 0.0}
    for line in lines:
        found = _KUBELET_TIME.match(line)
        if found and f'"{driver}"' in found[2] and "NodePrepareResources" in found[2]:
            totals[found[1]] += float(found[3])
    return totals["sum"], totals["count"]


def pods_table(measured: dict[str, dict[str, list[float]]], prepare_ms: float) -> str:
    """Medians (min-max) in milliseconds of pods with and without a claim, and their difference.

    Args:
        measured: ``claim`` or ``plain`` -> stage -> milliseconds of each pod.
        prepare_ms: the kubelet's mean of NodePrepareResources.
    """
    rows = ["| ms | with a claim | without | a claim adds | aim |", "| --- | --- | --- | --- | --- |"]
    for stage in STAGES:
        own, plain = (Spread.of(measured[kind][stage]) for kind in ("claim", "plain"))
        aim = f"{AIMS[stage]:g}" if stage in AIMS else ""
        rows.append(f"| {_TITLES[stage]} | {_told(own)} | {_told(plain)} | {own.median - plain.median:.0f} | {aim} |")
    name = "NodePrepareResources"
    rows.append(f"| {_TITLES[name]} | {prepare_ms:.1f} |  |  | {AIMS[name]:g} |")
    return "\n".join(rows)


def _told(spread: Spread) -> str:
    return f"{spread.median:.0f} ({spread.low:.0f}-{spread.high:.0f})"


class TaskStarts:
    """Listens to containerd; the times by container id."""

    def __init__(self, layout: Layout) -> None:
        ctr = Path(layout.load().binaries) / "ctr"
        self._process = subprocess.Popen(
            [str(ctr), f"--address={layout.containerd_socket}", "--namespace=k8s.io", "events"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._found: dict[str, float] = {}
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def of(self, container: str, timeout: float = 30.0) -> float:
        """When the container's task started. TimeoutError: nothing was heard of it."""
        with self._news:
            if not self._news.wait_for(lambda: container in self._found, timeout):
                raise TimeoutError(f"containerd told nothing about the start of {container}")
            return self._found[container]

    def close(self) -> None:
        """Listen no more."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (start := task_start(line.rstrip("\n"))) is not None:
                with self._news:
                    self._found[start[0]] = start[1]
                    self._news.notify_all()


class Watched:
    """Watches the pods of a namespace: when each was first seen in a state, and its container's id."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        self._ids: dict[str, str] = {}
        self._news = threading.Condition()
        self._closed = threading.Event()
        where = path("pods", namespace)
        version = api.call("GET", where, limit="1")["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._watch, args=(api, where, version), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        self._thread.join()

    def when(self, pod: str, state: str, timeout: float = 60.0) -> float:
        """Seconds since 1970 at which the pod was first seen ``scheduled``, ``running`` or ``gone``.

        Raises:
            TimeoutError: it did not come to that.
        """
        with self._news:
            if not self._news.wait_for(lambda: (pod, state) in self._seen, timeout):
                raise TimeoutError(f"pod {pod} was not {state} within {timeout:g} s")
            return self._seen[pod, state]

    def container(self, pod: str) -> str:
        """The id of the container of a pod that was seen running."""
        return self._ids[pod]

    def _watch(self, api: Api, where: str, version: str) -> None:
        while not self._closed.is_set():  # opened anew when nothing came for a while
            for line in api.lines(where, _SILENT_SECONDS, watch="true", resourceVersion=version):
                now = time.time()
                event = json.loads(line)
                pod: JSON = event["object"]
                version = pod["metadata"]["resourceVersion"]
                with self._news:
                    for state in self._states(event["type"], pod):
                        self._seen.setdefault((pod["metadata"]["name"], state), now)
                    self._news.notify_all()

    def _states(self, kind: str, pod: JSON) -> Iterator[str]:
        if kind == "DELETED":
            yield "gone"
        if pod["spec"].get("nodeName"):
            yield "scheduled"
        for status in pod["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                self._ids[pod["metadata"]["name"]] = status["containerID"].rpartition("/")[2]
                yield "running"


def measure(own: Namespace, watched: Watched, starts: TaskStarts, pods: int) -> dict[str, dict[str, list[float]]]:
    """``claim`` or ``plain`` -> stage -> milliseconds of each of so many pods, one after the other and in turn."""
    own.template("one")
    found: dict[str, dict[str, list[float]]] = {kind: {stage: [] for stage in STAGES} for kind in ("claim", "plain")}
    for number in range(pods + 1):
        for kind, figures in found.items():
            name, claims = f"{kind}-{number}", ("gpu",) if kind == "claim" else ()
            container = Container("main", "exec sleep 2147483647", claims)
            created = time.time()
            own.pod(name, template="one" if claims else None, containers=[container])
            watched.when(name, "running")
            deleted = time.time()
            own.api.delete("pods", own.name, name)
            gone = watched.when(name, "gone")
            if number > 0:  # the first one of each kind finds nothing in any cache
                figures["scheduled"].append((watched.when(name, "scheduled") - created) * 1e3)
                figures["started"].append((starts.of(watched.container(name)) - created) * 1e3)
                figures["gone"].append((gone - deleted) * 1e3)
    return found


@contextlib.contextmanager
def _node(version: str) -> Iterator[tuple[Layout, Api]]:
    """A cluster with an agent whose GPUs are published; one that runs already is left running."""
    layout = Layout.default()
    ran_before = lifecycle.is_running(layout)
    lifecycle.up(layout, version, owner=None if ran_before else os.getpid())
    agent = Agent(layout)
    api = Api(layout)
    try:
        node = agent.mock_root
        mock = MockNode.open(node) if (node / "usr").exists() else MockNode.create(node, "dgx-h100")
        agent.ensure()
        agent.wait_published(api, len(mock.profile.gpus))
        yield layout, api
    finally:
        api.close()
        if not ran_before:
            agent.stop()
            lifecycle.down(layout)


def _of_kubelet(api: Api) -> tuple[float, float]:
    return kubelet_prepares(line.decode() for line in api.lines(path("nodes", None, NODE_NAME, "proxy/metrics"), 30))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pods", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--pods", type=int, default=20, metavar="N", help="pods of each kind (default: 20)")
    add("--k8s", default=binaries.DEFAULT_VERSION, metavar="VERSION", help="of Kubernetes (default: %(default)s)")
    add("--awake", action="store_true", help="keep CPUs that have nothing to do from sleeping, as on a node with work")
    options = parser.parse_args()
    turning = cpus_awake() if options.awake else contextlib.nullcontext()
    with (
        turning,
        _node(options.k8s) as (layout, api),
        temporary_namespace(api, "bench") as own,
        contextlib.closing(TaskStarts(layout)) as starts,
        contextlib.closing(Watched(api, own.name)) as watched,
    ):
        before = _of_kubelet(api)
        measured = measure(own, watched, starts, options.pods)
        after = _of_kubelet(api)
    print(pods_table(measured, (after[0] - before[0]) / (after[1] - before[1]) * 1e3))
    print(f"\n{options.pods} pods of each kind, Kubernetes {options.k8s}, {os.cpu_count()} CPUs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
