"""What counts as a difference between the scheduler and the port, on a scene that both are told about."""

from __future__ import annotations

import copy

import pytest

from driver.analysis.allocator import rules
from tests.scheduler.isolation import NODE_LABEL, SCENE_LABEL, claims_of, held_by, storable
from tests.scheduler.plane import Verdict
from tests.scheduler.trials import Trial, difference, port, trials, worth_trying

VERSION = "0.37.2"
RULES = rules(37)


def told(trial: Trial) -> Trial:
    """The trial as if an API server kept all as it was sent."""
    for resource, document in storable(trial.whole, 37):
        trial.stored.setdefault(resource, []).append(document)
    trial.stored["resourceclaims"] = [*held_by(trial.whole, trial.tag), *claims_of(trial.whole, trial.tag)]
    return trial


@pytest.fixture(scope="module")
def fitting() -> Trial:
    """A pod for one node, on which its claims fit, with at least two devices."""
    for seed in range(300):
        for trial in trials(VERSION, seed):
            found = port(RULES, told(trial)).get(trial.node or "")
            if found and found.allocations and len(found.allocations[0]["devices"].get("results", ())) > 1:
                return trial
    raise AssertionError("no scene fits")


def verdict(trial: Trial) -> Verdict:
    """What a scheduler that is right says."""
    assert trial.node is not None
    allocations = port(RULES, trial)[trial.node].allocations
    assert allocations is not None
    claims = [{"status": {"allocation": {**each, "allocationTimestamp": "now"}}} for each in allocations]
    return Verdict(tuple(claims), node=trial.node)


def test_the_same_devices_are_no_difference(fitting: Trial) -> None:
    assert difference(RULES, fitting, verdict(fitting)) == ""


def test_another_device_is_one(fitting: Trial) -> None:
    other = copy.deepcopy(verdict(fitting))
    other.claims[0]["status"]["allocation"]["devices"]["results"][0]["device"] = "dev-77"
    assert "dev-77" in (difference(RULES, fitting, other) or "")


def test_devices_in_another_order_are_one(fitting: Trial) -> None:
    other = copy.deepcopy(verdict(fitting))
    other.claims[0]["status"]["allocation"]["devices"]["results"].reverse()
    assert difference(RULES, fitting, other)


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
def test_a_refusal_where_the_port_finds_devices_is_one(fitting: Trial, reason: str) -> None:
    assert reason in (difference(RULES, fitting, Verdict(reason=reason)) or "")


def test_devices_where_the_port_finds_none_are_one(fitting: Trial) -> None:
    whole = {**fitting.whole, "Slices": []}
    empty = told(Trial(fitting.tag, whole, fitting.node))
    assert "the scheduler found devices" in (difference(RULES, empty, verdict(fitting)) or "")
    assert difference(RULES, empty, Verdict(reason="Unschedulable")) == ""


def test_an_error_of_the_port_must_be_one_of_the_scheduler(fitting: Trial) -> None:
    whole = {**copy.deepcopy(fitting.whole)}
    for each in whole["Classes"]:
        each["spec"]["selectors"] = [{"cel": {"expression": 'device.attributes["nobody.io"].nothing == 1'}}]
    failing = told(Trial(fitting.tag, whole, fitting.node))
    assert difference(RULES, failing, Verdict(reason="SchedulerError")) == ""
    assert difference(RULES, failing, Verdict(reason="Unschedulable", message="no room"))
    assert difference(RULES, failing, verdict(fitting))


def test_counters_of_other_scenes_are_told_to_a_release_that_looks_at_them(fitting: Trial) -> None:
    """1.36 takes them for every node's: an unfinished pool of another scene then ends whatever asks for all devices."""
    pool = {"name": "x", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "set", "counters": {"memory": {"value": "1"}}}]
    strange = {"driver": "other.example.com", "nodeName": "elsewhere", "pool": pool, "sharedCounters": counters}
    whole = {**copy.deepcopy(fitting.whole), "Allocated": []}
    wish = {"deviceClassName": f"any-{fitting.tag}", "allocationMode": "All"}
    whole["Claims"] = [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": wish}]}}}]
    whole["Classes"] = [{"metadata": {"name": f"any-{fitting.tag}"}, "spec": {}}]
    trial = told(Trial(fitting.tag, whole, fitting.node))
    trial.around = [{"metadata": {"name": "strange"}, "spec": strange}]
    assert "other.example.com/x" in port(rules(36), trial)[trial.node or ""].error
    assert "other.example.com/x" not in port(RULES, trial)[trial.node or ""].error


def test_where_the_order_of_pools_is_chance_an_error_of_one_alone_says_nothing(fitting: Trial) -> None:
    """1.34: a selector that fails on a device of one pool is not met where another pool had all that was wanted."""
    old = rules(34)
    assert difference(old, fitting, Verdict(reason="SchedulerError")) is None
    assert difference(RULES, fitting, Verdict(reason="SchedulerError"))


def test_a_scene_of_two_nodes_is_tried_on_each_and_on_both() -> None:
    seed = next(seed for seed in range(50) if len(list(trials(VERSION, seed))) == 3)
    one, other, both = trials(VERSION, seed)
    assert one.pod["spec"]["nodeSelector"] == {NODE_LABEL: one.node}
    assert other.pod["spec"]["nodeSelector"] == {NODE_LABEL: other.node}
    assert both.pod["spec"]["nodeSelector"] == {SCENE_LABEL: both.tag}
    assert len({one.tag, other.tag, both.tag}) == 3


def test_scenes_in_which_something_fits_are_tried_and_some_of_the_others() -> None:
    tried = [seed for seed in range(40) if worth_trying(VERSION, seed)]
    assert set(range(0, 40, 5)) <= set(tried)
    assert 8 < len(tried) < 30
