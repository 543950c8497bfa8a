"""The publisher through long and bad times: an hour without a server, storms, proxies that break, crashes in between.

Time passes faster here: an hour in a few seconds, by a clock that the publisher waits with. What counts is how often
the server is asked in a minute of that time, and that the end is right.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.client import ApiUnreachableError, KubeClient
from kubeletplugin.clock import Clock
from kubeletplugin.publisher import Publisher
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.proxy import Proxy
from kubeletplugin.testing.store import Happening

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = "node-a/gpu.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class FastClock(Clock):
    """``scale`` seconds pass in one; and time can jump, as after a machine was suspended."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.offset = 0.0

    def monotonic(self) -> float:
        return time.monotonic() * self.scale + self.offset

    def wait(self, event: threading.Event, seconds: float) -> bool:
        end = self.monotonic() + seconds
        while (left := end - self.monotonic()) > 0 and not event.is_set():
            event.wait(min(left / self.scale, 0.02))  # looked at now and then, in case of a jump
        return event.is_set()

    def wait_changed(self, condition: threading.Condition, seconds: float | None) -> None:
        condition.wait(None if seconds is None else min(seconds / self.scale, 0.02))

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds / self.scale)


class Line:
    """A client whose line can be cut. Notes the minute of each request."""

    def __init__(self, client: KubeClient, clock: FastClock) -> None:
        self.client, self.clock = client, clock
        self.cut = False
        self.asked: list[float] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.client, name)
        if name not in ("get", "create", "update", "delete", "watch"):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            self.asked.append(self.clock.monotonic())
            if self.cut:
                raise ApiUnreachableError("the line is cut")
            return attribute(*args, **options)

        return call

    def per_minute(self, since: float) -> list[int]:
        minutes = Counter(int((at - since) // 60) for at in self.asked if at >= since)
        # A machine under load lets minutes pass without a request; they count all the same.
        last = int((self.clock.monotonic() - since) // 60)
        return [minutes[minute] for minute in range(max(last, max(minutes, default=0)) + 1)]


def content(*names: str, **fields: Any) -> Slice:
    return Slice(tuple({"name": name, **fields} for name in names))


def pools(*slices: Slice, **others: tuple[Slice, ...]) -> DriverResources:
    return DriverResources({POOL: Pool(slices), **{name: Pool(more) for name, more in others.items()}})


@pytest.fixture
def clock() -> FastClock:
    return FastClock(1200.0)


@pytest.fixture
def line(bench: Any, clock: FastClock) -> Iterator[Line]:
    line = Line(bench.server.client(), clock)
    yield line
    line.cut = False


def test_an_hour_without_a_server_costs_a_few_requests_a_minute_and_ends_well(
    bench: Any, line: Line, clock: FastClock
) -> None:
    publisher = bench.publisher(line, clock=clock)
    publisher.update(pools(content("gpu-0"), second=(content("nic-0"),)))
    assert publisher.synced(10)
    line.cut = True
    bench.server.faults.close_watches()
    began = clock.monotonic()
    for number in range(12):
        publisher.update(pools(content(f"gpu-{number}"), second=(content(f"nic-{number}"),)))
        clock.sleep(300)
    minutes = line.per_minute(began)
    assert len(minutes) >= 58
    # A change makes each of two pools try anew, and three loops come by at least every 15 to 30 s.
    assert max(minutes) <= 30
    assert sum(minutes[:60]) / 60 <= 14
    line.cut = False
    assert publisher.synced(10)
    assert bench.devices() == [["gpu-11"]]
    assert bench.devices("second") == [["nic-11"]]


def test_a_server_that_was_never_there_is_asked_now_and_then(bench: Any, line: Line, clock: FastClock) -> None:
    line.cut = True
    began = clock.monotonic()
    publisher = bench.publisher(line, clock=clock)
    publisher.update(pools(content("gpu-0")))
    clock.sleep(1200)
    minutes = line.per_minute(began)
    assert max(minutes) <= 12
    assert sum(minutes[2:]) / len(minutes[2:]) <= 6
    line.cut = False
    assert publisher.synced(10)


def test_a_storm_of_410_is_a_few_lists_a_minute(bench: Any, line: Line, clock: FastClock) -> None:
    publisher = bench.publisher(line, clock=clock)
    bench.server.faults.fail(410, "Expired", methods=("GET",), path="watch=true", times=None)
    began = clock.monotonic()
    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)
    clock.sleep(1200)
    minutes = line.per_minute(began)
    # Each round is a list, the server's version and a watch.
    assert max(minutes) <= 36
    assert sum(minutes[2:]) / len(minutes[2:]) <= 15
    bench.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE}"})
    bench.eventually(lambda: bench.devices() == [["gpu-0"]])


def test_a_storm_of_500_for_everything_is_bounded_too(bench: Any, line: Line, clock: FastClock) -> None:
    publisher = bench.publisher(line, clock=clock)
    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)
    bench.server.faults.fail(500, "InternalError", times=None)
    began = clock.monotonic()
    bench.server.faults.close_watches()
    publisher.update(pools(content("gpu-1")))
    clock.sleep(900)
    assert max(line.per_minute(began)) <= 30
    bench.server.faults.clear()
    assert publisher.synced(10)
    assert bench.devices() == [["gpu-1"]]


