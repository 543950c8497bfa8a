"""Holds the port to the oracle: the same scenes to both, and where they differ the smallest scene that still does."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from driver.analysis.allocator import Allocated, Allocator, Features, Outcome, rules
from driver.analysis.quantity import parse

from .build import Release
from .client import ask
from .scenes import Document, scene

SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


@dataclass(frozen=True, slots=True)
class Difference:
    """A scene on which the two do not agree, for one of its nodes."""

    scene: Document
    node: str
    port: Document
    oracle: Document


def features(names: Sequence[str]) -> Features:
    """The port's features for upstream's names; the oracle is given rules only where they are to be applied."""
    on = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): True for name in names}
    return Features(**on, device_taint_rules=True)


def port(version: str, given: Document, variant: str | None = None, *, limit: int = 1_000_000) -> list[Outcome]:
    """The port's outcomes for the nodes of a scene."""
    chosen = rules(Release(version).minor, features(given["Features"]), variant)
    used = _used(given["State"]) if "State" in given else None
    found = []
    for node in given["Nodes"]:
        allocator = Allocator(
            chosen,
            given["Classes"],
            given["Slices"],
            given.get("Allocated") or (),
            given.get("TaintRules") or (),
            used=used,
            share=lambda: SHARE,
            limit=limit,
        )
        found.append(allocator.allocate(node, given["Claims"]))
    return found


def _used(state: Document) -> Allocated:
    used = Allocated({_three(each) for each in state["devices"]})
    for text in state["shared"]:
        whole, _, share = text.rpartition("/")
        used.shares.add((_three(whole), share))
    for text, consumed in state["capacity"].items():
        used.capacity[_three(text)] = {name: parse(str(amount)).nanos for name, amount in (consumed or {}).items()}
    return used


def _three(text: str) -> tuple[str, str, str]:
    driver, rest = text.split("/", 1)
    pool, device = rest.rsplit("/", 1)
    return driver, pool, device


def normal(answer: Document) -> Document:
    """What is compared of an answer: results with shares made equal, the kind of error, the number of calls."""
    found = {"kind": answer.get("kind") or "", "calls": answer.get("calls", 0)}
    results = answer.get("results")
    found["results"] = None if results is None else [_normal_result(each) for each in results]
    return found


def _normal_result(result: Document) -> Document:
    result = copy.deepcopy(result)
    devices = result.get("devices") or {}
    for each in devices.get("results") or ():
        if "shareID" in each:
            each["shareID"] = SHARE
        for toleration in each.get("tolerations") or ():
            for name in [name for name, value in toleration.items() if value in (None, "")]:
                del toleration[name]
    return result


def agree(mine: Document, theirs: Document) -> bool:
    """Whether the answers are the same; calls count where upstream counts them (not in a crash)."""
    one, other = normal(mine), normal(theirs)
    if not other["calls"]:
        one["calls"] = 0
    return one == other


def answer(outcome: Outcome) -> Document:
    """An outcome in the form of the oracle's answers."""
    results = None if outcome.allocations is None else list(outcome.allocations)
    found: Document = {"node": outcome.node, "results": results, "kind": outcome.kind}
    return found | {"error": outcome.error, "calls": outcome.calls}


def digest(answers: Sequence[Document]) -> str:
    """A short hash of what is compared of the answers for a scene's nodes."""
    text = json.dumps([normal(each) | {"calls": 0} for each in answers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digests(version: str, seeds: Sequence[int]) -> list[Document]:
    """Seed and digest of the oracle's answers, for scenes that it answers in time.

    Raises:
        OracleError: the oracle of this version is not built.
    """
    made = [scene(version, seed) for seed in seeds]
    found = []
    for seed, reply in zip(seeds, ask(version, made), strict=True):
        answers = reply["answers"]
        if not any(each.get("kind") == "timeout" for each in answers):
            found.append(
                {"seed": seed, "digest": digest(answers), "fits": sum(bool(each["results"]) for each in answers)}
            )
    return found


def differences(version: str, scenes: Sequence[Document]) -> Iterator[Difference]:
    """The scenes on which port and oracle do not agree."""
    for each, reply in zip(scenes, ask(version, scenes), strict=True):
        if reply.get("error"):
            raise ValueError(f"scene {each['ID']}: {reply['error']}")
        for outcome, theirs in zip(port(version, each), reply["answers"], strict=True):
            mine = answer(outcome)
            if theirs.get("kind") == "timeout" or outcome.kind == "unknown":
                continue
            if not agree(mine, theirs):
                yield Difference(each, outcome.node, mine, theirs)
                break


def shrink(version: str, whole: Document, differs: Callable[[Document], bool] | None = None) -> Document:
    """The scene with everything taken out that the difference does not need."""
    still = differs or (lambda each: any(True for _ in differences(version, [each])))
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(whole):
            try:
                if still(smaller):
                    whole, changed = smaller, True
                    break
            except (ValueError, KeyError):
                continue
    return whole


def _smaller(scene_: Document) -> Iterator[Document]:
    """The scene without one element of a list or one optional field, the largest parts first."""
    for path in sorted(_paths(scene_), key=len):
        smaller = copy.deepcopy(scene_)
        whole: Any = smaller
        for step in path[:-1]:
            whole = whole[step]
        del whole[path[-1]]
        yield smaller


_KEPT = frozenset(("name", "metadata", "spec", "driver", "pool", "generation", "ID", "exactly", "deviceClassName"))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if len(path) > 0 and key not in _KEPT:
                yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from _paths(inner, (*path, index))
