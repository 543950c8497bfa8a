"""JSON text -> values, refusing what Python's parser lets through: duplicate keys, NaN, infinities, deep nesting."""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 32
"""Deeper than any configuration of ours; far below what would exhaust a parser that recurses."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class StrictJSONError(ValueError):
    """The text is no JSON that everybody would read in the same way."""


def loads(text: str | bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> object:
    """Parse JSON strictly.

    Raises:
        StrictJSONError: too long, not UTF-8, not JSON, nested too deeply, a key twice in one object, or a number that
            JSON does not have.
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise StrictJSONError(f"is {size} bytes long, {max_bytes} are allowed")
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise StrictJSONError(f"is not UTF-8 (byte {error.start})") from error
    if _depth(decoded) > max_depth:
        raise StrictJSONError(f"is nested more than {max_depth} levels deep")
    try:
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise StrictJSONError(f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except StrictJSONError:
        raise
    except ValueError as error:  # a whole number of more digits than Python converts
        raise StrictJSONError(f"holds a number that cannot be read: {error}") from error


def _depth(text: str) -> int:
    """How deeply brackets nest outside of strings. Counts before parsing: the parser itself recurses."""
    deepest = depth = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise StrictJSONError(f"has the key {key[:64]!a} twice in one object")
        members[key] = value
    return members


def _refuse(constant: str) -> object:
    raise StrictJSONError(f"holds {constant}, which JSON does not have")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJSONError(f"holds the number {text[:32]}, which is out of range")
    return value
