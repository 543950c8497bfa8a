"""Timestamps and durations as cel-go has them: nanoseconds, years 1 to 9999, zones by name or by offset.

What is written here follows Go's ``time`` package, which cel-go hands these values to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import EvaluationError, UnsupportedError
from .gotext import atoi, plain, quoted

SECOND: Final = 10**9
DAY: Final = 86400
_INT64: Final = 2**63
_FIRST: Final = -62135596800
"""0001-01-01T00:00:00Z in seconds of Unix time."""
_LAST: Final = 253402300799
"""9999-12-31T23:59:59Z."""
_ZONED: Final = (_FIRST + 2 * DAY, _LAST - 2 * DAY)
"""Where Python's calendar can look up a zone without leaving its own range."""
_FURTHEST: Final = 10**9
"""Minutes; an offset beyond it would not fit into Go's arithmetic, and nothing that has a meaning comes near."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time in nanoseconds."""

    nanos: int

    def __str__(self) -> str:
        return plain(_quotient(self.nanos, SECOND)) + "s"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time in nanoseconds since 1970; ``offset`` is that of the zone it is written in, in seconds."""

    nanos: int
    offset: int = field(default=0, compare=False)

    @property
    def seconds(self) -> int:
        """Whole seconds since 1970, rounded down."""
        return self.nanos // SECOND

    def __str__(self) -> str:
        here = Civil(self.seconds + self.offset)
        sign, year = "-" * (here.year < 0), abs(here.year)
        text = f"{sign}{year:04d}-{here.month:02d}-{here.day:02d}T{here.hour:02d}:{here.minute:02d}:{here.second:02d}"
        if part := self.nanos % SECOND:
            text += f".{part:09d}".rstrip("0")
        if not self.offset:
            return text + "Z"
        hours, minutes = divmod(abs(self.offset) // 60, 60)
        return f"{text}{'-' if self.offset < 0 else '+'}{hours:02d}:{minutes:02d}"


ZERO: Final = Timestamp(_FIRST * SECOND)
"""Go's time of nothing: the first moment of year 1."""


class Civil:
    """Seconds since 1970 as a date and time of the Gregorian calendar, in any year."""

    __slots__ = ("day", "days", "hour", "minute", "month", "second", "year")

    def __init__(self, seconds: int) -> None:
        self.days, rest = divmod(seconds, DAY)
        self.hour, rest = divmod(rest, 3600)
        self.minute, self.second = divmod(rest, 60)
        self.year, self.month, self.day = _date(self.days)

    @property
    def day_of_year(self) -> int:
        """From 0."""
        return self.days - days(self.year, 1, 1)

    @property
    def day_of_week(self) -> int:
        """Sunday is 0."""
        return (self.days + 4) % 7


