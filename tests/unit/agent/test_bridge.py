"""What passes between the plugin library and the driver: claims, answers, and the news for metrics and Events."""

from __future__ import annotations

from typing import Any

import pytest

from driver.bridge import AgentObserver, ClaimHandler, count_prepared, held_claims, metadata_problems, resources
from driver.metrics import Deferred, Metrics
from driver.prepare import ClaimError, ClaimRecord, ClaimRef, DeviceRecord, Phase, PreparedDevice, Reason
from driver.publish import PoolDocument
from kubeletplugin import api

ONE = api.ClaimRef("ns", "one", "uid-1")
TWO = api.ClaimRef("ns", "two", "uid-2")
NODE = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}


class FakePreparer:
    """Answers from a table and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.records: tuple[ClaimRecord, ...] = ()

    def prepare(self, claims: dict[str, object]) -> dict[str, Any]:
        self.asked.append(claims)
        return {uid: self.answers[uid] for uid in claims}

    def unprepare(self, refs: list[ClaimRef]) -> dict[str, Any]:
        self.asked.append(refs)
        return {ref.uid: self.answers.get(ref.uid) for ref in refs}

    def prepared(self) -> tuple[ClaimRecord, ...]:
        return self.records


class FakeEvents:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.stopped = False

    def record(self, *event: Any) -> None:
        self.events.append(event)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def preparer() -> FakePreparer:
    return FakePreparer()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def deferred(metrics: Metrics) -> Deferred:
    made = Deferred()
    made.attach(metrics)
    return made


@pytest.fixture
def handler(preparer: FakePreparer, deferred: Deferred) -> ClaimHandler:
    return ClaimHandler(preparer, deferred)  # type: ignore[arg-type]


@pytest.fixture
def events() -> FakeEvents:
    return FakeEvents()


@pytest.fixture
def observer(deferred: Deferred, events: FakeEvents) -> AgentObserver:
    made = AgentObserver(deferred)
    made.attach(events, NODE)  # type: ignore[arg-type]
    return made


def claims(*refs: api.ClaimRef) -> list[api.Claim]:
    return [api.Claim(ref, {"metadata": {"uid": ref.uid}}) for ref in refs]


def test_documents_go_to_the_driver_by_uid_and_devices_come_back(handler: ClaimHandler, preparer: FakePreparer) -> None:
    preparer.answers["uid-1"] = (PreparedDevice(("req/sub",), "pool", "gpu-a", ("gpu.nvidia.com/claim=x",), "share"),)
    results = handler.prepare(claims(ONE))
    assert preparer.asked == [{"uid-1": {"metadata": {"uid": "uid-1"}}}]
    assert results == {
        "uid-1": [api.PreparedDevice(("req/sub",), "pool", "gpu-a", ("gpu.nvidia.com/claim=x",), "share")]
    }


def test_a_claim_without_devices_of_ours_is_an_empty_success(handler: ClaimHandler, preparer: FakePreparer) -> None:
    preparer.answers["uid-1"] = ()
    assert handler.prepare(claims(ONE)) == {"uid-1": []}


def test_an_error_keeps_its_text_its_reason_and_whether_it_is_permanent(
    handler: ClaimHandler, preparer: FakePreparer
) -> None:
    preparer.answers["uid-1"] = ClaimError("sharing.strategy: MPS", Reason.UNSUPPORTED_CONFIG, permanent=True)
    preparer.answers["uid-2"] = ()
    results = handler.prepare(claims(ONE, TWO))
    error = results["uid-1"]
    assert isinstance(error, api.PrepareError)
    assert (str(error), error.reason, error.permanent) == ("sharing.strategy: MPS", "UnsupportedConfig", True)
    assert results["uid-2"] == []


def test_unprepare_answers_for_every_claim(handler: ClaimHandler, preparer: FakePreparer) -> None:
    preparer.answers["uid-2"] = ClaimError("the disk is full", Reason.WRITE_FAILED)
    answers = handler.unprepare([ONE, TWO])
    assert preparer.asked == [[ClaimRef("ns", "one", "uid-1"), ClaimRef("ns", "two", "uid-2")]]
    assert answers["uid-1"] is None
    assert isinstance(answers["uid-2"], api.PrepareError)
    assert answers["uid-2"].reason == "WriteFailed"


def device_record(device: str, request: str = "gpu", share: str | None = None) -> DeviceRecord:
    return DeviceRecord(
        request=request,
        pool="pool",
        device=device,
        share_id=share,
        admin_access=False,
        address="0000:1b:00.0",
        uuid=f"GPU-{device}",
        cdi_device=f"c-{device}",
    )


def test_the_hardware_of_a_prepared_claim_is_said_once_for_each_device(
    preparer: FakePreparer, deferred: Deferred
) -> None:
    said: list[tuple[api.ClaimRef, Any]] = []
    handler = ClaimHandler(preparer, deferred, lambda claim, devices: said.append((claim.ref, devices)))  # type: ignore[arg-type]
    preparer.answers = {"uid-1": (), "uid-2": ClaimError("no", Reason.UNSUPPORTED_CONFIG, permanent=True)}
    devices = (device_record("a"), device_record("a", "again"), device_record("b", share="s1"))
    preparer.records = tuple(
        ClaimRecord(ref=ClaimRef(one.namespace, one.name, one.uid), phase=Phase.PREPARED, devices=devices)
        for one in (ONE, TWO)
    )
    handler.prepare(claims(ONE, TWO))
    data = [{"uuid": "GPU-a", "pciBusID": "0000:1b:00.0"}, {"uuid": "GPU-b", "pciBusID": "0000:1b:00.0"}]
    assert said == [
        (ONE, [api.DeviceStatus("pool", "a", data=data[0]), api.DeviceStatus("pool", "b", "s1", data=data[1])])
    ], "and nothing of a claim that failed"


def test_a_claim_without_devices_of_ours_says_nothing(preparer: FakePreparer, deferred: Deferred) -> None:
    handler = ClaimHandler(preparer, deferred, lambda _claim, _devices: pytest.fail("said"))  # type: ignore[arg-type]
    preparer.answers = {"uid-1": ()}
    handler.prepare(claims(ONE))


def test_what_is_prepared_is_counted_from_the_records(
    preparer: FakePreparer, deferred: Deferred, metrics: Metrics
) -> None:
    device = DeviceRecord("req", "pool", "gpu-a", None, False, "0000:1b:00.0", "GPU-a", "name")
    preparer.records = (
        ClaimRecord(ClaimRef("ns", "one", "uid-1"), Phase.PREPARED, (device, device)),
        ClaimRecord(ClaimRef("ns", "two", "uid-2"), Phase.PREPARED, (device,)),
    )
    count_prepared(preparer.prepared(), deferred)
    assert metrics.registry.get_sample_value("gpudra_prepared_claims") == 2
    assert metrics.registry.get_sample_value("gpudra_prepared_devices", {"type": "gpu"}) == 3


def test_what_metadata_is_made_from_again_is_in_the_records_that_are_sure() -> None:
    devices = (device_record("a", "req/sub"), device_record("b", share="s1"))
    sure = ClaimRecord(ClaimRef("ns", "one", "uid-1"), Phase.PREPARED, devices, pod_claim="gpu")
    doubted = ClaimRecord(ClaimRef("", "", "uid-2"), Phase.PREPARED, devices, doubt="known from its file alone")
    begun = ClaimRecord(ClaimRef("ns", "three", "uid-3"), Phase.PREPARING, devices)
    known = {"a": api.DeviceMetadata({"x": {"int": 1}})}
    (held,) = held_claims([sure, doubted, begun], known.get)
    assert (held.ref, held.pod_claim) == (ONE, "gpu")
    assert [(one.requests, one.device, one.share_id, one.metadata) for one in held.devices] == [
        (("req/sub",), "a", None, known["a"]),
        (("gpu",), "b", "s1", None),
    ]


def test_what_cannot_be_made_again_is_a_problem_of_its_claim() -> None:
    ((problem, claim),) = metadata_problems(api.Restored(problems={ONE: "the disk is full"})).items()
    assert (problem.subject, problem.message) == ("claim ns/one (uid uid-1)", "the disk is full")
    assert claim == ClaimRef("ns", "one", "uid-1")


def test_a_pool_document_becomes_slices_in_its_order() -> None:
    pool = PoolDocument("node-a/gpu.nvidia.com", (({"name": "a"}, {"name": "b"}), ({"name": "c"},)))
    assert resources(pool) == api.DriverResources(
        {
            "node-a/gpu.nvidia.com": api.Pool(
                (api.Slice(devices=({"name": "a"}, {"name": "b"})), api.Slice(devices=({"name": "c"},)))
            )
        }
    )


def test_an_empty_pool_is_one_empty_slice() -> None:
    published = resources(PoolDocument("p", ((),)))
    assert published.pools["p"].slices == (api.Slice(),)


def test_a_refused_pool_is_an_event_once_and_a_reason_not_to_be_ready(
    observer: AgentObserver, events: FakeEvents
) -> None:
    failure = api.PublishFailure("p", 422, "spec.devices[0].name: Invalid value", retryable=False)
    observer.publish_failed(failure)
    observer.publish_failed(failure)
    ((regarding, kind, reason, message),) = events.events
    assert (regarding, kind, reason) == (NODE, "Warning", "ResourceSliceRefused")
    assert "spec.devices[0].name: Invalid value" in message
    assert observer.publish_problem == message


def test_a_pool_that_was_refused_and_is_published_again_makes_it_ready(observer: AgentObserver) -> None:
    observer.publish_failed(api.PublishFailure("p", 422, "bad", retryable=False))
    observer.published("p", slices=1, writes=1)
    assert observer.publish_problem is None


def test_another_refusal_is_another_event(observer: AgentObserver, events: FakeEvents) -> None:
    observer.publish_failed(api.PublishFailure("p", 422, "bad name", retryable=False))
    observer.publish_failed(api.PublishFailure("p", 422, "bad version", retryable=False))
    assert [event[3].rpartition(": ")[2] for event in events.events] == ["bad name", "bad version"]


def test_a_server_that_is_away_is_no_event_and_no_refusal(
    observer: AgentObserver, events: FakeEvents, metrics: Metrics
) -> None:
    observer.publish_failed(api.PublishFailure("p", None, "connection refused", retryable=True))
    assert events.events == []
    assert observer.publish_problem is None
    value = metrics.registry.get_sample_value("gpudra_publish_failures_total", {"pool": "p", "status": "none"})
    assert value == 1


def test_a_refusal_from_before_events_could_be_written_is_written_then(deferred: Deferred, events: FakeEvents) -> None:
    observer = AgentObserver(deferred)
    observer.publish_failed(api.PublishFailure("p", 422, "bad", retryable=False))
    assert events.events == []
    observer.attach(events, NODE)  # type: ignore[arg-type]
    assert [event[2] for event in events.events] == ["ResourceSliceRefused"]


def test_dropped_fields_are_named_with_the_gate_that_would_keep_them(
    observer: AgentObserver, events: FakeEvents
) -> None:
    observer.dropped(api.DroppedFields("p", 0, ("devices[0].taints",), ("DRADeviceTaints",)))
    ((_, _, reason, message),) = events.events
    assert reason == "ResourceSliceFieldsDropped"
    assert "devices[0].taints" in message
    assert "DRADeviceTaints" in message


def test_the_kubelets_word_is_logged_and_counted(
    observer: AgentObserver, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    observer.registered(ok=False, error="no supported version")
    assert "no supported version" in caplog.text
    assert metrics.registry.get_sample_value("gpudra_registered") == 0
    observer.registered(ok=True, error="")
    assert metrics.registry.get_sample_value("gpudra_registered") == 1


def test_closing_ends_the_events(observer: AgentObserver, events: FakeEvents) -> None:
    observer.close()
    assert events.stopped


def test_closing_before_there_were_events_is_fine(deferred: Deferred) -> None:
    AgentObserver(deferred).close()
