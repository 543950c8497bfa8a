"""Two plugins end, and a pod is forced out of the API: what the kubelet makes of it in its own, long times.

It gives a plugin up after 30 seconds, and looks for claims of forgotten pods once a minute. These waits run side by
side in one story, which is then looked at from all sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, temporary_namespace
from kubeletplugin.api import HealthStatus
from kubeletplugin.testing.handler import UNPREPARE
from tests.kubelet.scene_driver import SHOW, WAIT, Driver, environment, force_delete
from tests.kubelet.test_health_of_devices import shown

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("errors_expected")]


@dataclass
class Story:
    """Who takes part, and what was seen."""

    namespace: Namespace
    brief: Driver
    """Ended and was started again at once."""
    lasting: Driver
    """Ended, and was away for longer than the kubelet waits."""
    unwilling: Driver
    """Could not unprepare the pod that was forced out of the API until the kubelet had been restarted."""
    failed: int = 0
    """How often it was asked before."""
    before: list[dict[str, Any]] = field(default_factory=list)
    """The slices of the brief one before its end."""
    after: list[dict[str, Any]] = field(default_factory=list)
    """The same, once those of the lasting one had been removed."""
    removed: list[str] = field(default_factory=list)
    """UIDs of the slices of the lasting one that the kubelet removed."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """The health of the lasting one's device in the meantime."""

    def force_out(self, cluster: Layout) -> None:
        """A pod whose claim cannot be unprepared leaves the API; the kubelet is restarted; then the claim could be."""
        self.unwilling.started()
        self.unwilling.handler.fail(UNPREPARE)
        self.unwilling.run(self.namespace, "forced", script=SHOW)
        assert self.unwilling.handler.wait_called(UNPREPARE, timeout=WAIT)
        force_delete(self.namespace, "forced")
        self.failed = self.unwilling.handler.count(UNPREPARE)
        assert self.unwilling.handler.wait_called(UNPREPARE, self.failed + 1, timeout=WAIT)
        lifecycle.stop_component(cluster, "kubelet")
        self.failed = self.unwilling.handler.count(UNPREPARE)
        self.unwilling.handler.heal()
        lifecycle.start_component(cluster, "kubelet")

    def go_and_come_back(self) -> None:
        """Both plugins end; one is started at once, one after the kubelet has given it up."""
        self.lasting.report(HealthStatus.HEALTHY)
        self.lasting.started()
        self.brief.started()
        self.lasting.run(self.namespace, "old")
        self.namespace.running("old", WAIT)
        self.before, there = self.brief.slices(), _uids(self.lasting)
        self.brief.stop()
        self.lasting.stop()
        self.brief.started()
        self.lasting.wait_slices(lambda found: not found, 90)
        self.removed = [uid for uid in there if uid not in _uids(self.lasting)]
        self.after = self.brief.slices()
        self.unknown = shown(self.namespace.wait_pod("old", _is("Unknown"), "of unknown health", 90))
        self.lasting.report(HealthStatus.HEALTHY)
        self.lasting.started()


def _uids(driver: Driver) -> list[str]:
    return [item["metadata"]["uid"] for item in driver.slices()]


def _is(health: str) -> Any:
    return lambda pod: [one for one, _ in shown(pod)] == [health]


@pytest.fixture(scope="module")
def story(cluster: Layout, api: Api, impatient_kubelet: None) -> Iterator[Story]:
    """Up to the moment at which all plugins run again."""
    drivers = [Driver(cluster, api, f"{name}.example.com") for name in ("brief", "lasting", "unwilling")]
    try:
        with temporary_namespace(api, "gone and back") as namespace:
            told = Story(namespace, *drivers)
            told.force_out(cluster)
            told.go_and_come_back()
            yield told
    finally:
        for driver in drivers:
            driver.remove()


def test_the_slices_of_the_one_that_was_back_at_once_are_the_same(story: Story) -> None:
    assert story.after == story.before


def test_the_one_that_was_back_at_once_works(story: Story) -> None:
    story.brief.run(story.namespace, "brief")
    story.namespace.running("brief", WAIT)
    assert environment(story.namespace, "brief")["claim_brief_claim_gpu"] == "true"


def test_the_slices_of_the_one_that_was_away_long_were_removed(story: Story) -> None:
    assert len(story.removed) == 1


def test_health_was_unknown_without_the_plugin(story: Story) -> None:
    assert [health for health, _ in story.unknown] == ["Unknown"]


def test_the_one_that_was_away_long_is_taken_back_with_slices_and_health(story: Story) -> None:
    story.lasting.wait_slices(lambda found: len(found) == 1)
    story.namespace.wait_pod("old", _is("Healthy"), "healthy again", WAIT)


def test_a_new_pod_runs_and_its_health_is_followed(story: Story) -> None:
    story.lasting.run(story.namespace, "new")
    story.namespace.running("new", WAIT)
    story.lasting.report(HealthStatus.UNHEALTHY)
    story.namespace.wait_pod("new", _is("Unhealthy"), "unhealthy", WAIT)


def test_a_pod_from_before_is_unprepared_by_the_plugin_that_is_back(story: Story) -> None:
    story.namespace.api.delete("pods", story.namespace.name, "old")
    assert story.lasting.handler.wait_called(UNPREPARE, timeout=WAIT)
    story.namespace.wait_pod("old", lambda pod: pod is None, "gone", WAIT)


def test_a_claim_of_a_pod_that_was_forced_out_is_unprepared_after_a_restart_of_the_kubelet(story: Story) -> None:
    assert story.unwilling.handler.wait_called(UNPREPARE, story.failed + 1, timeout=120)
    story.unwilling.wait_prepared()