def test_a_jump_of_the_clock_is_no_storm(bench: Any, line: Line) -> None:
    clock = FastClock(1.0)
    line.clock = clock
    publisher = bench.publisher(line, clock=clock)
    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)
    before = len(line.asked)
    clock.offset += 86_400.0
    publisher.update(pools(content("gpu-0"), content("gpu-1")))
    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"], ["gpu-1"]]
    assert len(line.asked) - before <= 6, "two dry runs, the Node, two writes"
    clock.offset -= 3600.0  # no monotonic clock does this; a virtual machine's may
    publisher.update(pools(content("gpu-2")))
    assert publisher.synced(10)


def test_slices_follow_a_node_that_comes_and_goes(bench: Any, clock: FastClock) -> None:
    publisher = bench.publisher(clock=clock)
    publisher.update(pools(content("gpu-0"), second=(content("nic-0"), content("nic-1"))))
    for _ in range(3):
        assert publisher.synced(10)
        bench.client.delete(f"/api/v1/nodes/{NODE}")
        bench.eventually(lambda: not bench.stored())
        uid = bench.make_node()
        bench.eventually(lambda: bench.devices() == [["gpu-0"]] and bench.devices("second") == [["nic-0"], ["nic-1"]])
        owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in bench.client.get(SLICES)["items"]}
        assert owners == {uid}


def test_a_slice_that_was_made_without_an_answer_is_not_made_again(bench: Any) -> None:
    publisher = bench.publisher()
    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)
    bench.server.faults.hold_watches()  # only a list can tell
    for number in (1, 2, 3):
        bench.server.faults.lose_answers(methods=("POST",), times=1)
        publisher.update(pools(*(content(f"gpu-{index}") for index in range(number + 1))))
        assert publisher.synced(10)
        assert bench.devices() == [[f"gpu-{index}"] for index in range(number + 1)]
        assert len(bench.observer.failures) == number, "each answer was lost once"
    bench.server.faults.clear()


# Proxies


def through(bench: Any, proxy: Proxy, clock: FastClock) -> Publisher:
    client = KubeClient(proxy.url, rate=1000.0, burst=1000)
    publisher: Publisher = bench.publisher(client, clock=clock)
    return publisher


def test_a_proxy_that_closes_watches_at_once_is_lived_with(bench: Any) -> None:
    clock = FastClock(40.0)
    with Proxy(bench.server.url, closes_watches=True) as proxy:
        publisher = through(bench, proxy, clock)
        publisher.update(pools(content("gpu-0")))
        assert publisher.synced(10)
        seen, began = len(bench.server.requests), clock.monotonic()
        clock.sleep(90)
        bench.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE}"})
        bench.eventually(lambda: bench.devices() == [["gpu-0"]])
        asked = bench.server.requests[seen:]
        minutes = (clock.monotonic() - began) / 60
        watches = [one for one in asked if one.query.get("watch")]
        assert len(watches) <= 10 + 5 * minutes
        assert proxy.broken >= 3
        publisher.stop()


def test_connections_that_break_at_random_are_lived_with(bench: Any) -> None:
    """A short time by default; ``GPUDRA_PROXY_SECONDS=300`` for a long one."""
    seconds = float(os.environ.get("GPUDRA_PROXY_SECONDS", "4"))
    clock = FastClock(15.0)
    rng = random.Random(7)
    end = time.monotonic() + seconds
    with Proxy.breaking(bench.server.url, rng, mean_seconds=0.1) as proxy:
        publisher = through(bench, proxy, clock)
        changes, began = 0, clock.monotonic()
        while time.monotonic() < end:
            names = [f"gpu-{rng.randrange(9)}-{number}" for number in range(rng.randrange(1, 4))]
            publisher.update(pools(*(content(name) for name in names)))
            changes += 1
            stored = bench.client.get(SLICES)["items"]
            if stored and rng.random() < 0.2:
                bench.client.delete(f"{SLICES}/{rng.choice(stored)['metadata']['name']}")
            threading.Event().wait(0.15)
        minutes = (clock.monotonic() - began) / 60
        asked = [one for one in bench.server.requests if one.method != "GET" or "watch" in one.query]
        # A change of up to three slices is a rehearsal and a write of each, and may have to be tried again.
        assert len(asked) <= 15 * changes + 20 * minutes
        assert proxy.broken >= 5
        proxy.heal()
        publisher.update(pools(content("last-0"), content("last-1")))
        assert publisher.synced(30)
        assert bench.devices() == [["last-0"], ["last-1"]]
        assert len(bench.generations()) == 1
        publisher.stop()


# Whatever happens, at no moment may the scheduler see what is not so.


KEPT = ("keep-0", "keep-1", "keep-2")
POOL_NAMES = ("one", "two")

