"""The status of claims, written in the background: own entries only, the newest word, and no end of patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.api import ClaimRef, DeviceStatus
from kubeletplugin.claimstatus import ClaimStatusWriter, document
from kubeletplugin.plugin import Plugin
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.handler import FaultyHandler

DRIVER = "net.example.com"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SHARE = "11111111-2222-3333-4444-555555555555"
ETH1 = DeviceStatus("pool", "eth1", data={"uuid": "NIC-1", "pciBusID": "0000:1b:00.0"})


class Bench:
    def __init__(self, server: EmbeddedApiServer) -> None:
        self.server = server
        self.client = server.client()
        self.failures: list[tuple[str, bool]] = []
        self.writer = ClaimStatusWriter(
            self.client, DRIVER, on_failure=lambda _ref, message, again: self.failures.append((message, again))
        )

    def claim(self, name: str = "claim", *others: str) -> ClaimRef:
        created = self.client.create(
            CLAIMS,
            {
                "metadata": {"name": name},
                "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}},
            },
        )
        devices = [{"device": "eth1"}, {"device": "eth2", "shareID": SHARE}, *({"driver": one} for one in others)]
        results = [{"request": "nic", "driver": DRIVER, "pool": "pool", "device": "eth1"} | one for one in devices]
        status = {"allocation": {"devices": {"results": results}}}
        self.client.update(f"{CLAIMS}/{name}/status", created | {"status": status})
        return ClaimRef("default", name, created["metadata"]["uid"])

    def stored(self, name: str = "claim") -> list[dict[str, Any]]:
        devices = self.client.get(f"{CLAIMS}/{name}")["status"].get("devices") or []
        return [{key: value for key, value in one.items() if value is not None} for one in devices]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with EmbeddedApiServer() as server:
        bench = Bench(server)
        yield bench
        bench.writer.stop()


def entry(device: str, **fields: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "pool": "pool", "device": device, **fields}


def test_a_device_is_described_with_what_people_look_for(bench: Bench) -> None:
    bench.writer.report(
        bench.claim(), [ETH1, DeviceStatus("pool", "eth2", SHARE, network_data={"ips": ["10.0.0.1/8"]})]
    )
    assert bench.writer.settled(10)
    assert bench.stored() == [
        entry("eth1", data={"uuid": "NIC-1", "pciBusID": "0000:1b:00.0"}),
        entry("eth2", shareID=SHARE, networkData={"ips": ["10.0.0.1/8"]}),
    ]


def test_entries_of_other_drivers_are_left_alone(bench: Bench) -> None:
    ref = bench.claim("claim", "other.example.com")
    theirs = {"driver": "other.example.com", "pool": "pool", "device": "eth1", "data": {"n": 1}}
    path = f"{CLAIMS}/claim/status"
    body = document("other.example.com", ref, [DeviceStatus("pool", "eth1", data={"n": 1})])
    bench.client.apply(path, body, field_manager="other.example.com")
    for devices, mine in (([ETH1], ["eth1"]), ([], [])):
        bench.writer.report(ref, devices)
        assert bench.writer.settled(10)
        assert [one for one in bench.stored() if one["driver"] != DRIVER] == [theirs]
        assert [one["device"] for one in bench.stored() if one["driver"] == DRIVER] == mine


def test_another_instance_goes_on_where_this_one_ended(bench: Bench) -> None:
    ref = bench.claim()
    bench.writer.report(ref, [ETH1])
    assert bench.writer.settled(10)
    bench.writer.stop()
    second = ClaimStatusWriter(bench.client, DRIVER)
    second.report(ref, [])
    assert second.settled(10)
    second.stop()
    assert bench.stored() == []


def test_the_newest_word_counts_after_an_outage(bench: Bench) -> None:
    ref = bench.claim()
    bench.server.faults.fail(500, "InternalError", methods=("PATCH",), times=None)
    for number in range(20):
        bench.writer.report(ref, [DeviceStatus("pool", "eth1", data={"n": number})])
    while not bench.failures:
        assert not bench.writer.settled(0.01)
    bench.server.faults.clear()
    assert bench.writer.settled(20)
    assert bench.stored() == [entry("eth1", data={"n": 19})]
    assert all(again for _message, again in bench.failures)


def test_a_claim_that_is_gone_or_another_one_is_forgotten(bench: Bench) -> None:
    first = bench.claim()
    bench.client.delete(f"{CLAIMS}/claim")
    bench.writer.report(first, [ETH1])
    assert bench.writer.settled(10)
    bench.claim()
    bench.writer.report(first, [ETH1])
    assert bench.writer.settled(10)
    assert bench.stored() == [], "the new claim of that name is not ours"
    assert [again for _message, again in bench.failures] == [False, False]


def test_a_bad_word_about_one_claim_holds_up_no_other(bench: Bench) -> None:
    bad, good = bench.claim("bad"), bench.claim("good")
    bench.writer.report(bad, [DeviceStatus("pool", "nowhere")])
    bench.writer.report(good, [ETH1])
    assert bench.writer.settled(10)
    assert bench.stored("good") == [entry("eth1", data=ETH1.data)]
    ((message, again),) = bench.failures
    assert "must be an allocated device in the claim" in message
    assert not again


DRIVER_RIGHT = (
    'ResourceClaim.resource.k8s.io "claim" is invalid: status.devices: Forbidden: changing status.devices requires '
    'resource="resourceclaims/driver", verb="[associated-node:patch arbitrary-node:patch]" permission'
)
"""What kube-apiserver 1.37 answers to an account without that right."""


@pytest.mark.parametrize(
    ("status", "said"), [(403, "may not"), (422, DRIVER_RIGHT)], ids=["resourceclaims/status", "resourceclaims/driver"]
)
def test_a_missing_permission_says_what_to_add_and_is_not_asked_for_again_soon(
    bench: Bench, status: int, said: str
) -> None:
    bench.server.faults.fail(status, "Refused", message=said, methods=("PATCH",), times=None)
    bench.writer.report(bench.claim(), [ETH1])
    while not bench.failures:
        assert not bench.writer.settled(0.01)
    assert not bench.writer.settled(1.5)
    ((message, again),) = bench.failures
    assert again
    assert "patch on resourceclaims/status" in message
    assert f"resourceclaims/driver with the resource name {DRIVER}" in message


REORDERED = (
    'ResourceClaim.resource.k8s.io "claim" is invalid: status.allocation: Invalid value: null: field cannot be '
    "modified once set"
)
"""What kube-apiserver 1.34 to 1.37 answer to an apply where opaque configuration has its keys in another order than the
alphabet's, and to whatever is written where it has white space between them."""


