"""The agent as a node runs it: its start, its states, its ends, on a mock node between stand-ins."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agents import CLAIMS, DRIVER, POOL, RESOURCES, Scene, until
from tests.support.cdispecs import given


def running(scene: Scene, **flags: object) -> Scene:
    scene.start(**flags)
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 8, "eight devices")
    return scene


def test_it_registers_publishes_and_prepares_what_was_allocated(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("four", 4, match="resource.kubernetes.io/numaNode")
    names = [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]]
    ids = scene.prepare("four")
    assert len(ids) == len(set(ids)) == 4
    (spec,) = scene.specs()
    written = json.loads(spec.read_bytes())
    assert {f"{written['kind']}={device['name']}" for device in given(written)} == set(ids)
    published = {device["name"]: device["attributes"]["uuid"]["string"] for device in scene.devices()}
    assert all(published[name] in json.dumps(written) for name in names)
    assert "NVIDIA_VISIBLE_DEVICES=void" in written["containerEdits"]["env"]
    scene.unprepare("four")
    assert scene.specs() == []


def test_the_status_of_a_claim_says_which_gpu_it_got(scene: Scene) -> None:
    running(scene)
    scene.claim("one")
    scene.prepare("one")

    def said() -> Any:
        return scene.client.get(f"{CLAIMS}/one")["status"].get("devices")

    (entry,) = scene.until(said, "the claim's status")
    published = {device["name"]: device["attributes"] for device in scene.devices()}[entry["device"]]
    assert entry["driver"] == DRIVER
    assert entry["data"]["uuid"] == published["uuid"]["string"]
    assert entry["data"]["pciBusID"] == published["resource.kubernetes.io/pciBusID"]["string"]


def test_an_ordinary_end_removes_its_sockets_and_leaves_the_slices(scene: Scene) -> None:
    running(scene)
    before = scene.slices()
    assert scene.end() == 0
    assert list(scene.registry.iterdir()) == []
    assert list((scene.plugins / DRIVER).glob("*.sock")) == []
    assert scene.slices() == before


def test_sigint_ends_it_like_sigterm(scene: Scene) -> None:
    running(scene)
    assert scene.end(signal.SIGINT) == 0


@pytest.mark.bug("B37")
def test_after_kill_9_a_new_one_takes_over_and_old_claims_are_unprepared(scene: Scene) -> None:
    running(scene)
    scene.claim("before")
    ids = scene.prepare("before")
    before = [device["name"] for device in scene.devices()]
    scene.end(signal.SIGKILL)
    running(scene)
    assert [device["name"] for device in scene.devices()] == before
    assert scene.kubelet.container_devices("default", "before") == ids
    assert len(scene.specs()) == 1
    scene.claim("after")
    assert scene.prepare("after")
    scene.unprepare("before")
    scene.unprepare("after")
    assert scene.specs() == []


@pytest.mark.bug("B73")
def test_a_cdi_file_that_vanished_while_it_was_down_is_made_again(scene: Scene) -> None:
    running(scene)
    scene.claim("held")
    scene.prepare("held")
    (spec,) = scene.specs()
    text = spec.read_bytes()
    scene.end(signal.SIGKILL)
    spec.unlink()
    running(scene)
    scene.until(lambda: scene.specs() == [spec], "the specification")
    assert spec.read_bytes() == text


@pytest.mark.bug("B72")
def test_after_a_reboot_a_prepared_claim_has_its_cdi_file_again_and_can_be_ended(scene: Scene) -> None:
    running(scene)
    scene.claim("held")
    ids = scene.prepare("held")
    (spec,) = scene.specs()
    scene.end(signal.SIGKILL)
    spec.unlink()  # /var/run/cdi is a tmpfs
    (scene.node.root / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    scene.kubelet.restart()
    running(scene)
    scene.until(lambda: scene.specs() == [spec], "the specification")
    assert scene.prepare("held") == ids
    scene.unprepare("held")
    assert scene.specs() == []


@pytest.mark.bug("B58")
def test_without_a_driver_it_registers_publishes_nothing_and_still_unprepares(scene: Scene) -> None:
    running(scene)
    scene.claim("held")
    scene.prepare("held")
    scene.end(signal.SIGKILL)
    for item in scene.slices():
        scene.client.delete(f"{RESOURCES}/resourceslices/{item['metadata']['name']}")
    scene.node.set_driver_loaded(False)
    scene.start()
    scene.registered()
    scene.until(lambda: scene.logged("the NVIDIA driver does not answer"), "a word about the driver")
    assert scene.slices() == [], "an empty pool would tell autoscalers that the node is ready"
    scene.unprepare("held")
    assert scene.specs() == []
    scene.node.set_driver_loaded(True)
    scene.until(lambda: len(scene.devices()) == 8, "all devices once the driver is there")


def test_a_claim_that_comes_before_the_first_reading_waits_for_it(scene: Scene) -> None:
    running(scene)
    scene.claim("early")
    scene.end(signal.SIGKILL)
    scene.node.set_driver_loaded(False)
    scene.start()
    scene.registered()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.prepare, "early")
        scene.until(lambda: scene.logged("waits at most 20 s"), "a word about what is waited for")
        scene.node.set_driver_loaded(True)
        assert len(waiting.result(30)) == 1


def test_a_claim_that_waited_in_vain_for_the_first_reading_is_told_why_and_succeeds_later(scene: Scene) -> None:
    running(scene)
    scene.claim("early")
    scene.end(signal.SIGKILL)
    scene.node.set_driver_loaded(False)
    scene.start(prepare_wait_seconds=0.5)
    scene.registered()
    with pytest.raises(KubeletError, match="no picture of this node's GPUs yet"):
        scene.prepare("early")
    readings = len(scene.logged("the node was read"))
    scene.node.set_driver_loaded(True)
    scene.until(lambda: len(scene.logged("the node was read")) > readings, "the first reading")
    assert len(scene.prepare("early")) == 1


def test_a_gpu_whose_pod_was_deleted_by_force_goes_to_the_next_pod_as_soon_as_the_kubelet_has_undone_it(
    scene: Scene,
) -> None:
    running(scene)
    scene.claim("first", 8)
    scene.prepare("first")
    scene.allocator.release("default", "first", pod_uid="pod-first")
    scene.claim("second")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.prepare, "second")
        scene.until(lambda: scene.logged("waits at most 20 s"), "a word about who holds the GPU")
        assert not waiting.done()
        scene.unprepare("first")
        assert len(waiting.result(30)) == 1


def test_a_driver_that_goes_away_taints_every_device_until_it_is_back(scene: Scene) -> None:
    running(scene)
    scene.node.set_driver_loaded(False)

    def taints() -> set[str]:
        return {taint["key"] for device in scene.devices() for taint in device.get("taints", [])}

    scene.until(lambda: taints() == {"gpu.nvidia.com/driver-unavailable"}, "the taint")
    assert len(scene.devices()) == 8
    scene.node.set_driver_loaded(True)
    scene.until(lambda: len(scene.devices()) == 8 and not taints(), "the end of the taint")


@pytest.mark.bug("B13")
def test_a_lost_gpu_is_tainted_and_leaves_the_seven_others_as_they_were(scene: Scene) -> None:
    running(scene, health_seconds=0.2, health_recovery_seconds=0.5)
    before = {device["name"]: device for device in scene.devices()}
    scene.node.set_gpu_state("0000:43:00.0", "lost")

    def lost() -> dict[str, Any]:
        return next(device for device in scene.devices() if device["name"] == "gpu-0000-43-00-0")

    scene.until(lambda: lost().get("taints"), "the taint")
    device = lost()
    assert [taint["key"] for taint in device.pop("taints")] == ["gpu.nvidia.com/gpu-lost"]
    assert {one["name"]: one for one in scene.devices()} | {device["name"]: device} == before
    scene.until(lambda: scene.logged("GPU 0000:43:00.0 is lost now"), "a word about it")
    scene.node.set_gpu_state("0000:43:00.0", "ok")
    scene.until(lambda: {one["name"]: one for one in scene.devices()} == before, "all as it was")


@pytest.mark.bug("B34")
def test_a_slice_that_somebody_deleted_is_back(scene: Scene) -> None:
    running(scene)
    name = scene.slices()[0]["metadata"]["name"]
    scene.client.delete(f"{RESOURCES}/resourceslices/{name}")
    scene.until(lambda: len(scene.devices()) == 8, "the devices again")
    assert scene.slices()[0]["metadata"]["name"] != name


def test_slices_come_back_after_the_kubelet_restarts(scene: Scene) -> None:
    running(scene)
    before = {item["metadata"]["name"] for item in scene.slices()}
    scene.kubelet.restart()

    def published_anew() -> bool:
        return len(scene.devices()) == 8 and before.isdisjoint(item["metadata"]["name"] for item in scene.slices())

    scene.until(published_anew, "the devices again")
    scene.claim("later")
    assert scene.prepare("later")


@pytest.mark.bug("B60")
def test_one_bad_claim_of_several_spoils_no_other(scene: Scene) -> None:
    running(scene)
    scene.claim("good")
    scene.claim("bad", pod="good", config={"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfg"})
    with pytest.raises(KubeletError, match="GpuConfg"):
        scene.prepare("good", "bad")
    assert len(scene.specs()) == 1
    assert len(scene.prepare("good")) == 1


@pytest.mark.bug("B55")
def test_a_claim_that_was_replaced_by_one_of_the_same_name_is_not_prepared_in_its_stead(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("twin")
    plugin = scene.kubelet.plugins.plugin(DRIVER)
    from kubeletplugin.api import ClaimRef

    stale = ClaimRef("default", "twin", "11111111-2222-3333-4444-555555555555")
    answer = plugin.prepare([stale]).claims[stale.uid]
    assert claim["metadata"]["uid"] in answer.error
    assert scene.specs() == []


def test_a_stranger_that_registers_under_our_name_keeps_it_waiting(scene: Scene) -> None:
    class Stranger(registration_v1_pb2_grpc.RegistrationServicer):
        def GetInfo(
            self, request: registration_v1_pb2.InfoRequest, context: grpc.ServicerContext
        ) -> registration_v1_pb2.PluginInfo:
            return registration_v1_pb2.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/elsewhere/dra.sock")

    scene.kubelet.stop()
    server = grpc.server(ThreadPoolExecutor(1))
    registration_v1_pb2_grpc.add_RegistrationServicer_to_server(Stranger(), server)
    server.add_insecure_port(f"unix:{scene.registry}/stranger-reg.sock")
    server.start()
    scene.start()
    scene.until(lambda: scene.logged("another driver registers as gpu.nvidia.com"), "a word about the stranger")
    assert scene.slices() == []
    assert not list((scene.plugins / DRIVER).glob("*.sock"))
    server.stop(0).wait()
    scene.until(lambda: len(scene.devices()) == 8, "the devices, once the stranger is gone")


@pytest.mark.bug("B05")
def test_a_refused_slice_is_an_event_on_the_node_and_makes_it_not_ready(scene: Scene) -> None:
    scene.server.faults.fail(
        422,
        "Invalid",
        message="spec.devices[0].name: Invalid value",
        methods=("POST",),
        path="resourceslices",
        times=None,
    )
    scene.start()
    events = scene.until(
        lambda: [e for e in scene.client.get("/api/v1/events")["items"] if e["reason"] == "ResourceSliceRefused"],
        "an event",
    )
    assert events[0]["involvedObject"]["kind"] == "Node"
    assert POOL in events[0]["message"]
    assert "spec.devices[0].name" in events[0]["message"]
    scene.server.faults.clear()


def test_metrics_and_health_are_served(scene: Scene) -> None:
    running(scene, metrics_port=0, metrics_address="127.0.0.1", health_port=0)
    (entry,) = scene.until(lambda: scene.logged("metrics are served"), "the port")
    scene.claim("one")
    scene.prepare("one")
    url = f"http://127.0.0.1:{entry['port']}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    text = scene.until(lambda: t if "gpudra_prepared_devices" in (t := read()) else "", "the metrics")
    assert 'gpudra_requests_total{operation="prepare",outcome="ok"} 1.0' in text
    assert 'gpudra_prepared_devices{type="gpu"} 1.0' in text
    assert 'gpudra_gpus{state="ready"} 8.0' in text
    assert f'gpudra_resource_slices{{pool="{POOL}"}} 1.0' in text
    assert "gpudra_registered 1.0" in text


@pytest.mark.parametrize(
    ("port", "word"),
    [
        ("metrics_port", "metrics cannot be served.* in use; choose another port or -1 for none"),
        ("health_port", r"probe address 127\.0\.0\.1:\d+ cannot be bound.*; another process .* choose another"),
    ],
)
def test_a_port_that_is_taken_ends_it_with_a_clear_word(scene: Scene, port: str, word: str) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        scene.start(**{"metrics_address": "127.0.0.1", port: taken.getsockname()[1]})
        assert scene.process is not None
        assert scene.process.wait(30) == 1
    assert [entry for entry in scene.logged("") if re.search(word, json.dumps(entry))]
    assert list(scene.registry.iterdir()) == []


def test_a_quiet_node_writes_nothing_more(scene: Scene) -> None:
    running(scene)
    writes = len(scene.server.writes())
    rounds = len(scene.server.requests)
    scene.node.set_gpu_state("0000:43:00.0", "lost")
    scene.until(lambda: any(device.get("taints") for device in scene.devices()), "one change")
    assert len(scene.server.writes()) == writes + 1
    assert len(scene.server.requests) < rounds + 60, "reading the node again and again asks nothing of the server"


def test_a_claim_that_nobody_can_read_is_answered_with_the_reason(scene: Scene) -> None:
    running(scene)
    from kubeletplugin.api import ClaimRef

    absent = ClaimRef("default", "absent", "11111111-2222-3333-4444-555555555555")
    answer = scene.kubelet.plugins.plugin(DRIVER).prepare([absent]).claims[absent.uid]
    assert "default/absent" in answer.error
    assert "does not exist any more" in answer.error
    assert scene.client.get(CLAIMS)["items"] == []


def test_the_log_is_json_and_ties_the_lines_of_a_call_together(scene: Scene) -> None:
    running(scene)
    scene.claim("one")
    scene.prepare("one")
    (entry,) = until(lambda: scene.logged("prepared claim default/one"), "the line")
    assert entry["operation"]
    assert entry["devices"] == ["gpu-0000-1b-00-0"]


@pytest.mark.parametrize(
    "arguments", [["--node-name", "Node_A"], ["--mock-profile", "dgx-h100"], ["--config", "/absent"]]
)
def test_flags_that_cannot_be_used_end_it_at_once(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    from driver.cli.main import main

    assert main(["agent", *arguments]) == 2
    assert capfd.readouterr().err.startswith("gpudra agent: ")


def test_sigusr2_shows_what_its_threads_do_and_ends_nothing(scene: Scene) -> None:
    running(scene)
    assert scene.process is not None
    scene.process.send_signal(signal.SIGUSR2)
    scene.until(lambda: "in _serve" in scene.log.read_text(), "the stacks")
    assert scene.end() == 0


def test_the_mock_announces_itself_in_the_log(scene: Scene) -> None:
    running(scene)
    assert scene.logged("this node is a MOCK")


def test_a_library_that_is_a_folder_is_named_and_mended_without_a_restart(scene: Scene, tmp_path: Path) -> None:
    library = scene.node.library
    real = library.resolve()
    library.unlink()
    library.mkdir()
    scene.start()
    scene.registered()
    (entry, *_) = scene.until(lambda: scene.logged("the NVIDIA driver does not answer"), "a word about it")
    assert str(library.name) in entry["message"]
    assert scene.slices() == []
    library.rmdir()
    library.symlink_to(real.name)
    scene.until(lambda: len(scene.devices()) == 8, "the devices once it is mended")
