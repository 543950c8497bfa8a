"""What the bridge puts down, says in claims' statuses, and hands to containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from driver.bridge import AgentObserver, ClaimHandler
from driver.later import Later
from driver.metrics import Deferred
from driver.prepare import ClaimError, ClaimRecord, ClaimRef, DeviceRecord, Phase, PreparedDevice, Reason
from kubeletplugin import api

REF = api.ClaimRef("ns", "c", "uid-1")
OWN = ClaimRef("ns", "c", "uid-1")
DEVICE = PreparedDevice(("r",), "pool", "gpu-0", ("id",))
CONDITION = {"type": "Healthy", "status": "False"}


class Preparer:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.answer: Any = (DEVICE,)
        self.records: tuple[ClaimRecord, ...] = ()

    def prepare(self, claims: dict[str, object]) -> dict[str, Any]:
        if not isinstance(self.answer, ClaimError):
            device = DeviceRecord("r", "pool", "gpu-0", None, False, "0000:01:00.0", "GPU-1", "cdi")
            self.records = (ClaimRecord(OWN, Phase.PREPARED, (device,)),)
        return dict.fromkeys(claims, self.answer)

    def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, Any]:
        error = self.answer if isinstance(self.answer, ClaimError) else None
        if error is None:
            self.records = ()
        return {ref.uid: error for ref in refs}

    def prepared(self) -> tuple[ClaimRecord, ...]:
        return self.records


class Scribe:
    """Keeps the names of what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def began(self, ref: ClaimRef, operation: str, consumers: Sequence[str] = ()) -> None:
        self.told.append(("began", ref.uid, operation, *consumers))

    def failed(self, ref: ClaimRef, operation: str, *, reason: str, error: str, permanent: bool) -> None:
        self.told.append(("failed", ref.uid, operation, reason, error, permanent))

    def claims(self, seconds: dict[str, float]) -> None:
        self.told.append(("claims", *seconds))

    def registered(self, *, ok: bool, error: str) -> None:
        self.told.append(("registered", ok, error))

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        self.told.append(("published", pool, slices, writes))

    def refused(self, pool: str, status: int | None, message: str) -> None:
        self.told.append(("refused", pool, status, message))

    def dropped(self, pool: str, fields: Sequence[str], gates: Sequence[str]) -> None:
        self.told.append(("dropped", pool, *fields, *gates))


class Room:
    """A handler among stand-ins."""

    def __init__(self) -> None:
        self.preparer = Preparer()
        self.scribe = Scribe()
        self.said: list[api.DeviceStatus] = []
        later: Later[Any] = Later()
        later.attach(self.scribe)
        self.observer = AgentObserver(Deferred(), later)
        self.handler = ClaimHandler(
            self.preparer,  # type: ignore[arg-type] # a stand-in
            Deferred(),
            lambda _claim, devices: self.said.extend(devices),
            later,
            lambda device: CONDITION if device == "gpu-0" else None,
            lambda device: api.DeviceMetadata({"name": {"string": device}}),
        )

    def prepare(self) -> Any:
        return self.handler.prepare([api.Claim(REF, {})])["uid-1"]


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_claim_s_life_is_put_down(room: Room) -> None:
    room.prepare()
    room.handler.unprepare([REF])
    assert room.scribe.told == [
        ("began", "uid-1", "prepare"),
        ("claims", "uid-1"),
        ("began", "uid-1", "unprepare"),
        ("claims", "uid-1"),
    ]


def test_a_repeated_prepare_and_an_unprepare_of_nothing_begin_nothing(room: Room) -> None:
    room.prepare()
    room.scribe.told.clear()
    room.prepare()
    room.handler.unprepare([REF])
    room.scribe.told.clear()
    room.handler.unprepare([REF])
    assert room.scribe.told == [("claims", "uid-1")]


@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
def test_a_failure_is_put_down_with_its_reason(room: Room, operation: str) -> None:
    if operation == "unprepare":
        room.prepare()
    room.scribe.told.clear()
    room.preparer.answer = ClaimError("held", Reason.DEVICE_IN_USE)
    if operation == "prepare":
        room.prepare()
    else:
        room.handler.unprepare([REF])
    assert ("failed", "uid-1", operation, "DeviceInUse", "held", False) in room.scribe.told


def test_what_is_known_of_a_device_s_health_goes_into_the_claim_s_status(room: Room) -> None:
    room.prepare()
    assert [status.conditions for status in room.said] == [(CONDITION,)]


def test_containers_are_told_of_the_device(room: Room) -> None:
    (device,) = room.prepare()
    assert device.metadata == api.DeviceMetadata({"name": {"string": "gpu-0"}})


def test_what_the_library_tells_is_put_down(room: Room) -> None:
    room.observer.registered(ok=True, error="")
    room.observer.published("p", slices=1, writes=2)
    failure = api.PublishFailure("p", 422, "invalid", retryable=False)
    room.observer.publish_failed(failure)
    room.observer.publish_failed(failure)
    room.observer.publish_failed(api.PublishFailure("p", None, "away", retryable=True))
    room.observer.dropped(api.DroppedFields("p", 0, ("devices[0].taints",), ("DRADeviceTaints",)))
    assert room.scribe.told == [
        ("registered", True, ""),
        ("published", "p", 1, 2),
        ("refused", "p", 422, "invalid"),
        ("dropped", "p", "devices[0].taints", "DRADeviceTaints"),
    ], "a refusal is told once, an absence is no refusal"


def test_an_event_about_a_claim_names_it_and_waits_until_it_can_be_written(room: Room) -> None:
    events: list[tuple[Any, ...]] = []

    class Events:
        def record(self, *event: Any) -> None:
            events.append(event)

    room.observer.claim_event(OWN, "Warning", "DeviceUnhealthy", "before anybody can write it")
    assert events == []
    room.observer.attach(Events(), {"kind": "Node"})  # type: ignore[arg-type] # a stand-in
    room.observer.claim_event(OWN, "Warning", "DeviceUnhealthy", "gone")
    assert events[0][1:] == ("Warning", "DeviceUnhealthy", "before anybody can write it")
    (about, kind, reason, message) = events[1]
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == ("ResourceClaim", "ns", "c", "uid-1")
    assert (kind, reason, message) == ("Warning", "DeviceUnhealthy", "gone")