def test_where_an_apply_would_put_the_keys_of_configuration_in_order_a_patch_leaves_them(bench: Bench) -> None:
    ref = bench.claim("claim", "other.example.com")
    theirs = {"driver": "other.example.com", "pool": "pool", "device": "eth1", "data": {"n": 1}}
    body = document("other.example.com", ref, [DeviceStatus("pool", "eth1", data={"n": 1})])
    bench.client.apply(f"{CLAIMS}/claim/status", body, field_manager="other.example.com")
    for devices, mine in (([ETH1], ["eth1"]), ([ETH1], ["eth1"]), ([], [])):
        bench.server.faults.fail(422, "Invalid", message=REORDERED, methods=("PATCH",))
        bench.writer.report(ref, devices)
        assert bench.writer.settled(10)
        assert [one for one in bench.stored() if one["driver"] != DRIVER] == [theirs]
        assert [one["device"] for one in bench.stored() if one["driver"] == DRIVER] == mine
    assert bench.failures == []


def test_a_patch_that_met_another_change_is_tried_again(bench: Bench) -> None:
    ref = bench.claim()
    bench.server.faults.fail(422, "Invalid", message=REORDERED, methods=("PATCH",))
    bench.server.faults.fail(409, "Conflict", message="the object has been modified", methods=("PATCH",))
    bench.writer.report(ref, [ETH1])
    assert bench.writer.settled(10)
    assert bench.stored() == [entry("eth1", data=ETH1.data)]
    assert [again for _message, again in bench.failures] == [True]


def test_a_patch_leaves_another_claim_of_that_name_alone(bench: Bench) -> None:
    first = bench.claim()
    bench.client.delete(f"{CLAIMS}/claim")
    bench.claim()
    bench.server.faults.fail(422, "Invalid", message=REORDERED, methods=("PATCH",))
    bench.writer.report(first, [ETH1])
    assert bench.writer.settled(10)
    assert bench.stored() == []
    assert not bench.failures[-1][1]


def test_configuration_with_white_space_is_named_as_the_reason_and_no_end_of_attempts(bench: Bench) -> None:
    endless = REORDERED.replace("null", "[]uint8{" + "0x7b, " * 5000 + "}")  # Kubernetes 1.34 and 1.36
    bench.server.faults.fail(422, "Invalid", message=endless, methods=("PATCH",), times=None)
    bench.writer.report(bench.claim(), [ETH1])
    assert bench.writer.settled(10)
    ((message, again),) = bench.failures
    assert len(message) < 600
    assert "takes the white space in the claim's opaque configuration for a change" in message
    assert "must write the configuration's JSON without white space" in message
    assert not again


def test_stopping_does_not_wait_for_what_cannot_be_written(bench: Bench) -> None:
    bench.server.faults.fail(503, "ServiceUnavailable", methods=("PATCH",), times=None, retry_after=100)
    bench.writer.report(bench.claim(), [ETH1])
    while not bench.failures:
        assert not bench.writer.settled(0.01)
    bench.writer.stop()
    bench.writer.report(bench.claim("late"), [ETH1])
    assert bench.stored("late") == []


def test_a_plugin_says_it_and_is_silent_once_it_is_stopped(bench: Bench, root: Path) -> None:
    plugin = Plugin(
        DRIVER,
        "node-1",
        FaultyHandler(),
        client=bench.client,
        plugins_dir=root / "plugins",
        registry_dir=root / "plugins_registry",
    )
    first, second = bench.claim("first"), bench.claim("second")
    with plugin:
        plugin.report_status(first, [ETH1])
        while not bench.stored("first"):
            threading.Event().wait(0.01)
    plugin.report_status(second, [ETH1])
    assert bench.stored("second") == []
