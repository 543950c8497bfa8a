"""Kubernetes' own cases of its slice controller (TestControllerSyncPool and its neighbours), run against the publisher.

The cases come as data, each under its upstream name (tests/data/upstream/slices.json, see hack/upstream_tables.py).
The server in these tests keeps whatever it is given, as Kubernetes' fake client does: some of the cases are no valid
objects.
"""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.api import JSON, DriverResources, Pool, Slice
from kubeletplugin.client import ApiError
from kubeletplugin.publisher.cache import SliceCache
from kubeletplugin.publisher.diff import differences, feature_gates
from kubeletplugin.publisher.naming import decode_index, encode_index, index_length
from kubeletplugin.publisher.plan import Owner, pool_problem
from kubeletplugin.publisher.scope import Scope
from kubeletplugin.publisher.writer import PoolWriter, UnsafeError
from kubeletplugin.testing.gates import GATES, drop_disabled_fields

CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/upstream/slices.json").read_text())
SLICES = "/apis/resource.k8s.io/v1/resourceslices/"

REFUSED = {
    "drop-partitionable-devices": (
        "upstream stores devices that share hardware without the counters which say so; here nothing is written"
    ),
}
"""Where we differ on purpose, and why."""


class Server:
    """Keeps objects as they come, without the fields of disabled gates."""

    def __init__(self, case: JSON) -> None:
        self.gates = GATES - frozenset(case["disabled"])
        self.uid = case["nodeUID"]
        self.objects: dict[str, JSON] = {}
        self.calls: list[str] = []
        for number, document in enumerate(case["existing"] or ()):
            name = document["metadata"]["name"]
            metadata = {"uid": name, **document["metadata"], "resourceVersion": str(number + 1)}
            self.objects[name] = {**document, "metadata": metadata}
        self.version = 100

    def get(self, path: str, **_: Any) -> JSON:
        assert path == "/api/v1/nodes/owner"
        return {"metadata": {"uid": self.uid}}

    def create(self, _path: str, body: JSON, *, query: Any = None) -> JSON:
        document = copy.deepcopy(body)
        drop_disabled_fields(document["spec"], None, self.gates)
        set_times(document["spec"])
        if query:
            return document
        name = f"{document['metadata']['generateName']}{self.calls.count('create')}"
        document["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        return self._store("create", document)

    def update(self, _path: str, body: JSON, *, query: Any = None) -> JSON:
        document = copy.deepcopy(body)
        drop_disabled_fields(document["spec"], self.objects[document["metadata"]["name"]]["spec"], self.gates)
        set_times(document["spec"])
        return document if query else self._store("update", document)

    def delete(self, path: str, *, uid: str, resource_version: str) -> JSON:
        name = path.removeprefix(SLICES)
        assert self.objects[name]["metadata"]["uid"] == uid
        assert self.objects[name]["metadata"]["resourceVersion"] == resource_version
        self.calls.append("delete")
        return self.objects.pop(name)

    def _store(self, call: str, document: JSON) -> JSON:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.objects[document["metadata"]["name"]] = document
        self.calls.append(call)
        return document

    def stats(self) -> JSON:
        return {f"Num{kind.title()}s": self.calls.count(kind) for kind in ("create", "update", "delete")}


def set_times(spec: JSON) -> None:
    """As the API server does for taints without one; the time is the one in upstream's cases."""
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", "2023-11-14T22:14:20Z")


def pool_of(case: JSON) -> Pool | None:
    """The wish of a case in this library's words."""
    wanted = (case["resources"].get("Pools") or {}).get("pool")
    if wanted is None:
        return None
    slices = tuple(
        Slice(
            devices=tuple(one["Devices"] or ()),
            shared_counters=tuple(one["SharedCounters"] or ()),
            per_device_node_selection=bool(one["PerDeviceNodeSelection"]),
            skip_node_operations=tuple(one["SkipNodeOperations"] or ()),
            partition_type_attribute=one["PartitionTypeAttribute"],
        )
        for one in wanted["Slices"]
    )
    return Pool(
        slices, wanted["Generation"] or None, node_selector=wanted["NodeSelector"], all_nodes=wanted["AllNodes"]
    )


def owner_of(case: JSON) -> Owner:
    if case["noOwner"]:
        return Owner("driver", "", "", kind="", bound=False)
    if not case["nodeUID"]:
        return Owner("driver", "owner", "", api_version="apps/v1", kind="Something", bound=False)
    return Owner("driver", "owner", "", bound=not case["reconcilePoolWithName"])


def writer_of(case: JSON, server: Server) -> PoolWriter:
    cache = SliceCache()
    cache.replace(list(server.objects.values()), "10")
    return PoolWriter(server, cache, owner=owner_of(case))  # type: ignore[arg-type] # as much of a client as is used


def shape(document: JSON) -> JSON:
    """What the cases speak of; how objects are numbered is the fake's affair."""
    name = document["metadata"]["name"]
    spec = {key: value for key, value in document["spec"].items() if value not in (None, [], {})}
    owners = [
        {key: value for key, value in ref.items() if value != ""}
        for ref in document["metadata"].get("ownerReferences") or ()
    ]
    return {"index": name.partition("-")[0], "owners": owners, "spec": spec}


@pytest.mark.parametrize("name", sorted(set(CASES) - set(REFUSED)))
def test_case_of_upstream(name: str) -> None:
    case = CASES[name]
    server, pool, gates = Server(case), pool_of(case), set[str]()
    writer = writer_of(case, server)

    problem = pool_problem(pool) if pool is not None else None
    kept: dict[int, Slice] = {}

    def stored(index: int, sent: JSON, answer: JSON) -> None:
        if missing := differences(sent, answer):
            gates.update(feature_gates(missing))
            kept[index] = Slice(
                tuple(answer.get("devices") or ()),
                tuple(answer.get("sharedCounters") or ()),
                bool(answer.get("perDeviceNodeSelection")),
                tuple(answer.get("skipNodeOperations") or ()),
            )

    if pool is None:
        writer.remove("pool")
    elif problem is None:
        writer.write("pool", pool, stored)

    assert server.stats() == case["stats"]
    expected = sorted((shape(one) for one in case["expected"] or ()), key=lambda one: str(one["index"]))
    found = sorted((shape(one) for one in server.objects.values()), key=lambda one: str(one["index"]))
    assert found == expected
    check_errors(case["errors"] or [], problem, gates)

    if pool is not None and problem is None:
        adopted = tuple(kept.get(index, one) for index, one in enumerate(pool.slices))
        again = Pool(adopted, pool.generation, node_selector=pool.node_selector, all_nodes=pool.all_nodes)
        writer.write("pool", again, stored)
        assert server.stats() == case["stats"], "the second round has nothing to do"


def check_errors(errors: list[str], problem: str | None, gates: set[str]) -> None:
    """Upstream's errors in our words: the same names and the same gates are in them."""
    if problem is not None:
        (error,) = errors
        quoted = {part for index, part in enumerate(error.split('"')) if index % 2} - {"pool"}
        assert all(part in problem for part in quoted), (problem, error)
    else:
        named = {gate.strip() for error in errors for gate in error.rpartition("disabled: ")[2].split(",")}
        assert gates == named


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_case_that_is_refused_on_purpose(name: str) -> None:
    case = CASES[name]
    server, pool = Server(case), pool_of(case)
    assert pool is not None
    with pytest.raises(UnsafeError, match="DRAPartitionableDevices"):
        writer_of(case, server).write("pool", pool, lambda *_: None)
    assert server.calls == [], REFUSED[name]


@pytest.mark.parametrize(
    ("count", "length"), [(-1, 5), (0, 5), (1, 5), (16, 5), (0x10000, 5), (0x100000, 5), (0x100001, 6), (0x1000000, 6)]
)
def test_get_index_length(count: int, length: int) -> None:
    assert index_length(count) == length


@pytest.mark.parametrize(
    ("index", "length", "text"),
    [
        (0, 5, "00000"),
        (1, 5, "00001"),
        (9, 5, "00009"),
        (10, 5, "0000a"),
        (26, 5, "0001a"),
        (27, 5, "0001b"),
        (35, 5, "00023"),
        (36, 5, "00024"),
        (100000, 5, "186a0"),
        (0, 6, "000000"),
        (1048576, 6, "100000"),
    ],
)
def test_encode_index(index: int, length: int, text: str) -> None:
    assert encode_index(index, length) == text


@pytest.mark.parametrize(
    ("name", "length", "index"),
    [
        ("00000-", 5, 0),
        ("00001-", 5, 1),
        ("00009-", 5, 9),
        ("0000a-", 5, 10),
        ("0001a-", 5, 26),
        ("0001b-", 5, 27),
        ("00023-", 5, 35),
        ("00024-", 5, 36),
        ("186a0-", 5, 100000),
        ("100000-", 6, 1048576),
        ("80000000-", 8, 2**31),
        ("00000-driver-owner-suffix", 5, 0),
        ("00001-driver-owner-suffix", 5, 1),
        ("00000", 5, None),
        ("0000g-", 5, None),
        ("-0001-", 5, None),
        ("00000-", 6, None),
        ("100000-", 5, None),
    ],
)
def test_decode_index(name: str, length: int, index: int | None) -> None:
    assert decode_index(name, length) == index


def test_decode_index_beyond_64_bits_is_a_number_here_that_no_pool_reaches() -> None:
    """Upstream refuses 8000000000000000 as an overflow; Python has no such limit, and no pool so many slices."""
    assert decode_index("8000000000000000-", 16) == 2**63


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (("pool", "other-pool"), "other-pool, pool"),
        (("other-pool",), "other-pool"),
        ((), None),
        (("pool",), None),
    ],
    ids=[
        "multiple pools returns error",
        "wrong pool only returns error",
        "empty pools succeeds",
        "single matching pool succeeds",
    ],
)
def test_controller_update_reconcile_pool_with_name_validation(pools: tuple[str, ...], said: str | None) -> None:
    scope = Scope(None, "driver", None, "pool")  # type: ignore[arg-type] # asks nobody here
    resources = DriverResources({name: Pool((Slice(),)) for name in pools})
    if said is None:
        scope.check(resources)
        return
    with pytest.raises(ValueError, match=f"pools {said} are to be published"):
        scope.check(resources)


