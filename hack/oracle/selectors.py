"""CEL as data: the expressions of ``expressions.txt`` and what the real environment of a release says of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from driver.analysis.cel import CompileError, EvaluationError, UnsupportedError, compile_selector, device_value
from driver.analysis.quantity import parse

from . import grammar
from .build import Release
from .client import ask

Document = dict[str, Any]

DRIVER = "d.io"
DEVICE: Document = {
    "name": "g",
    "allowMultipleAllocations": True,
    "attributes": {
        "type": {"string": "gpu"},
        "n": {"int": 4},
        "ok": {"bool": True},
        "ver": {"version": "1.2.3-rc.1+b"},
        "other.io/x": {"string": "abc"},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "names": {"string": "a"},
    },
    "capacity": {"memory": {"value": "80Gi"}, "other.io/cores": {"value": "1500m"}, "k": {"value": "7"}},
}
LISTED: Document = DEVICE | {"attributes": DEVICE["attributes"] | {"names": {"strings": ["a", "b"]}}}
_OVER_MAP = re.compile(r"(device\.(attributes|capacity)(\[[^\]]*\])?|\})\.(all|exists|exists_one|map|filter)\(")
"""Going through a map may stop early, and a Go map has no order: the cost is then chance and is not recorded."""


def expressions() -> list[str]:
    """The expressions, one a line."""
    lines = (Path(__file__).parent / "expressions.txt").read_text().splitlines()
    return [line for line in lines if line.strip()]


def scenes(version: str) -> list[tuple[str, bool, Document]]:
    """Each expression, whether the device has a list attribute, and the scene that asks for it."""
    lists = (False, True) if Release(version).minor >= 36 else (False,)
    found = []
    for expression in expressions():
        for listed in lists:
            features = ["ConsumableCapacity", *(["ListTypeAttributes"] if listed else [])]
            scene = {"ID": "", "Expression": expression, "Driver": DRIVER, "Features": features}
            found.append((expression, listed, scene | {"Device": LISTED if listed else DEVICE}))
    return found


def verdict(version: str, text: str, *, listed: bool) -> Document:
    """What the port says of an expression, in the form of the oracle's answers; ``unknown`` where it has no answer."""
    document = LISTED if listed else DEVICE
    release = Release(version).minor
    try:
        program = compile_selector(text, release, listed)
    except UnsupportedError as error:
        return {"unknown": str(error)}
    except CompileError as error:
        return {"compile": str(error)}
    try:
        capacity = {name: parse(each["value"]) for name, each in document["capacity"].items()}
        device = device_value(
            DRIVER, document["attributes"], capacity, shareable=True, lists=release >= 37 or (listed and release >= 36)
        )
        return {"matches": program.matches(device), "cost": program.run(device)[1]}
    except UnsupportedError as error:
        return {"unknown": str(error)}
    except EvaluationError as error:
        return {"error": str(error)}


def disagreements(version: str, seeds: Iterable[int]) -> Iterator[tuple[str, Document, Document]]:
    """Random expressions of which port and oracle say different things, with what each says.

    Raises:
        OracleError: the oracle of this version is not built.
    """
    texts = [grammar.expression(seed) for seed in seeds]
    asked = [
        {"ID": "", "Expression": each, "Driver": DRIVER, "Features": ["ConsumableCapacity"], "Device": DEVICE}
        for each in texts
    ]
    for text, theirs in zip(texts, ask(version, asked), strict=True):
        mine = verdict(version, text, listed=False)
        if "unknown" not in mine and _kind(text, mine) != _kind(text, theirs):
            yield text, mine, theirs


def _kind(text: str, reply: Document) -> tuple[str, object, object]:
    """How it ended: the value and its cost where there is one; of two errors the texts may differ."""
    if reply.get("compile"):
        return "compile", None, None
    if reply.get("error"):
        return "error", None, None
    return "value", reply["matches"], None if _OVER_MAP.search(text) else reply.get("cost")


def record(version: str) -> list[Document]:
    """What the oracle says: ``compile`` or ``error`` where it refuses, else ``matches``, and ``cost`` if it is fixed.

    Raises:
        OracleError: the oracle of this version is not built.
    """
    asked = scenes(version)
    found = []
    for (expression, listed, _), first in zip(asked, ask(version, [each for _, _, each in asked]), strict=True):
        entry: Document = {"expression": expression, "lists": listed}
        if first.get("compile"):
            entry["compile"] = first["compile"].partition("\n")[0]
        elif first.get("error"):
            entry["error"] = first["error"]
        else:
            entry["matches"] = first["matches"]
            entry["cost"] = None if _OVER_MAP.search(expression) else first.get("cost")
        found.append(entry)
    return found
