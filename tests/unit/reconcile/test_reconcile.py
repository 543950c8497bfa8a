"""Claims that are gone are unprepared, and no others: what is unknown is not gone."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from driver.prepare import ClaimError, ClaimRecord, ClaimRef, DeviceRecord, Phase, Reason
from driver.reconcile import Reconciler, Swept, UnknownError, why_gone
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.testing.apiserver import EmbeddedApiServer

DRIVER, POOL = "gpu.nvidia.com", "node-a/gpu.nvidia.com"
GRACE = 60.0
WAIT = 20.0


def ref(name: str = "c", uid: str = "uid-1", namespace: str = "ns") -> ClaimRef:
    return ClaimRef(namespace, name, uid)


def record(ref: ClaimRef, phase: Phase = Phase.PREPARED) -> ClaimRecord:
    return ClaimRecord(ref, phase, (DeviceRecord("r", POOL, "gpu-0", None, False, "0000:01:00.0", "GPU-1", "cdi"),))


def claim(uid: str = "uid-1", **result: str) -> dict[str, Any]:
    one = {"request": "r", "driver": DRIVER, "pool": POOL, "device": "gpu-0", **result}
    return {
        "kind": "ResourceClaim",
        "metadata": {"uid": uid},
        "status": {"allocation": {"devices": {"results": [one]}}, "reservedFor": []},
    }


def missing(name: str = "c") -> ApiError:
    return ApiError(404, "NotFound", "not found", {"kind": "resourceclaims", "name": name})


class World:
    """An API server, the checkpoint and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: dict[str, dict[str, Any] | Exception] = {}
        self.records: list[ClaimRecord] = [record(ref())]
        self.unprepared: list[str] = []
        self.errors: dict[str, ClaimError] = {}
        self.told: list[Swept] = []
        self.asked = threading.Event()
        self.gets: list[tuple[str, bool]] = []
        """(claim's name, from the server's memory), and of each unprepared one (UID, False)."""
        self.in_use: str | None = None
        self.reconciler = self.make()

    def make(self, **options: float) -> Reconciler:
        return Reconciler(
            self,
            lambda: tuple(self.records),
            self.unprepare,
            driver_name=DRIVER,
            pool_name=POOL,
            told=self.told.append,
            held=lambda _ref: self.in_use,
            clock=lambda: self.now,
            **{"period": 300.0, "grace": GRACE, **options},
        )

    def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> dict[str, Any]:
        assert timeout is not None
        self.asked.set()
        name = path.rpartition("/")[2]
        self.gets.append((name, query == {"resourceVersion": "0"}))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        for one in refs:
            self.gets.append((one.uid, False))
            if one.uid not in self.errors:
                self.unprepared.append(one.uid)
                self.records = [record for record in self.records if record.ref.uid != one.uid]
        return {one.uid: self.errors.get(one.uid) for one in refs}

    def looks(self, *times: float) -> None:
        for seconds in times:
            self.now += seconds
            self.reconciler.look()


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.bug("B55")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (missing(), "deleted"),
        (claim("uid-2"), "replaced"),
        ({**claim(), "status": {}}, "deallocated"),
        (claim(pool="node-b/gpu.nvidia.com"), "deallocated"),
        (claim(driver="other.example.com"), "deallocated"),
    ],
)
def test_a_claim_that_is_gone_is_unprepared_after_the_grace(world: World, answer: Any, why: str) -> None:
    world.answers["c"] = answer
    world.looks(0, 30)
    assert world.unprepared == [], "the kubelet's own Unprepare goes first"
    world.looks(30)
    assert world.unprepared == ["uid-1"]
    assert [(one.why, one.error) for one in world.told] == [(why, None)]


def test_a_claim_that_is_still_there_stays(world: World) -> None:
    world.answers["c"] = claim()
    world.looks(0, 100, 100)
    assert world.unprepared == []


