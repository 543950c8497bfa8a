"""The expressions of hack/oracle/expressions.txt: the same answer, the same refusal and the same cost as Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from driver.analysis.cel import CompileError, EvaluationError, UnsupportedError, compile_selector, device_value
from driver.analysis.quantity import parse
from hack.oracle import build, selectors, vectors
from hack.oracle.build import Release

Entry = dict[str, Any]
UNSUPPORTED = (
    *('"Local"', "%.400f", "%.1000000f", "%.2000000f", "google.protobuf.", "kubernetes.DRADevice{"),
    *(r"\p{Greek}", r"\p{Foo}"),
)
"""What the corpus uses and the evaluator says it does not know; of messages only where one is made."""


def beyond(expression: str, entry: Entry) -> bool:
    """Whether the evaluator has no answer: it says so, also where upstream would refuse the expression."""
    made = "{" in expression and "compile" not in entry
    return any(name in expression and (made or name != "google.protobuf.") for name in UNSUPPORTED)


KEPT: dict[str, list[tuple[str, Entry]]] = {}
for each_version in build.VERSIONS:
    for each_entry in vectors.read("cel", each_version):
        KEPT.setdefault(each_entry["expression"], []).append((each_version, each_entry))


def device(version: str, lists: bool) -> dict[str, object]:
    document = selectors.LISTED if lists else selectors.DEVICE
    capacity = {name: parse(each["value"]) for name, each in document["capacity"].items()}
    shown = lists or Release(version).minor >= 37
    return device_value(selectors.DRIVER, document["attributes"], capacity, shareable=True, lists=shown)


def verdict(version: str, entry: Entry) -> tuple[str, object, int | None]:
    """``compile``, ``error`` or ``value`` with the value and its cost."""
    try:
        program = compile_selector(entry["expression"], Release(version).minor, entry["lists"])
    except UnsupportedError:
        return "unsupported", None, None
    except CompileError as error:
        return "compile", str(error), None
    try:
        value = device(version, entry["lists"])
        return "value", program.matches(value), program.run(value)[1]
    except UnsupportedError:
        return "unsupported", None, None
    except EvaluationError as error:
        return "error", str(error), None


def expected(entry: Entry) -> str:
    return "compile" if "compile" in entry else "error" if "error" in entry else "value"


@pytest.mark.parametrize("expression", KEPT)
def test_an_expression_means_what_it_means_in_kubernetes(expression: str) -> None:
    for version, entry in KEPT[expression]:
        kind, value, cost = verdict(version, entry)
        if beyond(expression, entry):
            assert kind == "unsupported"
            continue
        assert kind == expected(entry), (version, entry, value)
        if kind == "value":
            assert value == entry["matches"], (version, entry)
        if kind == "value" and entry["cost"] is not None:
            assert cost == entry["cost"], (version, entry)


@pytest.mark.parametrize("version", build.VERSIONS)
def test_a_missing_key_is_named_as_kubernetes_names_it(version: str) -> None:
    missing = [each for each in vectors.read("cel", version) if str(each.get("error", "")).startswith("no such key")]
    assert len(missing) >= 5
    for entry in missing:
        assert verdict(version, entry)[:2] == ("error", entry["error"])


def test_the_corpus_holds_each_way_an_expression_can_end() -> None:
    kinds = [expected(each) for each in vectors.read("cel", build.VERSIONS[0])]
    assert min(kinds.count("value"), kinds.count("error"), kinds.count("compile")) >= 30
