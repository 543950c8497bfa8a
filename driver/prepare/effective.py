"""Which configuration a device gets, and whether this version can serve it: decided before any side effect."""

from __future__ import annotations

from collections.abc import Mapping

from driver.names import DeviceName
from driver.prepare.claims import AllocationResult, ClaimAllocation, OpaqueConfig
from driver.prepare.config import DeviceConfig, GpuConfig, MigDeviceConfig, VfioDeviceConfig, decode
from driver.prepare.document import DocumentError
from driver.prepare.errors import ClaimError, Reason

_OF_KIND: Mapping[str, tuple[type[GpuConfig | MigDeviceConfig | VfioDeviceConfig], str]] = {
    "gpu": (GpuConfig, "the full GPU"),
    "mig": (MigDeviceConfig, "the MIG device"),
    "vfio": (VfioDeviceConfig, "for passthrough the GPU"),
}


def effective_configs(allocation: ClaimAllocation) -> Mapping[AllocationResult, DeviceConfig]:
    """The configuration of each device of a claim; that of its kind without any settings where none applies.

    Every configuration of this driver is decoded, also one that is overridden: a mistake in it is a mistake. Of those
    that apply to a request the last one wins. One whose author named requests must be of the right kind; one for all
    requests is skipped where its kind is another device type's.

    Raises:
        ClaimError: permanent; names the field.
    """
    try:
        decoded = {id(config): decode(config.parameters, config.path) for config in allocation.configs}
    except DocumentError as error:
        raise ClaimError(
            f"configuration of claim {allocation.ref.namespace}/{allocation.ref.name} is invalid: {error}",
            Reason.INVALID_CONFIG,
            permanent=True,
        ) from error
    return {result: _for_result(allocation, result, decoded) for result in allocation.results}


def _for_result(
    allocation: ClaimAllocation, result: AllocationResult, decoded: Mapping[int, DeviceConfig]
) -> DeviceConfig:
    name = DeviceName.parse(result.device)
    expected, described = _OF_KIND[name.kind if name is not None else "gpu"]
    chosen: DeviceConfig = expected()
    for opaque in allocation.configs_for(result):
        config = decoded[id(opaque)]
        if isinstance(config, expected):
            _check_served(opaque, config)
            chosen = config
        elif opaque.named:
            raise ClaimError(
                f"{opaque.path}.kind: is {config.kind}, but request {result.request} got {described} {result.device}: "
                f"use {expected.kind}, or name another request in that entry's requests",
                Reason.INVALID_CONFIG,
                permanent=True,
            )
    return chosen


def _check_served(opaque: OpaqueConfig, config: DeviceConfig) -> None:
    if isinstance(config, VfioDeviceConfig):
        return
    if config.sharing is not None and config.sharing.strategy is not None:
        raise ClaimError(
            f"{opaque.path}.sharing.strategy: {config.sharing.strategy} is not served by this version of the driver: "
            "remove sharing to get the device for the claim alone (containers and pods that use the same claim share "
            "it)",
            Reason.UNSUPPORTED_CONFIG,
            permanent=True,
        )
