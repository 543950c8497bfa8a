"""Text to values: JSON and YAML, one value or several, whole or cut off.

A part that cannot be read becomes a ``Problem``; what stands before and behind it is read all the same, of a cut list
the items that are whole.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

_ITEMS = re.compile(r'"items"\s*:\s*\[')


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read."""

    document: str
    """The label of the document, or the origin where none could be made out."""
    path: str
    """Of the field, such as ``spec.devices[0].name``; empty where the fault is not in a field."""
    message: str
    origin: str = ""
    line: int = 1

    def __str__(self) -> str:
        return ": ".join(part for part in (self.document, self.path, self.message) if part)


@dataclass(frozen=True, slots=True)
class Value:
    """One decoded value of a text."""

    value: Any
    index: str = ""
    line: int = 1


def values(text: str, origin: str, problems: list[Problem]) -> Iterator[Value]:
    """Decode a text; what cannot be read is added to ``problems``."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start in ("{", "["):
        yield from _json_values(text.lstrip("\ufeff"), origin, problems)
    elif start:
        yield from _yaml_values(text, origin, problems)
    else:
        problems.append(Problem(origin, "", "is empty", origin))


def _json_values(text: str, origin: str, problems: list[Problem]) -> Iterator[Value]:
    try:
        yield Value(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        yield from _several_json_values(text, origin, problems)


def _several_json_values(text: str, origin: str, problems: list[Problem]) -> Iterator[Value]:
    """Values one after the other; of a list that is cut off, the items that are whole."""
    decoder, position, number = json.JSONDecoder(), 0, 0
    while True:
        position = _skip_blanks(text, position)
        if position >= len(text):
            return
        number += 1
        index, line = f"document {number}", text.count("\n", 0, position) + 1
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield from _whole_items(text, position, origin, index, problems, error)
            return
        yield Value(value, index, line)


def _whole_items(
    text: str, position: int, origin: str, index: str, problems: list[Problem], error: Exception
) -> Iterator[Value]:
    start = _ITEMS.search(text, position)
    place, line = f"{origin}, {index}", text.count("\n", 0, position) + 1
    if start is None:
        problems.append(Problem(place, "", f"is not whole JSON: {_reason(error)}", origin, _line(error, line)))
        return
    decoder, position, number = json.JSONDecoder(), start.end(), 0
    while True:
        position = _skip_blanks(text, position, ",")
        line = text.count("\n", 0, position) + 1
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as cut:
            if text[position : position + 1] == "]":
                cut = error if isinstance(error, json.JSONDecodeError) else cut
            message = f"is cut off or damaged: {_reason(cut)}; the {number} items before it are read"
            problems.append(Problem(place, f"items[{number}]", message, origin, _line(cut, line)))
            return
        yield Value(value, f"{index}, items[{number}]", line)
        number += 1


def _skip_blanks(text: str, position: int, also: str = "") -> int:
    while position < len(text) and (text[position].isspace() or text[position] in also):
        position += 1
    return position


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[0].lower()}{error.msg[1:]} at line {error.lineno} column {error.colno}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it holds a number of too many digits"


def _line(error: Exception, otherwise: int) -> int:
    return error.lineno if isinstance(error, json.JSONDecodeError) else otherwise


def _yaml_values(text: str, origin: str, problems: list[Problem]) -> Iterator[Value]:
    """Documents of a YAML stream; after one that cannot be read, those behind the next ``---``."""
    for number, (line, part) in enumerate(_yaml_parts(text), 1):
        index = f"document {number}"
        value = _yaml_value(part)
        if isinstance(value, _Cut):
            problems.append(Problem(f"{origin}, {index}", value.path, value.message, origin, line + value.line))
            if value.rest is None:
                continue
            value = value.rest
        if value is not None:
            yield Value(value, index, line)


def _yaml_parts(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each document: cut at the markers, so that one that is broken does not take the others along."""
    starts = [0, *(match.start() + 1 for match in re.finditer(r"\n---(?=[ \t\r\n]|\Z)", text)), len(text)]
    for start, end in itertools.pairwise(starts):
        part = text[start:end]
        if re.sub(r"(?m)^(---.*|\.\.\.|\s*#.*|\s*)$", "", part).strip() or part.startswith("--- "):
            yield text.count("\n", 0, start) + 1, part


@dataclass(frozen=True, slots=True)
class _Cut:
    """What is wrong with a YAML document, and what of it can be read."""

    path: str
    message: str
    line: int
    rest: Any = None


@functools.cache
def _yaml_loader() -> Any:
    """A safe loader that leaves times as text, as Kubernetes does; the fast one where it is there."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, pattern) for tag, pattern in entries if tag != "tag:yaml.org,2002:timestamp"]
        for first, entries in base.yaml_implicit_resolvers.items()
    }
    return type("DocumentLoader", (base,), {"yaml_implicit_resolvers": resolvers})


def _parse(part: str) -> Any:
    import yaml

    return yaml.load(part, Loader=_yaml_loader())  # noqa: S506 - derived from a safe loader


def _yaml_value(part: str) -> Any:
    try:
        import yaml
    except ImportError:
        return _Cut("", "is YAML, and PyYAML is not installed: install gpudra[cli], or give JSON", 0)
    try:
        return _parse(part)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line if mark is not None else 0
        reason = str(getattr(error, "problem", None) or error).splitlines()[0]
    items = _items_before(part, line)
    if items is None:
        return _Cut("", f"is not YAML: {reason}, at its line {line + 1}", line)
    count = len(items["items"])
    return _Cut(
        f"items[{count}]", f"is cut off or damaged: {reason}; the {count} items before it are read", line, items
    )


def _items_before(part: str, line: int) -> dict[str, Any] | None:
    """Of a list that is damaged on this line: the list with the items before."""
    import yaml

    offset = sum(len(text) + 1 for text in part.split("\n")[: line + 1])
    starts = [match.start() + 1 for match in re.finditer(r"\n-[ \t]", part) if match.start() < offset]
    for start in reversed(starts[-2:]):
        try:
            rest = _parse(part[:start])
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if isinstance(rest, dict) and isinstance(rest.get("items"), list):
            return rest
    return None
