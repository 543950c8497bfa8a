"""What becomes of claims under a running agent beside their Prepare: swept, counted idle, told to containers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driver.journal import Record, read
from tests.support.agents import CLAIMS, DRIVER, Scene

EVENTS = "/api/v1/namespaces/default/events"
QUICK = {"health_seconds": 0.2, "reconcile_seconds": 0.3}


def running(scene: Scene, **flags: object) -> Scene:
    scene.start(**{**QUICK, **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 8, "eight devices")
    return scene


def state_dir(scene: Scene) -> Path:
    return scene.plugins / DRIVER / "gpudra"


def records(scene: Scene, kind: str) -> list[Record]:
    folder = state_dir(scene) / "journal"
    entries = read(folder) if folder.exists() else ()
    return [entry for entry in entries if isinstance(entry, Record) and entry.kind == kind]


def forget(scene: Scene, name: str) -> None:
    """Take a claim out of the API, with its namespace if need be: whoever protects it is gone as well."""
    scene.allocator.release("default", name, pod_uid=f"pod-{name}")
    document = scene.client.get(f"{CLAIMS}/{name}")
    if document["metadata"].get("finalizers"):
        scene.client.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
    scene.client.delete(f"{CLAIMS}/{name}")


def test_a_claim_that_was_deleted_while_the_node_was_off_is_unprepared_and_its_gpu_is_free(scene: Scene) -> None:
    running(scene)
    scene.claim("gone", 8)
    scene.prepare("gone")
    scene.end(signal.SIGKILL)
    forget(scene, "gone")
    running(scene)
    scene.until(lambda: scene.specs() == [], "the removal of its CDI file")
    scene.until(lambda: records(scene, "claim.sweep"), "a record of it")
    assert records(scene, "claim.sweep")[0].data == {"why": "deleted"}
    scene.claim("next", 8)
    assert len(scene.prepare("next")) == 8


@pytest.mark.bug("B51")
def test_a_claim_that_is_deleted_by_force_while_it_is_prepared_is_noticed_by_its_watch_and_swept(scene: Scene) -> None:
    running(scene, reconcile_seconds=1.5)
    scene.claim("forced")
    scene.prepare("forced")
    # Looks at the claim have no answer: what is known of it comes from the watch alone.
    scene.server.faults.fail(500, "InternalError", methods=("GET",), path="resourceclaims/forced", times=None)
    scene.until(lambda: scene.logged("cannot be found out"), "a look in vain")
    client = scene.server.client()
    scene.until(lambda: any("forced" in one.query.get("fieldSelector", "") for one in scene.server.requests), "a watch")
    client.patch(f"{CLAIMS}/forced", {"metadata": {"finalizers": None}})
    client.delete(f"{CLAIMS}/forced")
    scene.until(lambda: scene.logged("the kubelet may unprepare it now"), "the watch's word")
    assert len(scene.specs()) == 1, "its end is not acted upon without a second answer"
    scene.server.faults.clear()
    scene.until(lambda: scene.specs() == [], "the removal of its CDI file")
    events = scene.until(
        lambda: [e for e in scene.client.get(EVENTS)["items"] if e["reason"] == "ClaimSwept"], "an Event"
    )
    assert events[0]["involvedObject"]["name"] == "forced"
    scene.until(lambda: [one.data for one in records(scene, "claim.sweep")] == [{"why": "deleted"}], "a record")
    scene.until(lambda: scene.server.open_watches == 1, "the end of the claim's watch")


def test_a_claim_that_is_in_use_stays_also_while_the_api_server_says_nothing(scene: Scene) -> None:
    running(scene)
    scene.claim("held")
    ids = scene.prepare("held")
    scene.end(signal.SIGKILL)
    scene.start(**{**QUICK, "api_server": "http://127.0.0.1:1"})
    scene.until(lambda: scene.logged("cannot be found out"), "a word about what is not known")
    assert len(scene.specs()) == 1
    scene.end(signal.SIGKILL)
    running(scene)
    asked = len(scene.server.requests)
    scene.until(
        lambda: sum(one.path.endswith("resourceclaims/held") for one in scene.server.requests[asked:]) > 3, "some looks"
    )
    assert scene.kubelet.container_devices("default", "held") == ids
    assert len(scene.specs()) == 1
    assert records(scene, "claim.sweep") == []


def test_a_claim_that_leaves_its_gpu_unused_is_listed_and_told(scene: Scene) -> None:
    running(scene, idle_seconds=1)
    scene.claim("lazy")
    scene.prepare("lazy")
    scene.until(lambda: records(scene, "claim.idle"), "a record that it is idle")
    assert records(scene, "claim.idle")[0].data["idle"] is True
    scene.end()
    scene.start(**{**QUICK, "idle_seconds": 1})
    scene.registered()

    def listed() -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "driver.cli.main", "idle", "--state-dir", str(state_dir(scene)), "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=Path(__file__).parents[2],
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    (one,) = scene.until(listed, "the list")
    assert (one["namespace"], one["claim"], one["everUsed"]) == ("default", "lazy", False)


def test_containers_get_their_devices_attributes_where_that_is_set(scene: Scene) -> None:
    running(scene, metadata_versions="metadata.resource.k8s.io/v1beta1")
    claim = scene.claim("told")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    scene.prepare("told")
    published = {device["name"]: device["attributes"] for device in scene.devices()}[result["device"]]
    files = list((scene.plugins / DRIVER).rglob("*metadata.json"))
    assert any(published["uuid"]["string"] in path.read_text() for path in files)
    scene.unprepare("told")
    assert list((scene.plugins / DRIVER).rglob("*metadata.json")) == []


@pytest.mark.bug("B83")
def test_the_metadata_of_a_claim_that_the_kubelet_did_not_come_back_for_goes_with_it(scene: Scene) -> None:
    versions = {"metadata_versions": "metadata.resource.k8s.io/v1beta1"}
    running(scene, **versions)
    for name in ("gone", "stays"):
        scene.claim(name)
        scene.prepare(name)

    def files() -> list[Path]:
        return [*(scene.plugins / DRIVER).rglob("metadata.json"), *scene.cdi.glob("*_metadata_*.json")]

    assert len(files()) == 4
    forget(scene, "gone")
    scene.until(lambda: len(files()) == 2, "the end of its files")
    assert len(scene.kubelet.container_devices("default", "stays")) == 2
    scene.end(signal.SIGKILL)
    (scene.plugins / DRIVER / "dra-device-metadata" / "0f3a4b6d-dead").mkdir()
    running(scene, **versions)
    scene.until(lambda: not list((scene.plugins / DRIVER).rglob("0f3a4b6d-dead")), "the end of a dead claim's folder")
    assert len(files()) == 2


@pytest.mark.bug("B63")
def test_a_journal_that_cannot_be_written_costs_no_claim(scene: Scene) -> None:
    state_dir(scene).mkdir(parents=True)
    (state_dir(scene) / "journal").write_text("a file stands here")
    running(scene)
    scene.claim("one")
    assert len(scene.prepare("one")) == 1
    scene.until(lambda: scene.logged("the journal in"), "a word about it")
    scene.unprepare("one")
    assert scene.specs() == []
    assert scene.end() == 0


def test_without_a_journal_everything_else_goes_on(scene: Scene) -> None:
    running(scene, journal_bytes=0)
    scene.claim("one")
    assert len(scene.prepare("one")) == 1
    scene.unprepare("one")
    assert not (state_dir(scene) / "journal").exists()
    assert scene.end() == 0
