"""The cases of upstream's own allocator tests, by name, over every variant and release that is ported.

The answers in ``data`` are those of upstream's allocator itself; ``python -m hack.oracle vectors`` asks it again.
"""

from __future__ import annotations

from typing import Any

import pytest

from hack.oracle import build, compare, vectors

Case = dict[str, Any]
UNWRITTEN = {
    "consumable-capacity-requests-are-not-modified": "Kubernetes writes a quantity of 1e21 as 1",
    "list-attributes-distinct-constaint-with-empty-or-unknown-type": "an empty list is not written at all",
}
"""Cases that lose what they are about when Kubernetes itself writes them as JSON."""
CASES = [
    pytest.param(version, case, id=f"{version}-{case['name']}")
    for version in build.VERSIONS
    for case in vectors.read("upstream", version)
    if case["name"] not in UNWRITTEN
]


def scene(case: Case) -> Case:
    """A case in the form of the oracle's scenes."""
    documents = {
        name: case.get(key) or [] for name, key in (("Slices", "slices"), ("Classes", "classes"), ("Claims", "claims"))
    }
    nodes = [case.get("node") or {"metadata": {"name": ""}}]
    return documents | {"Features": case["features"], "Nodes": nodes, "State": case["used"]}


def interrupted(case: Case) -> bool:
    """Whether the case is about a cancelled context, which the port has as a limit of steps."""
    return any("aborted" in each["error"] for each in case["expected"].values())


@pytest.mark.parametrize(("version", "case"), CASES)
def test_every_variant_of_the_port_answers_as_upstream_does(version: str, case: Case) -> None:
    for variant, expected in case["expected"].items():
        outcome = compare.port(version, scene(case), variant, limit=0 if interrupted(case) else 1_000_000)[0]
        assert bool(outcome.error) == bool(expected["error"]), (variant, outcome.error, expected["error"])
        mine = compare.normal(compare.answer(outcome))
        theirs = compare.normal({"results": expected["results"]})
        assert mine["results"] == theirs["results"], variant
        if interrupted(case):
            assert outcome.kind == "timeout"
        elif expected["calls"]:
            assert outcome.calls == expected["calls"], variant


def test_every_case_of_the_newest_table_is_there() -> None:
    names = {case["name"] for case in vectors.read("upstream", build.VERSIONS[0])}
    assert len(names) >= 280
    assert {"empty", "lexicographical-sorting-pools"} <= names
