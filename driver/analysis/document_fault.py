"""The first field of a document that is not of its type: the path to it, and what is wrong in plain words."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from driver.analysis.document_schema import JSON, SCHEMAS

_MESSAGE = re.compile(r"\A(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def fault(kind: str, body: JSON) -> tuple[str, str] | None:
    """The first field of the wrong type: (path, what is wrong); None where there is none or the kind has no schema."""
    schema = SCHEMAS.get(kind)
    if schema is None:
        return None
    error = _convert(body, schema)
    if error is None:
        return None
    path, text = error
    while "[...]" in path:  # msgspec does not name the key of a map
        path = path.replace("[...]", f"[{_culprit(body, schema, path)}]", 1)
    return path.removeprefix("$").removeprefix("."), _plain(text)


def _convert(body: JSON, schema: type[msgspec.Struct]) -> tuple[str, str] | None:
    try:
        msgspec.convert(body, schema)
    except msgspec.ValidationError as error:
        match = _MESSAGE.match(str(error))
        return ("$", str(error)) if match is None else (match["path"] or "$", match["text"])
    return None


def _culprit(body: JSON, schema: type[msgspec.Struct], path: str) -> str:
    """The key of the map at the first ``[...]`` of the path whose value is at fault."""
    steps: list[str] = []
    for name, index in _STEP.findall(path.partition("[...]")[0]):
        steps.append(name or index)
    holder: Any = body
    for step in steps:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    for key, value in holder.items():
        error = _convert(_replaced(body, steps, {key: value}), schema)
        if error is not None and error[0].startswith(path.partition("[...]")[0] + "[...]"):
            return str(key)
    return "..."


def _replaced(value: Any, steps: list[str], new: JSON) -> Any:
    """A copy of the value with ``new`` in the place that the steps lead to; only the way there is copied."""
    if not steps:
        return new
    if isinstance(value, list):
        index = int(steps[0])
        return [*value[:index], _replaced(value[index], steps[1:], new), *value[index + 1 :]]
    return {**value, steps[0]: _replaced(value[steps[0]], steps[1:], new)}


def _plain(text: str) -> str:
    """msgspec's message in the words of the rest of the project."""
    if "matching regex" in text:
        return "is no quantity (such as 80Gi, 500m or 4)"
    missing = re.fullmatch(r"Object missing required field `([^`]*)`", text)
    if missing:
        return f"the field {missing[1]} is missing"
    wrong = re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", text)
    if wrong:
        return f"must be {wrong[1].replace(' | null', '')}, is {wrong[2]}"
    return text
