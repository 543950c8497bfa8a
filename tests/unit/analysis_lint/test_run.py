"""Running rules: which of them, over damaged documents too, and what of a node's state matters."""

from __future__ import annotations

import json

import pytest

from driver.analysis.documents import read_text
from driver.analysis.lint import RULES, Options, Severity, UnknownRuleError, chosen, lint
from driver.analysis.shape import AttributeKinds
from tests.support import dradocs as dra


def ids(*names: str) -> list[str]:
    return [rule.id for rule in chosen(names)]


def test_rules_are_chosen_by_id_by_name_and_by_the_beginning_of_an_id() -> None:
    assert ids("A06") == ["A06"]
    assert ids("a06", "node-local") == ["A02", "A06"]
    assert ids("A1") == [f"A1{digit}" for digit in range(10)]
    assert ids() == [rule.id for rule in RULES]
    assert "A06" not in [rule.id for rule in chosen([], ["A06", "A1"])]
    assert [rule.id for rule in chosen(["A1"], ["A11"])] == [f"A1{digit}" for digit in range(10) if digit != 1]


@pytest.mark.parametrize("name", ["A99", "no-such-rule"])
def test_a_rule_that_is_none_is_told_with_those_that_are(name: str) -> None:
    with pytest.raises(UnknownRuleError, match=f"there is no rule {name}; there are A01, A02"):
        chosen([name])


def test_a_damaged_slice_is_told_and_its_pool_is_not_called_incomplete() -> None:
    whole, damaged = (dra.resource_slice(dra.device(f"gpu-{n}"), count=2, name=f"0000{n}-a") for n in range(2))
    damaged["spec"]["devices"][0]["attributes"] = {"index": {"int": "one"}}
    other = dra.resource_slice(dra.device("gpu-0"), node="node-b", count=2)

    report = lint(read_text(json.dumps([whole, damaged, other]), "dump.json"))

    assert [problem.path for problem in report.problems] == ["spec.devices[0].attributes[index].int"]
    incomplete = [entry.finding.message for entry in report.found if entry.rule.id == "A04"]
    assert len(incomplete) == 1
    assert "node-b" in incomplete[0]


def test_a_selector_that_does_not_compile_does_not_hide_what_is_wrong_with_the_others() -> None:
    broken = dra.device_class("broken", "device.driver ==")
    reading = dra.device_class("reading", "device.attributes['gpu.nvidia.com'].speed > 3")

    found = lint(dra.collection(broken, reading, dra.resource_slice(dra.device("gpu-0")))).found

    assert [(entry.rule.id, entry.finding.document.name) for entry in found if entry.finding.document] == [
        ("A06", "reading"),
        ("A29", "broken"),
    ]


def test_a_key_that_only_some_devices_have_is_found_before_it_stops_all_scheduling() -> None:
    reading = dra.device_class("reading", "device.attributes['gpu.nvidia.com'].type == 'gpu'")
    guarded = dra.device_class("guarded", "device.attributes['gpu.nvidia.com'].?type.orValue('') == 'gpu'")
    slices = dra.resource_slice(dra.device("gpu-0", {"type": "gpu"}), dra.device("gpu-1"))

    found = [entry for entry in lint(dra.collection(reading, guarded, slices)).found if entry.rule.id == "A06"]

    assert [entry.finding.document.name for entry in found if entry.finding.document] == ["reading"]


def test_what_an_attribute_is_worth_is_taken_from_the_table_of_its_driver() -> None:
    reading = dra.device_class("reading", "device.attributes['gpu.nvidia.com'].board == 'x'")

    def rules(kinds: AttributeKinds) -> list[str]:
        return [entry.rule.id for entry in lint(dra.collection(reading), Options(kinds=kinds)).found]

    assert rules(AttributeKinds()) == []
    assert rules(AttributeKinds({"gpu.nvidia.com/board": "launch"})) == ["A09"]


def test_groups_are_told_apart_by_the_label_that_was_named() -> None:
    labels = {"node.kubernetes.io__instance-type": "p5.48xlarge"}
    bodies = [
        dra.node("node-a", rack="1", **labels),
        dra.node("node-b", rack="2", **labels),
        dra.resource_slice(dra.device("gpu-0")),
        dra.resource_slice(node="node-b"),
    ]

    def rules(label: str | None) -> list[str]:
        return [entry.rule.id for entry in lint(dra.collection(*bodies), Options(group_label=label)).found]

    assert "A07" in rules(None)
    assert "A07" not in rules("rack")


def test_classes_that_nobody_gave_are_not_missed() -> None:
    assert [entry.rule.id for entry in lint(dra.collection(dra.claim("c"))).found] == []


def test_a_report_fails_from_the_severity_on_that_was_named() -> None:
    report = lint(dra.collection(dra.resource_slice(dra.device("gpu-0", allowMultipleAllocations=True))))

    assert [entry.severity for entry in report.found] == [Severity.NOTE]
    assert report.failed(Severity.NOTE)
    assert not report.failed(Severity.WARNING)
    assert not report.failed(None)


def test_many_nodes_are_told_of_while_they_are_looked_at() -> None:
    told: list[str] = []
    reading = dra.device_class("reading", "device.driver == 'gpu.nvidia.com'")
    slices = [dra.resource_slice(dra.device("gpu-0"), node=f"node-{n}") for n in range(600)]

    lint(dra.collection(reading, *slices), Options(progress=lambda what, _done: told.append(what)))

    assert told.count("selectors of DeviceClass reading") == 2