def days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01, by counting years from March on, so that a leap day comes last."""
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719468


def _date(count: int) -> tuple[int, int, int]:
    era, rest = divmod(count + 719468, 146097)
    year = (rest - rest // 1460 + rest // 36524 - rest // 146096) // 365
    rest -= 365 * year + year // 4 - year // 100
    month = (5 * rest + 2) // 153
    day = rest - (153 * month + 2) // 5 + 1
    return era * 400 + year + (month >= 10), month + 3 if month < 10 else month - 9, day


def month_length(year: int, month: int) -> int:
    """How many days the month has."""
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return days(*following, 1) - days(year, month, 1)


_STAMP: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?(?:Z|([+-])(\d{2}):(\d{2}))", re.ASCII
)


def timestamp(text: str) -> Timestamp:
    """Read RFC 3339 as Go reads it: a one-digit hour, a comma before the fraction and 24:60 as offset will do.

    Raises:
        EvaluationError: no such time, or one outside the years 1 to 9999.
    """
    found = _STAMP.fullmatch(text)
    if found is None:
        raise _no_time()
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    far = found[8] is not None and (int(found[9]) > 24 or int(found[10]) > 60)
    if far or hour > 23 or max(minute, second) > 59 or not 1 <= month <= 12:
        raise _no_time()
    if not 1 <= day <= month_length(year, month):
        raise _no_time()
    offset = (int(found[9]) * 60 + int(found[10])) * 60 if found[8] else 0
    offset = -offset if found[8] == "-" else offset
    seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset
    return _in_range(seconds * SECOND + int((found[7] or "")[:9].ljust(9, "0")), offset)


def _no_time() -> EvaluationError:
    return EvaluationError("type conversion error from 'string' to 'google.protobuf.Timestamp'")


def from_seconds(seconds: int) -> Timestamp:
    """Seconds since 1970.

    Raises:
        EvaluationError: outside the years 1 to 9999.
    """
    return _in_range(seconds * SECOND, 0)


def moved(time: Timestamp, nanos: int) -> Timestamp:
    """The time so much later, written in the same zone.

    Raises:
        EvaluationError: that is outside the years 1 to 9999.
    """
    return _in_range(time.nanos + nanos, time.offset)


def _in_range(nanos: int, offset: int) -> Timestamp:
    if not _FIRST <= nanos // SECOND <= _LAST:
        raise EvaluationError("timestamp overflow")
    return Timestamp(nanos, offset)


def span(nanos: int) -> Duration:
    """A duration of so many nanoseconds.

    Raises:
        EvaluationError: more than 292 years.
    """
    if not -_INT64 <= nanos < _INT64:
        raise EvaluationError("integer overflow")
    return Duration(nanos)


_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND,
                 "h": 3600 * SECOND}  # fmt: skip
_PART: Final = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?([^.0-9]+)", re.ASCII)


def duration(text: str) -> Duration:
    """Read ``1h30m`` or ``-1.5s``.

    Raises:
        EvaluationError: not a duration, or more than 292 years.
    """
    body = text[1:] if text[:1] in ("+", "-") else text
    total, at = 0, 0
    while body != "0" and (at < len(body) or not body):
        found = _PART.match(body, at)
        if found is None or not (found[1] or found[3]) or found[4] not in _UNITS:
            raise EvaluationError(f"time: invalid duration {quoted(text)}")
        total += int(found[1] or 0) * _UNITS[found[4]] + _fraction(found[3] or "", _UNITS[found[4]])
        if total > _INT64:
            raise EvaluationError(f"time: invalid duration {quoted(text)}")
        at = found.end()
    if text.startswith("-"):
        return Duration(-total)
    if total == _INT64:
        raise EvaluationError(f"time: invalid duration {quoted(text)}")
    return Duration(total)


def _fraction(digits: str, unit: int) -> int:
    """The nanoseconds of ``.digits`` units, in floating point as Go counts them; what int64 cannot hold is dropped."""
    while digits and int(digits) >= _INT64:
        digits = digits[:-1]
    return int(float(int(digits)) * (float(unit) / float(10 ** len(digits)))) if digits else 0


def _quotient(nanos: int, unit: int) -> float:
    """So many units as a floating point number, whole units and rest apart."""
    whole, rest = divmod(abs(nanos), unit)
    value = float(whole) + float(rest) / float(unit)
    return -value if nanos < 0 else value


def units(unit: int) -> Callable[[Duration], int]:
    """What tells the whole units of a duration, rounded towards zero."""
    if unit == 10**6:
        return lambda value: (-1 if value.nanos < 0 else 1) * (abs(value.nanos) // unit)
    return lambda value: int(_quotient(value.nanos, unit))


def parts(time: Timestamp, zone: str = "UTC") -> Civil:
    """The date and time in a zone: a name of the time zone database, or an offset such as ``-08:00``.

    Raises:
        EvaluationError: no such zone.
        UnsupportedError: the scheduler's own zone ("Local"), or a machine without the database.
    """
    return Civil(time.seconds + _offset(zone, time.seconds))


def _offset(zone: str, seconds: int) -> int:
    if zone in ("", "UTC"):
        return 0
    hours, colon, minutes = zone.partition(":")
    if not colon:
        moment = datetime.fromtimestamp(min(max(seconds, _ZONED[0]), _ZONED[1]), UTC)
        offset = moment.astimezone(_zone(zone)).utcoffset()
        return int(offset.total_seconds()) if offset else 0
    whole, part = atoi(hours) * 60, atoi(minutes)
    if max(abs(whole), abs(part)) > _FURTHEST:
        raise UnsupportedError(f"the time zone {zone!r} is too far away")
    return (whole - part if zone.startswith("-") else whole + part) * 60


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    if name == "Local":
        raise UnsupportedError("the time zone 'Local' is the scheduler's own, which is not known here")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        if not _has_database():
            raise UnsupportedError(f"the time zone {name!r}: this machine has no time zone database") from error
        raise EvaluationError(f"unknown time zone {name}") from error


@lru_cache(maxsize=1)
def _has_database() -> bool:
    try:
        ZoneInfo("Europe/London")
    except (ZoneInfoNotFoundError, OSError):
        return False
    return True
