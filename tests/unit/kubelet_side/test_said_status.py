"""What a claim's status says already need not be written again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.api import ClaimRef, DeviceStatus
from kubeletplugin.claimstatus import PACE, ClaimStatusWriter, document, is_said

DRIVER = "net.example.com"
REF = ClaimRef("default", "claim", "uid-1")
ETH1 = DeviceStatus("pool", "eth1", data={"uuid": "NIC-1"})
ETH2 = DeviceStatus("pool", "eth2", "share-1", ({"type": "Ready", "status": "True"},), None, {"interfaceName": "eth2"})
OTHERS = {"driver": "gpu.example.com", "pool": "pool", "device": "eth1", "data": {"uuid": "GPU-1"}}


def claim(*entries: Any) -> dict[str, Any]:
    return {"status": {"devices": list(entries)}}


def entries(*devices: DeviceStatus) -> list[Any]:
    found: list[Any] = document(DRIVER, REF, devices)["status"]["devices"]
    return found


def test_the_same_words_in_another_order_and_beside_others_are_said() -> None:
    assert is_said(DRIVER, claim(OTHERS, *reversed(entries(ETH1, ETH2))), [ETH1, ETH2])


def test_what_the_server_adds_as_null_changes_nothing() -> None:
    (entry,) = entries(ETH1)
    assert is_said(DRIVER, claim(entry | {"conditions": None, "networkData": None}), [ETH1])


@pytest.mark.parametrize("empty", [{}, {"status": None}, {"status": {}}, {"status": {"devices": None}}, claim(OTHERS)])
def test_where_nothing_of_the_driver_is_said_only_nothing_is_said_already(empty: dict[str, Any]) -> None:
    assert is_said(DRIVER, empty, [])
    assert not is_said(DRIVER, empty, [ETH1])


@pytest.mark.parametrize(
    "said",
    [
        [ETH1],
        [ETH1, ETH2, DeviceStatus("pool", "eth3")],
        [ETH1, DeviceStatus("pool", "eth2", "share-2", ETH2.conditions, None, ETH2.network_data)],
        [DeviceStatus("pool", "eth1", data={"uuid": "NIC-2"}), ETH2],
        [DeviceStatus("elsewhere", "eth1", data=ETH1.data), ETH2],
    ],
)
def test_other_words_fewer_and_more_have_to_be_written(said: list[DeviceStatus]) -> None:
    assert not is_said(DRIVER, claim(*entries(*said)), [ETH1, ETH2])


@given(st.lists(st.sampled_from(["a", "b", "c"]), unique=True), st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
def test_it_is_said_when_both_name_the_same_devices(said: list[str], wanted: list[str]) -> None:
    devices = [DeviceStatus("pool", name) for name in said]
    answer = is_said(DRIVER, claim(*entries(*devices)), [DeviceStatus("pool", name) for name in wanted])
    assert answer == (set(said) == set(wanted))


class Client:
    """Takes what is applied; ``KubeClient`` for the writer."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def apply(self, path: str, body: Any, *, field_manager: str) -> dict[str, Any]:
        self.applied.append(body["metadata"]["name"])
        return {}


def test_a_burst_is_written_at_a_pace_that_leaves_the_server_to_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    pauses: list[tuple[int, float | None]] = []
    writer = ClaimStatusWriter(client, DRIVER)  # type: ignore[arg-type]  # apply is all that it uses
    monkeypatch.setattr(writer._stopping, "wait", lambda timeout=None: pauses.append((len(client.applied), timeout)))
    for number in range(3):
        writer.report(ClaimRef("default", f"claim-{number}", f"uid-{number}"), [ETH1])
    assert writer.settled(10)
    writer.stop()
    assert client.applied == ["claim-0", "claim-1", "claim-2"]
    # Before the first one too: it would be written while the kubelet is being answered.
    assert pauses == [(0, PACE), (1, PACE), (2, PACE)]