@pytest.mark.parametrize(
    "answer",
    [
        ApiUnreachableError("refused"),
        CredentialsError("no token"),
        ApiError(500, "InternalError", "etcd"),
        ApiError(403, "Forbidden", "no"),
        ApiError(401, "Unauthorized", "no"),
        ApiError(429, "TooManyRequests", "slow down"),
        ApiError(404, "Not Found", "a proxy's page"),
        ApiError(404, "NotFound", "no such API", {}),
        ApiError(404, "NotFound", "another thing", {"kind": "namespaces", "name": "ns"}),
        {"kind": "Status", "metadata": {}},
        {},
    ],
)
def test_what_cannot_be_found_out_is_not_gone(world: World, answer: Any) -> None:
    world.answers["c"] = answer
    world.looks(0, 100, 100)
    assert world.unprepared == []


@pytest.mark.bug("B131")
def test_a_record_without_a_name_or_with_a_hostile_one_is_not_asked_about(world: World) -> None:
    world.records = [record(ref("", "uid-1", "")), record(ref("../../pods/x", "uid-2")), record(ref("c", "a/b"))]
    world.looks(0, 100)
    assert not world.asked.is_set()
    assert world.unprepared == []


def test_an_api_server_that_is_away_in_between_neither_hurries_nor_forgets(world: World) -> None:
    world.answers["c"] = missing()
    world.looks(0)
    world.answers["c"] = ApiUnreachableError("refused")
    world.looks(50, 50)
    assert world.unprepared == []
    world.answers["c"] = missing()
    world.looks(10)
    assert world.unprepared == ["uid-1"]


def test_one_that_came_back_counts_anew(world: World) -> None:
    world.answers["c"] = {**claim(), "status": {}}
    world.looks(0)
    world.answers["c"] = claim()
    world.looks(100)
    world.answers["c"] = {**claim(), "status": {}}
    world.looks(1)
    assert world.unprepared == []


def test_one_that_cannot_be_unprepared_is_tried_again_and_spoils_no_other(world: World) -> None:
    world.records.append(record(ref("d", "uid-2"), Phase.UNPREPARING))
    world.answers |= {"c": missing(), "d": missing("d")}
    world.errors["uid-1"] = ClaimError("held by a process", Reason.BUSY)
    world.looks(0, 100)
    assert world.unprepared == ["uid-2"]
    del world.errors["uid-1"]
    world.looks(1)
    assert world.unprepared == ["uid-2", "uid-1"]
    assert [one.error for one in world.told] == ["held by a process", None, None]


@pytest.mark.bug("B108")
def test_the_thread_survives_a_fault_and_ends_when_told(world: World) -> None:
    failed = threading.Event()
    calls: list[int] = []
    records = world.records

    def once() -> Sequence[ClaimRecord]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault of ours")
        failed.set()
        return records

    world.answers["c"] = claim()
    reconciler = Reconciler(world, once, world.unprepare, driver_name=DRIVER, pool_name=POOL, period=0.01)
    reconciler.start()
    assert failed.wait(WAIT)
    reconciler.stop(WAIT)
    assert not reconciler._thread.is_alive()


def test_a_real_server_says_of_a_missing_claim_what_is_understood() -> None:
    with EmbeddedApiServer() as server:
        client = server.client()
        assert why_gone(client, ref("nobody"), DRIVER, POOL) == "deleted"
    with pytest.raises(UnknownError):
        why_gone(client, ref("nobody"), DRIVER, POOL)


def test_each_claim_is_unprepared_right_behind_an_answer_that_is_not_from_memory(world: World) -> None:
    world.records.append(record(ref("d", "uid-2")))
    world.answers |= {"c": missing(), "d": missing("d")}
    world.looks(0, 100)
    assert world.gets == [("c", True), ("d", True), ("c", False), ("uid-1", False), ("d", False), ("uid-2", False)]


@pytest.mark.bug("B102")
def test_a_claim_whose_gpu_still_computes_keeps_it_and_that_is_said_once(world: World) -> None:
    world.answers["c"] = missing()
    world.in_use = "device gpu-0 is still at work"
    world.looks(0, 100, 100, 100)
    assert world.unprepared == []
    assert [one.error for one in world.told] == ["device gpu-0 is still at work"]
    world.in_use = None
    world.looks(100)
    assert world.unprepared == ["uid-1"]
    assert world.told[-1].error is None
