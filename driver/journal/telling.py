"""A record as a line for people, and what they may ask for: devices, claims, kinds, times."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from driver.journal.records import Kind, Record

_DURATION = re.compile(r"\A([0-9]+)([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class QueryError(ValueError):
    """What was asked for cannot be understood; the message says what would be."""


class Query(msgspec.Struct, frozen=True):
    """Which records are wanted; empty parts want all."""

    devices: tuple[str, ...] = ()
    """Device names, with ``*`` for anything. A record about a claim counts for the devices it names."""
    claims: tuple[str, ...] = ()
    """``name``, ``namespace/name`` or a UID; ``*`` for anything. A record about a device counts for the claims that it
    names."""
    kinds: tuple[str, ...] = ()
    """Kinds; ``claim`` or ``claim.`` takes all below it."""
    since: datetime | None = None
    until: datetime | None = None

    def wants(self, record: Record) -> bool:
        """Whether a record is among those. A gap always is, within the times: it tells what may be missing."""
        return self._in_time(record) and (
            record.kind == Kind.GAP or (self._kind(record) and self._device(record) and self._claim(record))
        )

    def _in_time(self, record: Record) -> bool:
        if self.since is None and self.until is None:
            return True
        try:
            at = datetime.fromisoformat(record.wall)
        except ValueError:
            return True
        return (self.since is None or at >= self.since) and (self.until is None or at <= self.until)

    def _kind(self, record: Record) -> bool:
        return not self.kinds or kind_matches(record.kind, self.kinds)

    def _device(self, record: Record) -> bool:
        if not self.devices:
            return True
        named = record.data.get("devices")
        names = [record.device or "", *(str(one) for one in (named if isinstance(named, list) else ()))]
        return any(fnmatch.fnmatchcase(name, wanted) for name in names for wanted in self.devices)

    def _claim(self, record: Record) -> bool:
        if not self.claims:
            return True
        claim = record.claim
        names = [] if claim is None else [claim.name, f"{claim.namespace}/{claim.name}", claim.uid]
        hit = record.data.get("claims")
        for one in hit if isinstance(hit, list) else ():
            names += [str(one), str(one).rpartition("/")[2]]
        return any(fnmatch.fnmatchcase(name, wanted) for name in names for wanted in self.claims)


def kind_matches(kind: str, wanted: Iterable[str]) -> bool:
    """Whether a kind is one of those, or below one of them."""
    return any(kind == one or kind.startswith(one.rstrip(".") + ".") for one in wanted)


def parse_time(text: str, now: datetime) -> datetime:
    """A moment: RFC 3339 (a time without a zone is UTC), or how long ago, as ``30m``, ``2h``, ``3d``.

    Raises:
        QueryError: it is neither.
    """
    match = _DURATION.match(text)
    try:
        if match is not None:
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise QueryError(
            f"{text!r} is no time: write it as 2026-01-31T12:00:00Z, or how long ago as 90s, 30m, 2h or 3d"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def line(record: Record) -> str:
    """One line: when, what, about whom, and what happened."""
    when = record.wall.replace("T", " ").replace("Z", "")[:23]
    claim = f"claim {record.claim}" if record.claim is not None and record.claim.name else ""
    if record.claim is not None and not record.claim.name:
        claim = f"claim {record.claim.uid}"
    about = " ".join(part for part in (record.device or "", claim) if part)
    said = (_SAYINGS.get(record.kind) or _plain)(record.data)
    return printable(f"{when}  {record.kind:<16}  {about}{': ' if about and said else ''}{said}")


def printable(text: str) -> str:
    """Text in which nothing can steer a terminal: what is not printable is written as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _plain(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_word(value)}" for key, value in data.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_word, value)) or "none"
    if isinstance(value, Mapping):
        return "{" + _plain(value) + "}"
    return "none" if value is None else str(value)


def _change(data: Mapping[str, Any]) -> str:
    said = f"{_word(data.get('before'))} -> {_word(data.get('after'))}"
    why = data.get("cause"), data.get("message") or data.get("reason")
    hit = f" (claims {_word(data['claims'])})" if data.get("claims") else ""
    return ": ".join([said, *(str(part) for part in why if part)]) + hit


def _taint(data: Mapping[str, Any]) -> str:
    key, before, after = data.get("key"), data.get("before"), data.get("after")
    return f"{key} removed (was {before})" if after is None else f"{key}={after}"


def _claim(data: Mapping[str, Any]) -> str:
    if "step" in data:
        return str(data["step"]) + (f" for {_word(data['consumers'])}" if data.get("consumers") else "")
    phase = data.get("phase")
    said = "gone" if phase is None else str(phase)
    if devices := data.get("devices"):
        said += f" with {_word(devices)}"
    return said + (f" in {data['seconds']} s" if "seconds" in data else "")


def _error(data: Mapping[str, Any]) -> str:
    again = "permanent" if data.get("permanent") else "tried again"
    return f"{data.get('operation')} failed ({data.get('reason')}, {again}): {data.get('error')}"


def _driver(data: Mapping[str, Any]) -> str:
    if data.get("available"):
        return f"answers, version {data.get('version')}"
    return f"does not answer: {data.get('reason')}"


def _xid(data: Mapping[str, Any]) -> str:
    instance = f", GPU instance {data['gpuInstance']}" if "gpuInstance" in data else ""
    times = f", {data['count']} times" if "count" in data else ""
    return f"{data.get('message')} [{data.get('severity')}{instance}{times}]"


_GAPS = {
    "killed": "the agent ended without a word: its last records may be missing",
    "reboot": "the machine went down without a word from the agent: its last records may be missing",
    "torn": "a line was cut off",
    "damaged": "lines cannot be read",
    "dropped": "records were dropped",
    "clock": "the wall clock jumped",
    "events": "events of GPUs were not heard",
}


def _gap(data: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != "cause"}
    said = _GAPS.get(str(data.get("cause")), str(data.get("cause")))
    return f"{said} ({_plain(rest)})" if rest else said


def _state(data: Mapping[str, Any]) -> str:
    counts = ((key, len(value)) for key, value in data.items() if key in ("claims", "devices", "taints"))
    return ", ".join(f"{number} {key}" for key, number in counts if number) or "nothing known"


_SAYINGS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    Kind.HEALTH: _change,
    Kind.DEVICE: _change,
    Kind.TAINT: _taint,
    Kind.PREPARE: _claim,
    Kind.UNPREPARE: _claim,
    Kind.ERROR: _error,
    Kind.DRIVER: _driver,
    Kind.XID: _xid,
    Kind.GAP: _gap,
    Kind.STATE: _state,
}
