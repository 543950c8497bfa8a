"""What the records add up to: the present state of the node, as a fold over the journal.

Claims and devices are plain JSON values, so that a record of a later version is carried, not refused. A ``state``
record replaces everything; the others change one thing each, and doing so twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from driver.journal.records import ClaimId, Kind, Record


class JournalState(msgspec.Struct, omit_defaults=True):
    """The state at one moment. Not safe for threads; ``copy`` gives one of its own."""

    claims: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Claim UID -> ``namespace``, ``name``, ``phase``, ``devices`` (names), ``shares`` (``<device>/<share id>``)."""
    devices: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Device name -> ``state``, ``health``, ``cause``; what is not known is left out."""
    taints: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Device name -> taint key -> ``value:effect``."""
    partitions: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Device name of a GPU -> ``<GPU instance>/<compute instance>`` -> UUID of the MIG partition."""
    driver: dict[str, Any] = msgspec.field(default_factory=dict)
    """``available``, ``version``."""
    agent: dict[str, Any] = msgspec.field(default_factory=dict)
    """``running``, ``version``, ``registered``, ``settings`` (those that are not the default)."""

    def copy(self) -> JournalState:
        """A state that shares nothing with this one."""
        return msgspec.convert(msgspec.to_builtins(self), JournalState)

    def as_data(self) -> dict[str, Any]:
        """As the data of a ``state`` record."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def replay(records: Iterable[Record]) -> JournalState:
    """The state after the records; all of a journal's, or from any ``state`` record on."""
    state = JournalState()
    for record in records:
        apply(state, record)
    return state


def apply(state: JournalState, record: Record) -> None:
    """Let one record happen. Unknown kinds and data of an unexpected shape change nothing."""
    change = _CHANGES.get(record.kind)
    if change is not None:
        change(state, record)


def _state(state: JournalState, record: Record) -> None:
    if "cut" in record.data:  # larger than any line may be: what was known still stands
        return
    try:
        new = msgspec.convert(dict(record.data), JournalState)
    except msgspec.ValidationError:
        return
    for field in msgspec.structs.fields(JournalState):
        setattr(state, field.name, getattr(new, field.name))


def _claim(state: JournalState, record: Record) -> None:
    """``phase`` is that of the checkpoint; absent: the claim is no longer there."""
    if record.claim is None or "step" in record.data:
        return
    phase = record.data.get("phase")
    if phase is None:
        state.claims.pop(record.claim.uid, None)
        return
    known = state.claims.get(record.claim.uid, {})
    devices = record.data.get("devices")
    if not isinstance(devices, list):
        devices = known.get("devices", [])
    shares = record.data.get("shares")
    state.claims[record.claim.uid] = claim_entry(
        record.claim, str(phase), devices, shares if isinstance(shares, list) else ()
    )


def claim_entry(claim: ClaimId, phase: str, devices: Iterable[Any], shares: Iterable[Any] = ()) -> dict[str, Any]:
    """A claim as the state holds it; ``shares`` only where there are any."""
    entry = {"namespace": claim.namespace, "name": claim.name, "phase": phase, "devices": list(devices)}
    held = list(shares)
    return {**entry, "shares": held} if held else entry


def _device(state: JournalState, record: Record) -> None:
    if record.device is None:
        return
    entry = state.devices.setdefault(record.device, {})
    entry["state"] = record.data.get("after")
    if entry["state"] is None:
        del entry["state"]  # what is said of its health still holds: a claim may have it
    if not entry:
        del state.devices[record.device]


def _health(state: JournalState, record: Record) -> None:
    if record.device is None:
        return
    entry = state.devices.setdefault(record.device, {})
    entry.pop("cause", None)
    entry.pop("health", None)
    after = record.data.get("after")
    if after is None:
        if not entry:
            del state.devices[record.device]
        return
    entry["health"] = after
    if cause := record.data.get("cause"):
        entry["cause"] = cause


def _taint(state: JournalState, record: Record) -> None:
    key = record.data.get("key")
    if record.device is None or not isinstance(key, str):
        return
    after = record.data.get("after")
    taints = state.taints.setdefault(record.device, {})
    if isinstance(after, str):
        taints[key] = after
    else:
        taints.pop(key, None)
    if not taints:
        del state.taints[record.device]


def _created(state: JournalState, record: Record) -> None:
    if record.device is not None and isinstance(record.data.get("instance"), str):
        parts = state.partitions.setdefault(record.device, {})
        parts[record.data["instance"]] = str(record.data.get("uuid"))


def _destroyed(state: JournalState, record: Record) -> None:
    parts = state.partitions.get(record.device or "", {})
    parts.pop(str(record.data.get("instance")), None)
    if not parts:
        state.partitions.pop(record.device or "", None)


def _driver(state: JournalState, record: Record) -> None:
    state.driver = {key: record.data[key] for key in ("available", "version") if key in record.data}


def _start(state: JournalState, record: Record) -> None:
    state.agent = {**state.agent, "running": True, "registered": False, "version": record.data.get("version")}


def _stop(state: JournalState, _record: Record) -> None:
    state.agent = {**state.agent, "running": False, "registered": False}


def _register(state: JournalState, record: Record) -> None:
    state.agent = {**state.agent, "registered": record.data.get("ok") is True}


def _unregister(state: JournalState, _record: Record) -> None:
    state.agent = {**state.agent, "registered": False}


def _settings(state: JournalState, record: Record) -> None:
    after = record.data.get("after")
    state.agent = {**state.agent, "settings": dict(after) if isinstance(after, Mapping) else {}}


_CHANGES: Mapping[str, Callable[[JournalState, Record], None]] = {
    Kind.STATE: _state,
    Kind.PREPARE: _claim,
    Kind.UNPREPARE: _claim,
    Kind.DEVICE: _device,
    Kind.HEALTH: _health,
    Kind.TAINT: _taint,
    Kind.DRIVER: _driver,
    Kind.MIG_CREATE: _created,
    Kind.MIG_DESTROY: _destroyed,
    Kind.AGENT_START: _start,
    Kind.AGENT_STOP: _stop,
    Kind.REGISTER: _register,
    Kind.UNREGISTER: _unregister,
    Kind.SETTINGS: _settings,
}
