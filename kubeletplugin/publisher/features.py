"""What this API server keeps of a ResourceSlice: asked for by dry runs, because no version or flag says so for sure.

A gated field that is off is dropped without a word, or makes the whole object invalid (a list attribute leaves an
attribute without a value). So a slice that uses the field is offered in a dry run, one for each feature, and the answer
is compared with what was sent. Nothing is stored; the same admission policies apply as for the real slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from kubeletplugin.api import JSON, DriverResources
from kubeletplugin.client import ApiError, KubeClient
from kubeletplugin.publisher.diff import differences
from kubeletplugin.publisher.writer import DRY_RUN, SLICES

logger = logging.getLogger(__name__)

_SET = {"name": "set", "counters": {"memory": {"value": "1"}}}
_CONSUMES = {"counterSet": "set", "counters": {"memory": {"value": "1"}}}
_RANGE = {"default": "1", "validRange": {"min": "1", "max": "2"}}

PROBES: Mapping[str, JSON] = {
    "DRADeviceTaints": {"taints": [{"key": "probe", "effect": "NoSchedule"}]},
    "DRAPartitionableDevices": {"consumesCounters": [_CONSUMES]},
    "DRAConsumableCapacity": {
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "2", "requestPolicy": _RANGE}},
    },
    "DRADeviceBindingConditions": {
        "bindsToNode": True,
        "bindingConditions": ["probe"],
        "bindingFailureConditions": ["failed"],
    },
    "DRAListTypeAttributes": {"attributes": {"probe": {"ints": [1, 2]}}},
    "DRADeviceCompatibilityGroups": {"consumesCounters": [_CONSUMES | {"compatibilityGroups": ["probe"]}]},
}
"""Feature gate -> fields of a device that it governs."""
SPEC_PROBES: Mapping[str, JSON] = {"DRAOptionalNodeOperations": {"skipNodeOperations": ["*"]}}
"""Feature gate -> fields of the slice's ``spec``."""
ASKABLE = frozenset(PROBES) | frozenset(SPEC_PROBES)


class Features(msgspec.Struct, frozen=True):
    """The feature gates that are on, of those that can be asked for, and the server that was asked."""

    gates: frozenset[str]
    server: str = ""
    """``gitVersion``."""

    @property
    def taints(self) -> bool:
        """Devices may have taints."""
        return "DRADeviceTaints" in self.gates

    @property
    def partitionable(self) -> bool:
        """Devices may consume counters of a set that they share."""
        return "DRAPartitionableDevices" in self.gates

    @property
    def consumable_capacity(self) -> bool:
        """Devices may be allocated several times, by parts of their capacity."""
        return "DRAConsumableCapacity" in self.gates

    @property
    def list_attributes(self) -> bool:
        """Attributes may have several values."""
        return "DRAListTypeAttributes" in self.gates


Wish: TypeAlias = DriverResources | Callable[[Features], DriverResources]
"""What to publish; a function where it depends on what the server keeps."""


def server_version(client: KubeClient) -> str:
    """``gitVersion`` of the server, empty where it does not tell. Raises ``ApiUnreachableError``."""
    try:
        return str(client.get("/version").get("gitVersion", ""))
    except ApiError as error:
        logger.debug("the server does not tell its version: %s", error)
        return ""


def detect_features(client: KubeClient, driver_name: str, node_name: str | None) -> Features:
    """Asks the server, one dry run for each feature.

    Raises:
        ApiError: it does not let us create slices at all.
        ApiUnreachableError: no answer.
    """
    kept = set()
    for gate in (*PROBES, *SPEC_PROBES):
        device: JSON = {"name": "probe", **PROBES.get(gate, {})}
        spec: JSON = {
            "driver": driver_name,
            **({"nodeName": node_name} if node_name is not None else {"allNodes": True}),
            "pool": {"name": node_name or "probe", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
            **SPEC_PROBES.get(gate, {}),
        }
        if _keeps(client, spec):
            kept.add(gate)
    features = Features(frozenset(kept), server_version(client))
    logger.info("API server %s keeps the fields of: %s", features.server or "?", ", ".join(sorted(kept)) or "none")
    return features


def _keeps(client: KubeClient, spec: JSON) -> bool:
    metadata = {"generateName": "probe-"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    try:
        answer = client.create(SLICES, body, query=DRY_RUN)
    except ApiError as error:
        if error.status in (400, 422):
            return False
        raise
    return not differences(spec, answer.get("spec"))
