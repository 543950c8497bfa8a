"""The DRA service over a real socket: every claim is answered, in order, in time, whatever the driver does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from msgspec.structs import replace

from kubeletplugin.api import Claim, ClaimRef, PreparedDevice, PrepareError, PrepareResult
from kubeletplugin.operation import operation_id
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from tests.unit.kubelet_side.fakes import (
    DRIVER,
    NODE,
    Driver,
    Node,
    claim_document,
    device_of,
    prepare_request,
    ref,
    unprepare_request,
)


@pytest.fixture
def plugin(node: Node) -> Iterator[Plugin]:
    for number in range(1, 9):
        node.api.add_claim(ref(number))
    with node.plugin() as plugin:
        yield plugin


@pytest.fixture
def dra(node: Node, plugin: Plugin) -> Iterator[dra_v1_pb2_grpc.DRAPluginStub]:
    with node.stub() as stub:
        yield stub


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def test_a_prepared_claim_is_answered_with_its_devices(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    reply = dra.NodePrepareResources(prepare_request(ref()), timeout=10)
    (device,) = reply.claims["uid-1"].devices
    assert reply.claims["uid-1"].error == ""
    assert list(device.request_names) == ["nic"], "the subrequest must go: the kubelet compares base names"
    assert (device.pool_name, device.device_name) == (f"{NODE}/{DRIVER}", "eth1")
    assert list(device.cdi_device_ids) == [f"{DRIVER}/claim=uid-1"]
    assert device.share_id == "share-1"
    assert node.observer.rpcs == [("prepare", "ok")]


def test_v1beta1_is_served_by_the_same_driver_without_share_id(node: Node, plugin: Plugin) -> None:
    with grpc.insecure_channel(f"unix:{node.dra_socket}") as channel:
        stub = dra_v1beta1_pb2_grpc.DRAPluginStub(channel)
        claims = [dra_v1beta1_pb2.Claim(namespace="default", name="claim-1", uid="uid-1")]
        reply = stub.NodePrepareResources(dra_v1beta1_pb2.NodePrepareResourcesRequest(claims=claims), timeout=10)
        undone = stub.NodeUnprepareResources(dra_v1beta1_pb2.NodeUnprepareResourcesRequest(claims=claims), timeout=10)
    expected = dra_v1beta1_pb2.Device(
        request_names=["nic"],
        pool_name=f"{NODE}/{DRIVER}",
        device_name="eth1",
        cdi_device_ids=[f"{DRIVER}/claim=uid-1"],
    )
    assert reply.claims["uid-1"].devices[0].SerializeToString() == expected.SerializeToString()
    assert undone.claims["uid-1"].error == ""
    assert node.driver.log == [("prepare", "uid-1"), ("unprepare", "uid-1")]


def test_a_device_without_share_has_none_and_request_names_are_not_repeated(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub
) -> None:
    node.driver.answers["uid-1"] = [PreparedDevice(("a/x", "a/y", "b"), "p", "d", ())]
    (device,) = dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"].devices
    assert list(device.request_names) == ["a", "b"]
    assert not device.HasField("share_id")


def test_two_shares_of_one_device_are_two_devices_of_the_answer(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    shares = [replace(device_of("uid-1"), share_id=f"share-{n}", cdi_device_ids=(f"cdi-{n}",)) for n in (1, 2)]
    node.driver.answers["uid-1"] = shares
    entry = dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"]
    assert [(one.device_name, one.share_id, list(one.cdi_device_ids)) for one in entry.devices] == [
        ("eth1", "share-1", ["cdi-1"]),
        ("eth1", "share-2", ["cdi-2"]),
    ]


@pytest.mark.bug("B60")
def test_an_empty_request_has_an_empty_answer_and_no_effect(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    assert not dra.NodePrepareResources(prepare_request(), timeout=10).claims
    assert not dra.NodeUnprepareResources(unprepare_request(), timeout=10).claims
    assert node.driver.log == []
    assert node.observer.rpcs == []


@pytest.mark.bug("B60")
def test_bad_claims_do_not_spoil_the_good_ones(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    node.driver.answers["uid-3"] = PrepareError("field shering is unknown", reason="InvalidConfig", permanent=True)
    reply = dra.NodePrepareResources(prepare_request(ref(1), ref(99), ref(3), ref(4)), timeout=10)
    assert {uid: entry.error for uid, entry in reply.claims.items()} == {
        "uid-1": "",
        "uid-99": "claim default/claim-99 (uid uid-99) does not exist any more",
        "uid-3": "field shering is unknown",
        "uid-4": "",
    }
    assert node.driver.prepared == {"uid-1", "uid-4"}
    assert sorted(outcome for _, outcome in node.observer.rpcs) == ["ClaimNotFound", "InvalidConfig", "ok", "ok"]


@pytest.mark.bug("B60")
def test_a_claim_that_cannot_be_undone_does_not_spoil_the_others(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub
) -> None:
    node.driver.answers["un-uid-2"] = PrepareError("device is busy", reason="DeviceBusy")
    reply = dra.NodeUnprepareResources(unprepare_request(ref(1), ref(2)), timeout=10)
    assert {uid: entry.error for uid, entry in reply.claims.items()} == {"uid-1": "", "uid-2": "device is busy"}


@pytest.mark.bug("B60")
def test_a_claim_that_is_named_twice_is_prepared_once(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    reply = dra.NodePrepareResources(prepare_request(ref(1), ref(1)), timeout=10)
    assert {uid: entry.error for uid, entry in reply.claims.items()} == {"uid-1": ""}
    assert node.driver.log == [("prepare", "uid-1")]


@pytest.mark.bug("B60")
def test_one_uid_under_two_names_is_refused(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    alias = ClaimRef(namespace="default", name="other", uid="uid-1")
    reply = dra.NodePrepareResources(prepare_request(ref(1), alias, ref(2)), timeout=10)
    assert reply.claims["uid-1"].error.startswith("claim uid uid-1 is named twice")
    assert reply.claims["uid-2"].error == ""
    assert node.driver.prepared == {"uid-2"}


@pytest.mark.bug("B131")
def test_a_uid_that_is_a_path_is_answered_and_reaches_nobody(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    evil = ClaimRef(namespace="default", name="claim-1", uid="../../etc/x")
    prepared = dra.NodePrepareResources(prepare_request(evil), timeout=10)
    undone = dra.NodeUnprepareResources(unprepare_request(evil), timeout=10)
    for reply in (prepared, undone):
        assert {uid: entry.error for uid, entry in reply.claims.items()} == {
            "../../etc/x": "claim UID '../../etc/x' is malformed"
        }
    assert node.driver.log == []


@pytest.mark.bug("B67")
def test_a_claim_that_is_not_allocated_never_reaches_the_driver(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    document = claim_document(ref())
    del document["status"]["allocation"]
    node.api.add_claim(ref(), document)
    reply = dra.NodePrepareResources(prepare_request(ref()), timeout=10)
    assert reply.claims["uid-1"].error == "claim default/claim-1 (uid uid-1) is not allocated"
    assert node.driver.log == []


@pytest.mark.bug("B55")
def test_after_a_claim_is_replaced_only_the_new_one_is_prepared(node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub) -> None:
    new = ClaimRef(namespace="default", name="claim-1", uid="uid-new")
    node.api.add_claim(ref(), claim_document(new))
    reply = dra.NodePrepareResources(prepare_request(ref(), new), timeout=10)
    assert "was replaced" in reply.claims["uid-1"].error
    assert reply.claims["uid-new"].error == ""
    assert node.driver.prepared == {"uid-new"}


@pytest.mark.bug("B57")
@pytest.mark.bug("B58")
def test_unprepare_asks_no_api_server_and_accepts_unknown_claims(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub
) -> None:
    asked = []
    node.api.before_get = asked.append
    for _ in range(2):
        reply = dra.NodeUnprepareResources(unprepare_request(ref(77)), timeout=10)
        assert {uid: entry.error for uid, entry in reply.claims.items()} == {"uid-77": ""}
    assert asked == []


def test_an_exception_is_that_claims_internal_error_with_the_operation(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, caplog: pytest.LogCaptureFixture
) -> None:
    node.driver.raises["uid-2"] = ZeroDivisionError("division by zero")
    reply = dra.NodePrepareResources(prepare_request(ref(1), ref(2), ref(3)), timeout=10)
    assert reply.claims["uid-1"].error == reply.claims["uid-3"].error == ""
    text = reply.claims["uid-2"].error
    assert text.startswith(f"internal error in {DRIVER}: ZeroDivisionError: division by zero (see its log, operation ")
    assert len(text.rpartition("operation ")[2]) == len("1a2b3c4d)")
    assert any(record.exc_info for record in caplog.records), "no traceback was logged"


def test_what_the_driver_raises_as_a_prepare_error_is_not_an_internal_error(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub
) -> None:
    node.driver.raises["uid-1"] = PrepareError("NVML has no driver yet", reason="NoDriver")
    reply = dra.NodePrepareResources(prepare_request(ref(1)), timeout=10)
    assert reply.claims["uid-1"].error == "NVML has no driver yet"


class Forgetful(Driver):
    """Answers for the wrong claim only."""

    def prepare(self, claims: list[Claim]) -> dict[str, PrepareResult]:
        return {"uid-of-nobody": []}


def test_a_claim_that_the_driver_forgets_is_answered_with_an_error(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.add_claim(ref())
    with node.plugin(handler=Forgetful()), node.stub() as dra:
        reply = dra.NodePrepareResources(prepare_request(ref()), timeout=10)
    assert list(reply.claims) == ["uid-1"], "the kubelet refuses answers about claims that it did not name"
    assert "no answer for this claim" in reply.claims["uid-1"].error
    assert "uid-of-nobody" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PrepareError("", reason="Why"), "Why"),
        (PrepareError("  ", reason="Why"), "Why"),
        (PrepareError("bad \ud800 text", reason="Why"), "bad ? text"),
        (PrepareError("x" * 10000, reason="Why"), "x" * 4096),
    ],
    ids=["empty", "blank", "lone surrogate", "too long"],  # an id with a surrogate cannot be sent between workers
)
def test_an_error_has_always_a_text_that_can_be_sent(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, error: PrepareError, expected: str
) -> None:
    node.driver.answers["uid-1"] = error
    assert dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"].error == expected


class Tracing(Driver):
    """Keeps the operation id that each call ran under."""

    def prepare(self, claims: list[Claim]) -> dict[str, PrepareResult]:
        self.log.append(("operation", operation_id.get()))
        return {claim.ref.uid: [device_of(claim.ref.uid)] for claim in claims}


def test_each_call_has_an_operation_id_of_its_own(node: Node) -> None:
    node.api.add_claim(ref())
    driver = Tracing()
    with node.plugin(handler=driver), node.stub() as dra:
        for _ in range(2):
            dra.NodePrepareResources(prepare_request(ref()), timeout=10)
    first, second = (value for _, value in driver.log)
    assert len(first) == len(second) == 8
    assert first != second
    assert operation_id.get() == ""


@pytest.mark.bug("B47")
def test_unprepare_waits_for_the_prepare_that_the_kubelet_gave_up_on(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, aside: ThreadPoolExecutor
) -> None:
    gate = node.driver.hold("uid-1")
    reply = dra.NodePrepareResources(prepare_request(ref()), timeout=1)
    assert "still runs and goes on; the kubelet asks again (operation " in reply.claims["uid-1"].error
    undoing = aside.submit(dra.NodeUnprepareResources, unprepare_request(ref()), timeout=30)
    assert node.driver.log == [("prepare", "uid-1")], "unprepare must not overtake"
    gate.set()
    assert undoing.result().claims["uid-1"].error == ""
    assert node.driver.log == [("prepare", "uid-1"), ("unprepare", "uid-1")]
    assert node.driver.prepared == set(), "after unprepare nothing is held"


@pytest.mark.bug("B47")
def test_a_retry_finds_the_work_of_the_call_that_took_too_long(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, aside: ThreadPoolExecutor
) -> None:
    gate = node.driver.hold("uid-1")
    assert dra.NodePrepareResources(prepare_request(ref()), timeout=4).claims["uid-1"].error
    retry = aside.submit(dra.NodePrepareResources, prepare_request(ref()), timeout=30)
    gate.set()
    assert retry.result().claims["uid-1"].error == ""
    assert node.driver.log == [("prepare", "uid-1"), ("prepare", "uid-1")]


def test_a_claim_that_somebody_else_works_on_says_who_and_since_when(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub
) -> None:
    gate = node.driver.hold("uid-1")
    dra.NodePrepareResources(prepare_request(ref()), timeout=4)
    text = dra.NodeUnprepareResources(unprepare_request(ref()), timeout=4).claims["uid-1"].error
    assert "an earlier call (prepare, operation " in text
    assert "still works on claim default/claim-1 (uid uid-1); the kubelet asks again" in text
    gate.set()


def test_a_busy_claim_does_not_delay_the_others_of_its_request(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, aside: ThreadPoolExecutor
) -> None:
    gate = node.driver.hold("uid-1")
    first = aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=30)
    assert node.driver.entered["uid-1"].wait(10)
    node.driver.entered["uid-2"] = reached = threading.Event()
    node.driver.gates["uid-2"] = passes = threading.Event()
    passes.set()
    both = aside.submit(dra.NodePrepareResources, prepare_request(ref(1), ref(2)), timeout=30)
    assert reached.wait(10), "claim 2 waits for claim 1"
    gate.set()
    assert {uid: entry.error for uid, entry in both.result().claims.items()} == {"uid-1": "", "uid-2": ""}
    assert first.result().claims["uid-1"].error == ""


@pytest.mark.bug("B59")
def test_claims_are_prepared_side_by_side(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, aside: ThreadPoolExecutor
) -> None:
    gates = [node.driver.hold(f"uid-{number}") for number in range(1, 9)]
    calls = [aside.submit(dra.NodePrepareResources, prepare_request(ref(number)), timeout=30) for number in range(1, 9)]
    for number in range(1, 9):
        assert node.driver.entered[f"uid-{number}"].wait(10), "one slow claim holds up the others"
    for gate in gates:
        gate.set()
    assert all(not entry.error for call in calls for entry in call.result().claims.values())


def test_claims_that_are_being_prepared_never_keep_others_from_being_undone(
    node: Node, aside: ThreadPoolExecutor
) -> None:
    node.api.add_claim(ref(1))
    gate = node.driver.hold("uid-1")
    with node.plugin(workers=1), node.stub() as dra:
        waiting = aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=30)
        assert node.driver.entered["uid-1"].wait(10)
        undone = dra.NodeUnprepareResources(unprepare_request(ref(2)), timeout=10)
        assert undone.claims["uid-2"].error == ""
        assert not waiting.done(), "it may be waiting for just that"
        gate.set()
        assert waiting.result().claims["uid-1"].error == ""


def test_when_all_workers_are_busy_the_kubelet_is_told_so_in_time(node: Node, aside: ThreadPoolExecutor) -> None:
    node.api.add_claim(ref(1))
    node.api.add_claim(ref(2))
    gate = node.driver.hold("uid-1")
    with node.plugin(workers=1), node.stub() as dra:
        slow = aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=30)
        assert node.driver.entered["uid-1"].wait(10)
        reply = dra.NodePrepareResources(prepare_request(ref(2)), timeout=4)
        assert "was not begun, all workers are busy" in reply.claims["uid-2"].error
        gate.set()
        assert slow.result().claims["uid-1"].error == ""
        assert dra.NodePrepareResources(prepare_request(ref(2)), timeout=10).claims["uid-2"].error == ""
    assert node.driver.log == [("prepare", "uid-1"), ("prepare", "uid-2")], "the call that was answered is not begun"


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


@pytest.mark.bug("B67")
def test_a_slow_api_server_is_reported_before_the_kubelet_gives_up(node: Node) -> None:
    node.api.add_claim(ref())
    answers = threading.Event()
    node.api.before_get = lambda _path: _wait(answers)
    with node.plugin(call_deadline=0.3), node.stub() as dra:
        reply = dra.NodePrepareResources(prepare_request(ref()), timeout=45)
        assert "still runs and goes on" in reply.claims["uid-1"].error
        answers.set()
        assert dra.NodePrepareResources(prepare_request(ref()), timeout=45).claims["uid-1"].error == ""


@pytest.mark.bug("B67")
def test_the_api_server_gets_less_time_than_the_kubelet_gives(node: Node) -> None:
    timeouts = []

    class Reader:
        def get(self, path: str, *, timeout: float) -> dict[str, object]:
            timeouts.append(timeout)
            return claim_document(ref())

    with node.plugin(client=Reader()), node.stub() as dra:
        dra.NodePrepareResources(prepare_request(ref()), timeout=45)
        dra.NodePrepareResources(prepare_request(ref()), timeout=5)
    assert timeouts[0] == 15
    assert 0 < timeouts[1] < 5


@pytest.mark.bug("B56")
def test_prepare_and_unprepare_at_the_same_time_leave_what_the_last_one_left(
    node: Node, dra: dra_v1_pb2_grpc.DRAPluginStub, aside: ThreadPoolExecutor
) -> None:
    for _ in range(60):
        calls = [
            aside.submit(dra.NodePrepareResources, prepare_request(ref()), timeout=30),
            aside.submit(dra.NodeUnprepareResources, unprepare_request(ref()), timeout=30),
        ]
        assert all(not call.result().claims["uid-1"].error for call in calls)
        last = node.driver.log[-1][0]
        assert node.driver.prepared == ({"uid-1"} if last == "prepare" else set())