class Selecting:
    """A client that notes the selectors, and refuses the pool's where it is told to."""

    def __init__(self, *, list_refused: bool = False, watch_refused: bool = False) -> None:
        self.list_refused, self.watch_refused = list_refused, watch_refused
        self.lists: list[bool] = []
        self.watches: list[bool] = []

    def get(self, _path: str, *, query: dict[str, str]) -> JSON:
        self.lists.append(self._by_pool(query, refused=self.list_refused, seen=self.lists))
        return {"items": [slice_in("pool-a"), slice_in("other-pool")], "metadata": {"resourceVersion": "7"}}

    def watch(self, _path: str, *, query: dict[str, str], stop: threading.Event, timeout_seconds: float) -> Any:
        from kubeletplugin.client import WatchEvent

        self.watches.append(self._by_pool(query, refused=self.watch_refused, seen=self.watches))
        yield WatchEvent("ADDED", slice_in("pool-a"))
        yield WatchEvent("ADDED", slice_in("other-pool"))
        yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "9"}})

    def _by_pool(self, query: dict[str, str], *, refused: bool, seen: list[bool]) -> bool:
        by_pool = "spec.pool.name=pool-a" in query["fieldSelector"]
        if by_pool and refused:
            seen.append(True)
            raise ApiError(400, "BadRequest", "field label not supported for ResourceSlice: spec.pool.name")
        return by_pool


def slice_in(pool: str) -> JSON:
    return {"metadata": {"name": f"in-{pool}", "resourceVersion": "5"}, "spec": {"pool": {"name": pool}}}


@pytest.mark.parametrize(
    ("client", "lists", "watches"),
    [
        (Selecting(), [True], [True]),
        (Selecting(list_refused=True), [True, False], [False]),
        (Selecting(watch_refused=True), [True], [True, False]),
    ],
    ids=["field-selector-supported", "field-selector-unsupported-for-list", "field-selector-unsupported-for-watch"],
)
def test_controller_pool_name_field_selector(client: Selecting, lists: list[bool], watches: list[bool]) -> None:
    scope = Scope(client, "test-driver", None, "pool-a")  # type: ignore[arg-type] # as much of a client as is used
    items, version = scope.list()
    assert [item["metadata"]["name"] for item in items] == ["in-pool-a"]
    events = list(scope.watch(version, threading.Event(), 1.0))
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"], "other pools' events are sorted out"
    assert (client.lists, client.watches) == (lists, watches)
