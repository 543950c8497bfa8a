"""Which allocator a scheduler runs: its gates choose one of three variants, and each release has its own faults.

A fault here is behaviour that a later release corrected. The port repeats it, because the question is what the cluster
at hand will do; each field of ``Rules`` says which releases have it and, where there is one, upstream's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

RELEASES: Final = (34, 36, 37)
"""The minor releases of Kubernetes 1.x whose allocator is ported."""


class UnknownReleaseError(ValueError):
    """No port of this release; the text names those there are."""


@dataclass(frozen=True, slots=True)
class Features:
    """The scheduler's feature gates that reach the allocator; the names are those of upstream's ``Features``."""

    admin_access: bool = False
    compatibility_groups: bool = False
    consumable_capacity: bool = False
    derived_attributes: bool = False
    device_binding: bool = False
    """DRADeviceBindingConditions alone, which only 1.34 tells apart from the two together."""
    device_binding_and_status: bool = False
    device_status: bool = False
    """DRAResourceClaimDeviceStatus alone: in 1.34 it is on by default and decides which variant is chosen."""
    device_taint_rules: bool = False
    """Whether the scheduler applies DeviceTaintRules; the allocator itself does not know of them."""
    device_taints: bool = False
    fractional_capacity_range: bool = False
    list_type_attributes: bool = False
    lists_in_selectors: bool = False
    """List attributes in selectors, but not in constraints: what the gate does in 1.36."""
    optional_node_operations: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False

    def enabled(self) -> frozenset[str]:
        """The names of those that are on and that the choice of a variant depends on."""
        return frozenset(each.name for each in fields(self) if getattr(self, each.name)) - _OUTSIDE


_OUTSIDE: Final = frozenset(("device_taint_rules", "lists_in_selectors"))
_STABLE_36: Final = frozenset(("admin_access", "device_taints", "partitionable_devices", "prioritized_list"))
_INCUBATING_36: Final = _STABLE_36 | {"consumable_capacity", "device_binding_and_status"}
_ONLY_34: Final = frozenset(("device_binding", "device_status"))
_EXPERIMENTAL_37: Final = frozenset(each.name for each in fields(Features)) - _ONLY_34
_SUPPORTED: Final = {
    34: {
        "stable": frozenset[str](),
        "incubating": _STABLE_36,
        "experimental": _INCUBATING_36 | _ONLY_34,
    },
    36: {
        "stable": _STABLE_36,
        "incubating": _INCUBATING_36,
        "experimental": _INCUBATING_36 | {"list_type_attributes"},
    },
    37: {
        "stable": _STABLE_36,
        "incubating": _INCUBATING_36 | {"fractional_capacity_range"},
        "experimental": _EXPERIMENTAL_37,
    },
}
_GATES: Final[dict[int, dict[str, bool]]] = {
    34: {
        "DRAAdminAccess": True,
        "DRAConsumableCapacity": False,
        "DRADeviceBindingConditions": False,
        "DRADeviceTaints": False,
        "DRAPartitionableDevices": False,
        "DRAPrioritizedList": True,
        "DRAResourceClaimDeviceStatus": True,
    },
    36: {
        "DRAAdminAccess": True,
        "DRAConsumableCapacity": True,
        "DRADeviceBindingConditions": True,
        "DRADeviceTaintRules": False,
        "DRADeviceTaints": True,
        "DRAListTypeAttributes": False,
        "DRAPartitionableDevices": True,
        "DRAPrioritizedList": True,
        "DRAResourceClaimDeviceStatus": True,
    },
    37: {
        "DRAAdminAccess": True,
        "DRAConsumableCapacity": True,
        "DRADerivedAttributes": False,
        "DRADeviceBindingConditions": True,
        "DRADeviceCompatibilityGroups": False,
        "DRADeviceTaintRules": True,
        "DRADeviceTaints": True,
        # On by default only where --min-compatibility-version is 1.37 too.
        "DRAFractionalCapacityRange": False,
        "DRAListTypeAttributes": False,
        "DRAOptionalNodeOperations": False,
        "DRAPartitionableDevices": True,
        "DRAPrioritizedList": True,
        "DRAResourceClaimDeviceStatus": True,
    },
}


class UnknownGateError(ValueError):
    """The release's scheduler has no such gate, or none that reaches the allocator; the text names those it has."""


def scheduler_features(release: int, gates: Mapping[str, bool] | None = None) -> Features:
    """What the scheduler of 1.<release> tells its allocator, by its feature gates; unnamed ones have their defaults.

    Raises:
        UnknownReleaseError: no port of this release.
        UnknownGateError: no such gate in this release.
    """
    _known(release)
    known = _GATES[release]
    if strange := sorted(set(gates or {}) - set(known)):
        raise UnknownGateError(f"1.{release} has no gate {', '.join(strange)}; there are {', '.join(known)}")
    on = {name: value for name, value in (known | dict(gates or {})).items() if value}.keys()
    binding = {"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"}
    return Features(
        admin_access="DRAAdminAccess" in on,
        compatibility_groups="DRADeviceCompatibilityGroups" in on,
        consumable_capacity="DRAConsumableCapacity" in on,
        derived_attributes="DRADerivedAttributes" in on,
        device_binding=release == 34 and "DRADeviceBindingConditions" in on,
        device_binding_and_status=release != 34 and binding <= on,
        device_status=release == 34 and "DRAResourceClaimDeviceStatus" in on,
        device_taints="DRADeviceTaints" in on,
        device_taint_rules="DRADeviceTaintRules" in on or (release == 34 and "DRADeviceTaints" in on),
        fractional_capacity_range="DRAFractionalCapacityRange" in on,
        # The scheduler of 1.36 forgets to tell its allocator: the gate reaches selectors alone.
        list_type_attributes=release != 36 and "DRAListTypeAttributes" in on,
        lists_in_selectors=release == 36 and "DRAListTypeAttributes" in on,
        optional_node_operations="DRAOptionalNodeOperations" in on,
        partitionable_devices="DRAPartitionableDevices" in on,
        prioritized_list="DRAPrioritizedList" in on,
    )