layouts = st.tuples(
    st.integers(1, 3),
    st.lists(st.sampled_from("abcdef"), max_size=5, unique=True),
    st.randoms(use_true_random=False),
)
wishes = st.tuples(layouts, layouts).map(lambda both: ("want", both))
steps = st.lists(
    st.one_of(
        wishes,
        st.sampled_from([("restart", None), ("break watch", None), ("expire", None), ("lag", None), ("no lag", None)]),
        st.tuples(
            st.sampled_from(["fail", "lose"]), st.tuples(st.sampled_from(["POST", "PUT", "DELETE"]), st.integers(1, 3))
        ),
    ),
    min_size=2,
    max_size=9,
)


def resources(both: Any) -> DriverResources:
    """Every pool has the kept devices in each of its states, somewhere."""
    wanted = {}
    for name, (count, extra, rng) in zip(POOL_NAMES, both, strict=True):
        devices: list[list[str]] = [[] for _ in range(count)]
        for device in (*KEPT, *extra):
            devices[rng.randrange(count)].append(device)
        wanted[name] = Pool(tuple(content(*names) for names in devices))
    return DriverResources(wanted)


@settings(
    max_examples=int(os.environ.get("GPUDRA_EXAMPLES", "20")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=steps, last=st.tuples(layouts, layouts))
def test_no_device_is_seen_twice_and_none_that_stays_is_ever_missing(steps: Any, last: Any) -> None:
    with EmbeddedApiServer() as server:
        history = record(server)
        server.client().create("/api/v1/nodes", {"metadata": {"name": NODE}})
        publisher = start(server)
        try:
            for kind, what in steps:
                if kind == "want":
                    publisher.update(resources(what))
                    publisher.synced(0.02)  # sometimes done, sometimes in the middle of it
                elif kind == "restart":
                    publisher.stop()
                    publisher = start(server)
                else:
                    disturb(server, kind, what)
            server.faults.clear()
            wanted = resources(last)
            publisher.update(wanted)
            assert publisher.synced(20)
        finally:
            publisher.stop()
        moments = replay(history)
        assert moments[-1] == {
            name: [[device["name"] for device in piece.devices] for piece in pool.slices]
            for name, pool in wanted.pools.items()
        }


def start(server: EmbeddedApiServer) -> Publisher:
    publisher = Publisher(
        server.client(), driver_name=DRIVER, node_name=NODE, repair_delay=0.005, clock=FastClock(100.0)
    )
    publisher.start()
    return publisher


def disturb(server: EmbeddedApiServer, kind: str, what: Any) -> None:
    if kind == "fail":
        method, times = what
        server.faults.fail(500, "InternalError", methods=(method,), times=times)
    elif kind == "lose":
        method, times = what
        server.faults.lose_answers(methods=(method,), times=times)
    elif kind == "break watch":
        server.faults.close_watches()
    elif kind == "expire":
        server.faults.expire_watches()
    elif kind == "lag":
        server.faults.hold_watches()
    else:
        server.store.release_watches()


def record(server: EmbeddedApiServer) -> list[Happening]:
    """All that happens in the store from now on; its own history is forgotten now and then."""
    history: list[Happening] = []
    keep = server.store._record

    def both(happening: Happening) -> None:
        history.append(happening)
        keep(happening)

    server.store._record = both  # type: ignore[method-assign]
    return history


def replay(history: list[Happening]) -> list[dict[str, list[list[str]]]]:
    """The complete pools of every state that the store was in; each state is checked."""
    slices: dict[str, dict[str, Any]] = {}
    moments: list[dict[str, list[list[str]]]] = []
    for happening in history:
        if not happening.key.collection.endswith("resourceslices"):
            continue
        if happening.after is None:
            del slices[happening.key.name]
        else:
            slices[happening.key.name] = happening.after
        moments.append(look(slices))
    return moments


def look(slices: dict[str, dict[str, Any]]) -> dict[str, list[list[str]]]:
    """The complete pools as a scheduler sees them: the highest generation, if all of its slices are there."""
    seen: dict[str, list[list[str]]] = {}
    specs = [slices[name]["spec"] for name in sorted(slices)]
    for pool in {spec["pool"]["name"] for spec in specs}:
        mine = [spec for spec in specs if spec["pool"]["name"] == pool]
        for generation in {spec["pool"]["generation"] for spec in mine}:
            names = [
                device["name"]
                for spec in mine
                if spec["pool"]["generation"] == generation
                for device in spec.get("devices") or ()
            ]
            assert len(names) == len(set(names)), f"seen twice in generation {generation}: {names}"
        highest = max(spec["pool"]["generation"] for spec in mine)
        newest = [spec for spec in mine if spec["pool"]["generation"] == highest]
        if {spec["pool"]["resourceSliceCount"] for spec in newest} == {len(newest)}:
            seen[pool] = [[device["name"] for device in spec.get("devices") or ()] for spec in newest]
            present = {name for names in seen[pool] for name in names}
            assert present.issuperset(KEPT), f"missing from a complete pool: {set(KEPT) - present}"
    return seen
