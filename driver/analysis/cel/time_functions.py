"""The functions of timestamps and durations: conversion, arithmetic, and the parts of a date in a time zone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import times
from .errors import EvaluationError
from .overloads import Overload, declare
from .times import Civil, Duration, Timestamp

_PARTS: Final[dict[str, Callable[[Civil], int]]] = {
    "getFullYear": lambda date: date.year,
    "getMonth": lambda date: date.month - 1,
    "getDayOfYear": lambda date: date.day_of_year,
    "getDayOfMonth": lambda date: date.day - 1,
    "getDate": lambda date: date.day,
    "getDayOfWeek": lambda date: date.day_of_week,
    "getHours": lambda date: date.hour,
    "getMinutes": lambda date: date.minute,
    "getSeconds": lambda date: date.second,
}
_UNITS: Final = {
    "getHours": 3600 * times.SECOND,
    "getMinutes": 60 * times.SECOND,
    "getSeconds": times.SECOND,
    "getMilliseconds": 10**6,
}


def _accessors() -> list[Overload]:
    found = []
    for name, part in _PARTS.items():

        def run(time: Timestamp, zone: str = "UTC", part: Callable[[Civil], int] = part) -> int:
            return part(times.parts(time, zone))

        found.append(declare(f"*{name}(timestamp) -> int", run))
        found.append(declare(f"*{name}(timestamp, string) -> int", run))
    found.append(declare("*getMilliseconds(timestamp) -> int", _milliseconds))
    found.append(declare("*getMilliseconds(timestamp, string) -> int", _milliseconds))
    found += [declare(f"*{name}(duration) -> int", times.units(unit)) for name, unit in _UNITS.items()]
    return found


def _milliseconds(time: Timestamp, zone: str = "UTC") -> int:
    times.parts(time, zone)  # a zone that does not exist is an error here too
    return time.nanos % times.SECOND // 10**6


def _arithmetic() -> list[Overload]:
    return [
        declare("_+_(duration, duration) -> duration", lambda a, b: times.span(a.nanos + b.nanos)),
        declare("_+_(duration, timestamp) -> timestamp", lambda a, b: times.moved(b, a.nanos)),
        declare("_+_(timestamp, duration) -> timestamp", lambda a, b: times.moved(a, b.nanos)),
        declare("_-_(duration, duration) -> duration", lambda a, b: times.span(a.nanos - b.nanos)),
        declare("_-_(timestamp, duration) -> timestamp", lambda a, b: times.moved(a, -b.nanos)),
        declare("_-_(timestamp, timestamp) -> duration", lambda a, b: times.span(a.nanos - b.nanos)),
    ]


def _no_duration(_: int) -> Duration:
    raise EvaluationError("type conversion error from 'int' to 'google.protobuf.Duration'")


def declarations(release: int) -> list[Overload]:
    """All of them; until 1.36 there is one that takes an integer and fails."""
    numbers = [declare("duration(int) -> duration", _no_duration)] if release < 37 else []
    return [
        declare("timestamp(string) -> timestamp", times.timestamp),
        declare("timestamp(int) -> timestamp", times.from_seconds),
        declare("timestamp(timestamp) -> timestamp", lambda value: value),
        declare("duration(string) -> duration", times.duration),
        declare("duration(duration) -> duration", lambda value: value),
        *numbers,
        declare("string(timestamp) -> string", str),
        declare("string(duration) -> string", str),
        declare("int(timestamp) -> int", lambda value: value.seconds),
        declare("int(duration) -> int", lambda value: value.nanos),
        *_arithmetic(),
        *_accessors(),
    ]
