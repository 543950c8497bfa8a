"""Prometheus metrics: one table that feeds both the registry and the documentation.

``prometheus_client`` is imported when ``Metrics`` is made, which the agent does after it has registered with the
kubelet; until then ``Deferred`` keeps what was observed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from driver.later import Later
from kubeletplugin.api import DroppedFields, NullObserver, PublishFailure

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0)


class Definition(msgspec.Struct, frozen=True):
    """One metric: its kind, name, help and labels."""

    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    name: str
    help: str
    labels: tuple[str, ...] = ()


TABLE: tuple[Definition, ...] = (
    Definition(
        "counter",
        "gpudra_requests_total",
        "Claims in NodePrepareResources and NodeUnprepareResources calls, failed ones included.",
        ("operation", "outcome"),
    ),
    Definition(
        "counter",
        "gpudra_request_errors_total",
        "Claims that could not be prepared or unprepared, by reason.",
        ("operation", "reason"),
    ),
    Definition(
        "histogram",
        "gpudra_request_duration_seconds",
        "Time from the start of work on a claim to its answer, without waiting in line.",
        ("operation",),
    ),
    Definition(
        "histogram",
        "gpudra_request_queue_seconds",
        "Time that a claim waited for another call about the same claim.",
        ("operation",),
    ),
    Definition("gauge", "gpudra_prepared_claims", "Claims that are prepared on this node."),
    Definition("gauge", "gpudra_prepared_devices", "Devices that are prepared on this node, by type.", ("type",)),
    Definition("gauge", "gpudra_gpus", "GPUs that the node has, by state.", ("state",)),
    Definition("gauge", "gpudra_resource_slices", "ResourceSlices published and confirmed, by pool.", ("pool",)),
    Definition(
        "counter", "gpudra_slice_writes_total", "Requests that created, changed or deleted a ResourceSlice.", ("pool",)
    ),
    Definition(
        "counter",
        "gpudra_publish_failures_total",
        "Attempts to publish a pool that failed, by HTTP status (none: no answer).",
        ("pool", "status"),
    ),
    Definition(
        "counter",
        "gpudra_dropped_fields_total",
        "Fields that the API server did not keep because a feature gate is off, by gate.",
        ("feature_gate",),
    ),
    Definition("gauge", "gpudra_registered", "1 while the kubelet has accepted the plugin's registration."),
    Definition("gauge", "gpudra_driver_available", "1 while NVML answers, 0 while the NVIDIA driver is not there."),
    Definition("histogram", "gpudra_snapshot_duration_seconds", "Time to read the whole node."),
    Definition("counter", "gpudra_snapshot_failures_total", "Readings of the node that gave nothing.", ("reason",)),
    Definition("gauge", "gpudra_devices_health", "Devices by what is known of their health.", ("health",)),
    Definition(
        "gauge",
        "gpudra_device_unhealthy",
        "1 while a device is unhealthy for this cause, 0 once that has passed.",
        ("device", "cause"),
    ),
    Definition(
        "gauge",
        "gpudra_claim_device_unhealthy",
        "1 for each device of a prepared claim that is unhealthy now, by cause.",
        ("namespace", "claim", "device", "cause"),
    ),
    Definition(
        "counter",
        "gpudra_gpu_events_total",
        "Events that NVML reported by itself, XIDs by their number, by device.",
        ("device", "event"),
    ),
    Definition("gauge", "gpudra_claims_idle", "Prepared claims whose devices nobody uses for idleSeconds or longer."),
    Definition(
        "gauge",
        "gpudra_claim_idle_seconds",
        "For how long a claim's device has not been used, as far as the agent has seen.",
        ("namespace", "claim", "device"),
    ),
    Definition(
        "counter",
        "gpudra_claims_swept_total",
        "Claims that were unprepared because the API server no longer has them, by outcome.",
        ("outcome",),
    ),
    Definition(
        "counter",
        "gpudra_mps_daemon_restarts_total",
        "MPS control daemons that had ended and were started again; running CUDA programs of their claims failed.",
    ),
    Definition(
        "counter",
        "gpudra_journal_lost_total",
        "Records that are missing from the journal (queue, error, end), and writes that failed and were tried again.",
        ("cause",),
    ),
    Definition(
        "counter",
        "gpudra_webhook_posts_total",
        "Messages of the webhook by outcome (ok, retried, dropped).",
        ("outcome",),
    ),
    Definition("gauge", "gpudra_build_info", "Always 1; the version is a label.", ("version",)),
)


class Metrics(NullObserver):
    """The registry of one agent, told by the plugin library and by the agent itself."""

    def __init__(self) -> None:
        import prometheus_client

        self.registry: CollectorRegistry = prometheus_client.CollectorRegistry()
        kinds: dict[str, Callable[..., Any]] = {
            "counter": prometheus_client.Counter,
            "gauge": prometheus_client.Gauge,
            "histogram": functools.partial(prometheus_client.Histogram, buckets=_SECONDS),
        }
        self._metrics: dict[str, Any] = {
            d.name: kinds[d.kind](d.name, d.help, d.labels, registry=self.registry) for d in TABLE
        }
        # Looking a child up by its labels takes longer than counting in it.
        self._children: dict[tuple[object, ...], Any] = {}
        self._replaced: dict[str, frozenset[tuple[str, ...]]] = {}
        prometheus_client.ProcessCollector(registry=self.registry)

    def serve(self, port: int, address: str) -> int:
        """Serve /metrics in a daemon thread; returns the port (a free one for 0).

        Raises:
            OSError: the port cannot be bound.
        """
        from driver import metricsserver

        return metricsserver.serve(self.registry, address, port)

    def replace(self, name: str, series: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge's series, by their label values in the table's order; it has no others from now on."""
        metric = self._metrics[name]
        for gone in self._replaced.get(name, frozenset()) - series.keys():
            metric.remove(*gone)
        for labels, value in series.items():
            metric.labels(*labels).set(value)
        self._replaced[name] = frozenset(series)

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._labelled(name, labels).inc(value)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._labelled(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._labelled(name, labels).observe(value)

    def _labelled(self, name: str, labels: dict[str, str]) -> Any:
        key = (name, *labels.items())
        found = self._children.get(key)
        if found is None:
            metric = self._metrics[name]
            found = self._children[key] = metric.labels(**labels) if labels else metric
        return found

    def rpc(self, operation: str, *, seconds: float, queued_seconds: float, outcome: str) -> None:
        """Count one claim's part of an RPC."""
        self.add("gpudra_requests_total", operation=operation, outcome="ok" if outcome == "ok" else "error")
        if outcome != "ok":
            self.add("gpudra_request_errors_total", operation=operation, reason=outcome)
        self.observe("gpudra_request_duration_seconds", seconds, operation=operation)
        self.observe("gpudra_request_queue_seconds", queued_seconds, operation=operation)

    def registered(self, *, ok: bool, error: str) -> None:
        """Note what the kubelet said."""
        self.set("gpudra_registered", 1 if ok else 0)

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        """Note a confirmed pool."""
        self.set("gpudra_resource_slices", slices, pool=pool)
        if writes:
            self.add("gpudra_slice_writes_total", writes, pool=pool)

    def publish_failed(self, failure: PublishFailure) -> None:
        """Count a refused or unanswered write."""
        status = "none" if failure.status is None else str(failure.status)
        self.add("gpudra_publish_failures_total", pool=failure.pool, status=status)

    def dropped(self, dropped: DroppedFields) -> None:
        """Count what the server did not keep."""
        for gate in dropped.feature_gates or ("unknown",):
            self.add("gpudra_dropped_fields_total", feature_gate=gate)


class Deferred(Later[Metrics]):
    """Keeps calls on ``Metrics`` until there is one, then passes them on. Safe from any thread."""
