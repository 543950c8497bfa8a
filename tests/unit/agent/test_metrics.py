"""The metric table makes the registry; failures are counted as well as successes; early observations are kept."""

from __future__ import annotations

import re
import urllib.request

import pytest
from prometheus_client import generate_latest

from driver.metrics import TABLE, Deferred, Metrics
from kubeletplugin.api import DroppedFields, PublishFailure


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_metric_of_the_table_is_named_and_explained() -> None:
    for definition in TABLE:
        assert re.fullmatch(r"gpudra_[a-z_]+", definition.name), definition.name
        assert definition.help.endswith("."), definition.name
        assert (definition.kind == "counter") == definition.name.endswith("_total"), definition.name
    assert len({d.name for d in TABLE}) == len(TABLE)


def test_failed_requests_are_counted_with_their_reason(metrics: Metrics) -> None:
    metrics.rpc("prepare", seconds=0.004, queued_seconds=0.0, outcome="ok")
    metrics.rpc("prepare", seconds=0.002, queued_seconds=0.3, outcome="DeviceInUse")
    assert sample(metrics, "gpudra_requests_total", operation="prepare", outcome="ok") == 1
    assert sample(metrics, "gpudra_requests_total", operation="prepare", outcome="error") == 1
    assert sample(metrics, "gpudra_request_errors_total", operation="prepare", reason="DeviceInUse") == 1
    assert sample(metrics, "gpudra_request_duration_seconds_count", operation="prepare") == 2
    assert sample(metrics, "gpudra_request_queue_seconds_sum", operation="prepare") == pytest.approx(0.3)


def test_registration_is_a_gauge_that_falls_again(metrics: Metrics) -> None:
    metrics.registered(ok=True, error="")
    assert sample(metrics, "gpudra_registered") == 1
    metrics.registered(ok=False, error="no such version")
    assert sample(metrics, "gpudra_registered") == 0


def test_publishing_counts_writes_failures_and_dropped_fields(metrics: Metrics) -> None:
    metrics.published("node-a/gpu", slices=2, writes=3)
    metrics.published("node-a/gpu", slices=2, writes=0)
    metrics.publish_failed(PublishFailure("node-a/gpu", 422, "spec.devices[0].name", retryable=False))
    metrics.publish_failed(PublishFailure("node-a/gpu", None, "connection refused", retryable=True))
    metrics.dropped(DroppedFields("node-a/gpu", 0, ("devices[0].taints",), ("DRADeviceTaints",)))
    assert sample(metrics, "gpudra_resource_slices", pool="node-a/gpu") == 2
    assert sample(metrics, "gpudra_slice_writes_total", pool="node-a/gpu") == 3
    assert sample(metrics, "gpudra_publish_failures_total", pool="node-a/gpu", status="422") == 1
    assert sample(metrics, "gpudra_publish_failures_total", pool="node-a/gpu", status="none") == 1
    assert sample(metrics, "gpudra_dropped_fields_total", feature_gate="DRADeviceTaints") == 1


def test_fields_dropped_for_an_unknown_reason_are_counted_too(metrics: Metrics) -> None:
    metrics.dropped(DroppedFields("p", 0, ("devices[0].novel",), ()))
    assert sample(metrics, "gpudra_dropped_fields_total", feature_gate="unknown") == 1


def test_what_was_observed_before_there_were_metrics_is_not_lost(metrics: Metrics) -> None:
    deferred = Deferred()
    deferred.tell(lambda m: m.set("gpudra_prepared_claims", 1))
    deferred.tell(lambda m: m.set("gpudra_prepared_claims", 2))
    deferred.attach(metrics)
    assert sample(metrics, "gpudra_prepared_claims") == 2
    deferred.tell(lambda m: m.set("gpudra_prepared_claims", 3))
    assert sample(metrics, "gpudra_prepared_claims") == 3


def test_the_endpoint_serves_the_text_format(metrics: Metrics) -> None:
    metrics.set("gpudra_gpus", 8, state="ready")
    port = metrics.serve(0, "127.0.0.1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        body = response.read()
    assert b'gpudra_gpus{state="ready"} 8.0' in body
    assert b"process_resident_memory_bytes" in generate_latest(metrics.registry)


def test_a_port_that_is_taken_is_an_error(metrics: Metrics) -> None:
    port = metrics.serve(0, "127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        Metrics().serve(port, "127.0.0.1")


def test_labels_belong_to_their_names_whatever_their_order() -> None:
    metrics = Metrics()
    metrics.add("gpudra_requests_total", operation="prepare", outcome="ok")
    metrics.add("gpudra_requests_total", outcome="ok", operation="prepare")
    metrics.add("gpudra_requests_total", outcome="prepare", operation="ok")
    assert sample(metrics, "gpudra_requests_total", operation="prepare", outcome="ok") == 2
    assert sample(metrics, "gpudra_requests_total", operation="ok", outcome="prepare") == 1
