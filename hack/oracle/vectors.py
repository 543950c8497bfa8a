"""Upstream's allocator cases as data: what its table asks and what each variant of its allocator answers.

The names and values are facts about Kubernetes (Apache-2.0); none of its code is kept.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import build

Document = dict[str, Any]

DATA = Path(__file__).resolve().parents[2] / "tests/unit/analysis_allocator/data"
VARIANTS = ("stable", "incubating", "experimental")
SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"

_RUN = re.compile(r"=== RUN\s+TestCases/(.+)")


def record(version: str) -> list[Document]:
    """Run upstream's table over the three variants of one release.

    Raises:
        OracleError: the module cannot be had, does not compile, or one of upstream's own cases fails.
    """
    cases: dict[str, Document] = {}
    for variant in VARIANTS:
        for name, seen in _recorded(build.cases(version, variant)):
            case = cases.setdefault(name, _scene(name, seen))
            case["expected"][variant] = {
                "results": [_fixed(each) for each in seen["results"] or ()] if seen["results"] is not None else None,
                "error": seen["error"],
                "calls": seen["calls"],
            }
    return [cases[name] for name in sorted(cases)]


def _recorded(output: str) -> Iterable[tuple[str, Document]]:
    name = ""
    for line in output.splitlines():
        if found := _RUN.match(line.strip()):
            name = found[1]
        elif line.startswith("CASE "):
            yield name, json.loads(line.removeprefix("CASE "))


def _scene(name: str, seen: Document) -> Document:
    features = sorted(key for key, on in seen["features"].items() if on)
    used = {"devices": sorted(seen["devices"]), "shared": sorted(seen["shared"]), "capacity": seen["capacity"]}
    scene = {key: seen[key] for key in ("node", "slices", "classes", "claims")}
    return {"name": name, "features": features, "used": used, **_slim(scene), "expected": {}}


def _slim(value: Any) -> Any:
    """The document without what an encoder writes for nothing: nulls, empty status, times of zero."""
    if isinstance(value, dict):
        slim = {key: _slim(inner) for key, inner in value.items() if key != "creationTimestamp" and inner is not None}
        return {key: inner for key, inner in slim.items() if (key, inner) not in (("status", {}), ("nodeInfo", {}))}
    return [_slim(each) for each in value] if isinstance(value, list) else value


def _fixed(result: Document) -> Document:
    for device in result.get("devices", {}).get("results") or ():
        if "shareID" in device:
            device["shareID"] = SHARE
    return result


def path(kind: str, version: str) -> Path:
    """Where the vectors of a kind (upstream, cel, fuzz) and version lie."""
    return DATA / f"{kind}-{version}.jsonl.gz"


def write(kind: str, version: str, entries: Iterable[Document]) -> int:
    """Write vectors; their number."""
    lines = [json.dumps(each, sort_keys=True, separators=(",", ":")) + "\n" for each in entries]
    DATA.mkdir(parents=True, exist_ok=True)
    path(kind, version).write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return len(lines)


def read(kind: str, version: str) -> list[Document]:
    """Vectors that were written."""
    return [json.loads(line) for line in gzip.decompress(path(kind, version).read_bytes()).decode().splitlines()]
