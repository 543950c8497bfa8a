"""docs/conformance.md speaks of every scenario of the pinned Kubernetes, and of no test that is not there."""

from __future__ import annotations

import pytest

from hack import conformance


def test_every_scenario_has_an_entry_and_every_entry_a_test_that_is_there() -> None:
    assert conformance.problems() == []


def test_the_page_is_fresh() -> None:
    assert conformance.PAGE.read_text() == conformance.page(), "run hack/conformance.py"


def test_names_of_both_files_are_known() -> None:
    counts = {source: len(names) for source, names in conformance.upstream_names().items()}
    assert counts.keys() == {conformance.NODE, conformance.E2E}
    assert min(counts.values()) > 40, "the names were not read well"


@pytest.mark.parametrize("source", [conformance.NODE, conformance.E2E])
def test_a_name_without_an_entry_and_a_test_that_is_gone_are_found(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    names = conformance.upstream_names()
    names[source].append("must do something new")
    monkeypatch.setattr(conformance, "upstream_names", lambda: names)
    covered = {one: dict(entries) for one, entries in conformance.COVERED.items()}
    covered[source]["registers a ghost"] = ("plugin::test_that_is_gone",)
    monkeypatch.setattr(conformance, "COVERED", covered)
    found = "\n".join(conformance.problems())
    assert "'must do something new' has no entry" in found
    assert "'registers a ghost' is no scenario" in found
    assert "tests/unit/kubelet_side/test_plugin.py has no test_that_is_gone" in found
