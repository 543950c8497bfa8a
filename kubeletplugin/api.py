"""The public face: what a driver gives to the library and gets from it. Vendor-neutral, no transport, no gRPC.

A driver implements ``Handler`` and hands ``Pool`` objects to ``Plugin.publish``; everything else is the library's.
Objects of the Kubernetes API travel as plain JSON values (dict, list, str, int, bool), so that a field which this
library has never heard of is neither refused nor lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import msgspec

JSON: TypeAlias = dict[str, Any]


class ClaimRef(msgspec.Struct, frozen=True):
    """What the kubelet names a claim by. ``uid`` is the identity; the names may be reused by another claim."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


class Claim(msgspec.Struct, frozen=True):
    """A ResourceClaim as the API server gave it: allocated, and of the UID that the kubelet asked for."""

    ref: ClaimRef
    document: JSON
    """The whole object (resource.k8s.io/v1). Results and configs of other drivers are in it: filter by driver."""


class DeviceMetadata(msgspec.Struct, frozen=True):
    """What containers are to know of a device (KEP-5304); both fields as in resource.k8s.io/v1."""

    attributes: Mapping[str, JSON] = msgspec.field(default_factory=dict)
    """Name -> ``{"string": ...}``, ``{"int": ...}``, ``{"bool": ...}`` or ``{"version": ...}``. At most 32."""
    network_data: JSON | None = None
    """``interfaceName``, ``ips``, ``hardwareAddress``."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """One allocated device that is ready for containers (``Device`` of the kubelet's DRA gRPC API)."""

    requests: tuple[str, ...]
    """Request names as in the allocation result ("req" or "req/sub"); the library strips the subrequest."""
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    """Fully qualified CDI names. The first must be unique per device: the kubelet's health report keys on it."""
    share_id: str | None = None
    metadata: DeviceMetadata | None = None
    """Used where the plugin hands out metadata; ``None``: not known yet (``Plugin.update_metadata`` adds it later)."""


class HeldClaim(msgspec.Struct, frozen=True):
    """A prepared claim as the driver's own record has it: what the files of its metadata are made from again."""

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    """``metadata`` of ``None``: not known now, so that what the claim's file says of the device stays."""
    pod_claim: str | None = None
    """The name in the pod's ``spec.resourceClaims``, of a claim that was made from a template; empty for others.
    ``None``: the record does not know, the claim's file may."""


class Restored(msgspec.Struct, frozen=True):
    """What became of the metadata of prepared claims."""

    remade: tuple[str, ...] = ()
    """UIDs of claims of which a file was gone or not as it should be, and is right again."""
    problems: Mapping[ClaimRef, str] = msgspec.field(default_factory=dict)
    """What cannot be made right of which claim, and why: a container of it that starts now fails."""


class PrepareError(Exception):
    """A claim cannot be prepared (or undone). The text reaches the user as the pod's event.

    Attributes:
        permanent: a retry cannot help until somebody changes the claim, the class or the node.
        reason: a short CamelCase word for metrics ("InvalidConfig", "DeviceInUse").
    """

    def __init__(self, message: str, *, reason: str, permanent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent


class DeviceStatus(msgspec.Struct, frozen=True):
    """What a driver says in a claim's ``status.devices`` about one allocated device (KEP-4817)."""

    pool: str
    device: str
    share_id: str | None = None
    """As in the allocation's result, for a share of a device."""
    conditions: tuple[JSON, ...] = ()
    """At most 8 of metav1.Condition."""
    data: JSON | None = None
    """An object of at most 10 KiB for people and tools: here is where a UUID belongs."""
    network_data: JSON | None = None
    """``interfaceName``, ``ips``, ``hardwareAddress``."""


PrepareResult: TypeAlias = Sequence[PreparedDevice] | PrepareError


class Handler(Protocol):
    """The driver's side of NodePrepareResources and NodeUnprepareResources.

    Called from several threads at once; calls about one claim never overlap (the library serialises by claim UID).
    Both methods are retried by the kubelet until they succeed: they must be idempotent. Every claim that is passed
    in gets an entry in the answer; a claim that is left out is answered with an error by the library.
    """

    def prepare(self, claims: Sequence[Claim]) -> Mapping[str, PrepareResult]:
        """Make the devices of each claim ready; keyed by claim UID."""

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareError | None]:
        """Undo it; keyed by claim UID. A claim that was never prepared is a success. The claim may be gone."""


class Slice(msgspec.Struct, frozen=True):
    """The content of one ResourceSlice: either devices or shared counters (resource.k8s.io/v1, never both)."""

    devices: tuple[JSON, ...] = ()
    shared_counters: tuple[JSON, ...] = ()
    per_device_node_selection: bool = False
    """Each device says where it is; only for pools that are not of one node."""
    skip_node_operations: tuple[str, ...] = ()
    """Calls that the kubelet leaves out for these devices (1.37, feature gate DRAOptionalNodeOperations)."""
    partition_type_attribute: str | None = None
    """Which attribute names the type of a partition (1.37, feature gate DRAPartitionableDevicesType)."""


class Pool(msgspec.Struct, frozen=True):
    """All slices of one pool, in the order the scheduler is to read them."""

    slices: tuple[Slice, ...]
    generation: int | None = None
    """Set by drivers that number their states themselves; None lets the library count."""
    node_selector: JSON | None = None
    """Where the devices can be reached; for pools that are not of one node, where the node's name does not stand."""
    all_nodes: bool = False
    """They can be reached everywhere; likewise."""


class HealthStatus(StrEnum):
    """What a pod's status says of a device (``allocatedResourcesStatus``)."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class DeviceHealth(msgspec.Struct, frozen=True):
    """What a check found out about one device. It goes into pod status only: taints are the driver's to publish."""

    pool: str
    device: str
    status: HealthStatus
    message: str = ""
    """For people; cut to 1024 bytes."""
    checked_at: float = 0.0
    """Unix time in seconds at which the check ended; 0 where nobody knows."""
    timeout_seconds: int = 30
    """The word holds for so long; then the device counts as Unknown until there is another. At least 1."""


class DroppedFields(msgspec.Struct, frozen=True):
    """The API server kept less than it was given: a feature gate is off."""

    pool: str
    slice_index: int
    fields: tuple[str, ...]
    """JSON paths below ``spec``."""
    feature_gates: tuple[str, ...]
    """The gates that are known to govern these fields."""


class PublishFailure(msgspec.Struct, frozen=True):
    """A pool could not be written. Other pools still go out."""

    pool: str
    """Empty where no pool could be made, because it is not known yet what the server keeps."""
    status: int | None
    """HTTP status; None where no answer came."""
    message: str
    retryable: bool


class Observer(Protocol):
    """Told what happens, from the library's threads; must return quickly and not raise. All methods optional to use.

    ``NullObserver`` does nothing and may be inherited from.
    """

    def rpc(self, operation: str, *, seconds: float, queued_seconds: float, outcome: str) -> None:
        """One claim's part of an RPC ended: operation ``prepare`` or ``unprepare``; outcome ``ok`` or a reason."""

    def registered(self, *, ok: bool, error: str) -> None:
        """The kubelet said whether it took the plugin (NotifyRegistrationStatus)."""

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        """A pool is in the API server as desired; ``writes`` requests were needed (0: nothing had changed)."""

    def publish_failed(self, failure: PublishFailure) -> None:
        """A pool is not as desired."""

    def dropped(self, dropped: DroppedFields) -> None:
        """Reported once per pool, slice and set of fields."""

    def health_stale(self, source: str, *, devices: int, seconds: float) -> None:
        """A health check has been silent for too long: its ``devices`` are Unknown now. Told once per silence."""


class NullObserver:
    """An ``Observer`` that does nothing."""

    def rpc(self, operation: str, *, seconds: float, queued_seconds: float, outcome: str) -> None:
        """Ignore."""

    def registered(self, *, ok: bool, error: str) -> None:
        """Ignore."""

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        """Ignore."""

    def publish_failed(self, failure: PublishFailure) -> None:
        """Ignore."""

    def dropped(self, dropped: DroppedFields) -> None:
        """Ignore."""

    def health_stale(self, source: str, *, devices: int, seconds: float) -> None:
        """Ignore."""


class DriverResources(msgspec.Struct, frozen=True):
    """Everything that a driver publishes from this node: pool name -> pool. An absent pool is deleted."""

    pools: Mapping[str, Pool] = msgspec.field(default_factory=dict)
