"""From what stands to what is said of a device: its verdict and its taints. A device is a GPU or a partition of one."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from driver.health import findings
from driver.health.keeper import Keeper, Standing
from driver.health.xids import Severity

XID_TAINT: Final = "gpu.nvidia.com/xid"
LOST_TAINT: Final = "gpu.nvidia.com/gpu-lost"
UNMONITORED_TAINT: Final = "gpu.nvidia.com/unmonitored"
UNHEALTHY_TAINT: Final = "gpu.nvidia.com/unhealthy"
DEGRADED_TAINT: Final = "gpu.nvidia.com/degraded"

TAINTS: Final[Mapping[str, str]] = {
    XID_TAINT: "an XID of DEVICE or worse; the value is its number (the worst one, if there are several)",
    LOST_TAINT: "NVML says that the GPU is lost",
    UNHEALTHY_TAINT: "another fault of DEVICE or worse; the value is its cause",
    UNMONITORED_TAINT: "its events cannot be watched (only with degradedTaints)",
    DEGRADED_TAINT: "it works, but not as well as it should; the value is the cause (only with degradedTaints)",
}
"""Every taint that health puts on a device: key -> when. The first three are NVIDIA's keys or stand beside them."""


class Status(enum.StrEnum):
    """What is known of a device."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class Target(msgspec.Struct, frozen=True):
    """A device that a verdict is wanted for."""

    device: str
    """Its name in the pool."""
    address: str
    """PCI address of its GPU."""
    gpu_instance: int | None = None
    """For a partition that exists now: NVML's id of the GPU instance. None for a whole GPU."""
    partition: bool = False
    """A part of the GPU, existing or only offered, or another form of it."""
    inherits: bool = False
    """The publisher gives it the taints of its GPU too."""


class Verdict(msgspec.Struct, frozen=True):
    """What is said of a device."""

    device: str
    status: Status
    since: float = 0.0
    """Unix time at which what decides was first seen; 0 where nothing is wrong."""
    severity: int = 0
    """Of what decides (``Severity``); 0: nothing is wrong."""
    cause: str = ""
    """Of what decides; one of ``findings.CAUSES``, ``driver-gone`` or empty."""
    xid: int | None = None
    message: str = ""

    @property
    def word(self) -> str:
        """The cause with the XID's number: ``xid-79``."""
        return self.cause if self.xid is None else f"{self.cause}-{self.xid}"


class TaintPolicy(msgspec.Struct, frozen=True):
    """Which effects the operator wants."""

    no_execute: Severity | None = None
    """From this severity on pods are evicted; None: never, they only get no company."""
    degraded: bool = False
    """Keep new pods from degraded devices too."""


def applicable(keeper: Keeper, target: Target, instances: frozenset[int]) -> tuple[tuple[Standing, ...], bool]:
    """What stands against a device, worst first. A finding about one GPU instance is no other partition's trouble.

    Args:
        instances: the GPU instances that are known on its GPU. A finding about another one cannot be placed, so it
            counts for all of them.
    """
    standing, reached = keeper.standing(target.address)

    def meant(one: Standing) -> bool:
        instance = one.finding.gpu_instance
        return instance is None or not target.partition or instance == target.gpu_instance or instance not in instances

    return tuple(one for one in standing if meant(one)), reached


def known_instances(targets: Iterable[Target]) -> dict[str, frozenset[int]]:
    """Address -> GPU instances that the targets tell of."""
    found: dict[str, set[int]] = {}
    for target in targets:
        if target.gpu_instance is not None:
            found.setdefault(target.address, set()).add(target.gpu_instance)
    return {address: frozenset(numbers) for address, numbers in found.items()}


def verdicts(keeper: Keeper, targets: Sequence[Target]) -> dict[str, Verdict]:
    """Device name -> verdict."""
    instances = known_instances(targets)
    gone = keeper.unanswered
    return {
        target.device: _verdict(target, *applicable(keeper, target, instances.get(target.address, frozenset())), gone)
        for target in targets
    }


def _verdict(target: Target, standing: Sequence[Standing], reached: bool, gone: str | None) -> Verdict:
    worst = next(iter(standing), None)
    if worst is not None and worst.finding.severity >= Severity.DEVICE:
        return _of(target, Status.UNHEALTHY, worst)
    if gone is not None:
        return Verdict(target.device, Status.UNKNOWN, cause="driver-gone", message=gone)
    if not reached:
        return Verdict(target.device, Status.UNKNOWN, cause="not-probed", message="the GPU was not asked yet")
    return Verdict(target.device, Status.HEALTHY) if worst is None else _of(target, Status.HEALTHY, worst)


def _of(target: Target, status: Status, one: Standing) -> Verdict:
    finding = one.finding
    times = f" ({one.count} times)" if finding.event and one.count > 1 else ""
    return Verdict(
        target.device, status, one.since, finding.severity, finding.cause, finding.xid, finding.message + times
    )


def taints(keeper: Keeper, targets: Sequence[Target], policy: TaintPolicy) -> dict[str, list[dict[str, Any]]]:
    """Device name -> DeviceTaint objects, for those that have any; one for each key, in the order of ``TAINTS``."""
    instances = known_instances(targets)
    found = {}
    for target in targets:
        known = instances.get(target.address, frozenset())
        standing, _ = applicable(keeper, target, known)
        # A GPU's taints are its partitions' too: what is one partition's trouble is left out of them, and what is its
        # GPU's out of a partition's.
        if not target.partition or target.inherits:
            standing = tuple(one for one in standing if (one.finding.gpu_instance in known) is target.inherits)
        if made := list(_taints(standing, policy)):
            found[target.device] = made
    return found


def _taints(standing: Sequence[Standing], policy: TaintPolicy) -> Iterable[dict[str, Any]]:
    worst: dict[str, Standing] = {}
    for one in standing:  # worst first
        key = _key(one.finding, policy)
        if key is not None:
            worst.setdefault(key, one)
    for key in TAINTS:
        if key not in worst:
            continue
        finding = worst[key].finding
        evict = policy.no_execute is not None and finding.severity >= policy.no_execute
        taint: dict[str, Any] = {"key": key, "effect": "NoExecute" if evict else "NoSchedule"}
        if value := _value(key, finding):
            taint["value"] = value
        yield taint


def _key(finding: findings.Finding, policy: TaintPolicy) -> str | None:
    if finding.severity >= Severity.DEVICE:
        return {findings.XID: XID_TAINT, findings.LOST: LOST_TAINT}.get(finding.cause, UNHEALTHY_TAINT)
    if finding.severity == Severity.DEGRADED and policy.degraded:
        return UNMONITORED_TAINT if finding.cause == findings.UNMONITORED else DEGRADED_TAINT
    return None


def _value(key: str, finding: findings.Finding) -> str:
    if key in (LOST_TAINT, UNMONITORED_TAINT):
        return ""
    return str(finding.xid) if key == XID_TAINT else finding.cause