def default_features(release: int) -> Features:
    """What the scheduler of 1.<release> has on where nobody set a gate.

    Raises:
        UnknownReleaseError: no port of this release.
    """
    return scheduler_features(release)


def _known(release: int) -> None:
    if release not in RELEASES:
        known = ", ".join(f"1.{each}" for each in RELEASES)
        raise UnknownReleaseError(f"there is no port of the allocator of 1.{release}; there are {known}")


@dataclass(frozen=True, slots=True)
class Rules:
    """One variant of one release."""

    release: int
    variant: str
    features: Features

    @property
    def combinations(self) -> bool:
        """Devices of one request are tried in one order only; stable, and all of 1.34, try every permutation."""
        return self.variant != "stable" and self.release >= 36

    @property
    def pools_span_slices(self) -> bool:
        """Counters belong to the pool and incomplete pools are left out; in 1.34 to the slice, and they are used."""
        return self.release >= 36

    @property
    def sorts(self) -> bool:
        """Pools and slices are sorted by name. Elsewhere the order of pools is chance; here it is by name too."""
        return self.release >= 36 and self.variant != "stable"

    @property
    def counter_slices_everywhere(self) -> bool:
        """Slices with counters count for every node, whatever their node selection says."""
        return self.release == 36 or (self.release == 37 and self.variant == "stable")

    @property
    def counters_by_pool_name(self) -> bool:
        """Counters of two drivers whose pools share a name are mixed up (kubernetes#140434, in 1.36)."""
        return self.release == 36

    @property
    def distinct(self) -> bool:
        """Whether ``distinctAttribute`` is known; otherwise the claim is refused."""
        return self.selectors_see_sharing

    @property
    def distinct_by_request(self) -> bool:
        """Only the last device of each request is remembered (before 1.37)."""
        return self.release < 37

    @property
    def distinct_by_identity(self) -> bool:
        """Values are compared by their address: only a device's own second share is a duplicate (1.34)."""
        return self.release == 34

    @property
    def lists(self) -> bool:
        """Whether constraints know list attributes."""
        return self.variant == "experimental" and self.features.list_type_attributes and self.release >= 36

    @property
    def narrows_for_good(self) -> bool:
        """Backtracking does not widen a ``matchAttribute`` over lists again (kubernetes#140326, in 1.36)."""
        return self.release == 36

    @property
    def leaks(self) -> bool:
        """A device refused after its counters were taken keeps them (kubernetes#140436, in 1.34)."""
        return self.release == 34

    @property
    def binding(self) -> bool:
        """Whether devices with binding conditions may be taken."""
        apart = self.release == 34 and self.features.device_binding and self.features.device_status
        return self.features.device_binding_and_status or apart

    @property
    def selectors_see_sharing(self) -> bool:
        """``device.allowMultipleAllocations`` says what the device says; in stable it is always false."""
        return self.variant == "experimental" or (self.variant == "incubating" and self.release >= 36)

    @property
    def selectors_see_lists(self) -> bool:
        """Whether DRAListTypeAttributes reaches the selectors."""
        return self.release >= 36 and (self.features.list_type_attributes or self.features.lists_in_selectors)

    @property
    def every_taint_counts(self) -> bool:
        """An untolerated taint of any effect keeps a device away, ``None`` too (1.34)."""
        return self.release == 34

    @property
    def shares_charge_once(self) -> bool:
        """A further share of a device in use does not take counters again (since 1.36)."""
        return self.release >= 36

    @property
    def bare_rule_taints_all(self) -> bool:
        """A DeviceTaintRule without a selector taints every device (before 1.37), not none."""
        return self.release < 37

    @property
    def consumable(self) -> bool:
        """Whether capacity is counted at all."""
        return self.features.consumable_capacity

    @property
    def strict_capacity(self) -> bool:
        """A request that int64 cannot hold, or a negative value, ends the attempt (since 1.37)."""
        return self.release >= 37

    @property
    def all_means_static(self) -> bool:
        """``All`` counts devices whose capacity is used up, and fails on them (since 1.37)."""
        return self.release >= 37


def rules(release: int, features: Features | None = None, variant: str | None = None) -> Rules:
    """The rules of a release: the first variant that supports all its features, or the one that is named.

    Raises:
        UnknownReleaseError: no port of this release, or no variant of it supports these features.
    """
    _known(release)
    chosen = default_features(release) if features is None else features
    wanted = chosen.enabled()
    if release != 34:
        wanted -= _ONLY_34
    for name, supported in _SUPPORTED[release].items():
        if name == variant or (variant is None and wanted <= supported):
            return Rules(release, name, chosen)
    raise UnknownReleaseError(f"no allocator of 1.{release} supports {', '.join(sorted(wanted))}")
