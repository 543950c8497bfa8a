"""Which configuration a device gets, and whether this version can serve it: decided before any side effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from driver.names import DeviceName
from driver.prepare.claims import FROM_CLAIM, AllocationResult, ClaimAllocation, OpaqueConfig
from driver.prepare.config import DeviceConfig, GpuConfig, MigDeviceConfig, Sharing, VfioDeviceConfig, decode
from driver.prepare.document import DocumentError
from driver.prepare.errors import ClaimError, Reason

_OF_KIND: Mapping[str, tuple[type[GpuConfig | MigDeviceConfig | VfioDeviceConfig], str]] = {
    "gpu": (GpuConfig, "the full GPU"),
    "mig": (MigDeviceConfig, "the MIG device"),
    "vfio": (VfioDeviceConfig, "for passthrough the GPU"),
}


def effective_configs(
    allocation: ClaimAllocation, strategies: Collection[str] = ()
) -> Mapping[AllocationResult, DeviceConfig]:
    """The configuration of each device of a claim; that of its kind without any settings where none applies.

    Every configuration of this driver is decoded, also one that is overridden: a mistake in it is a mistake. Of those
    that apply to a request the last one wins. One whose author named requests must be of the right kind; one for all
    requests is skipped where its kind is another device type's. Admin access takes no sharing: the device is somebody
    else's.

    Args:
        allocation: the claim.
        strategies: ways of sharing that are served here.

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
    return {result: _for_result(allocation, result, decoded, strategies) for result in allocation.results}


def _for_result(
    allocation: ClaimAllocation,
    result: AllocationResult,
    decoded: Mapping[int, DeviceConfig],
    strategies: Collection[str],
) -> DeviceConfig:
    name = DeviceName.parse(result.device)
    expected, described = _OF_KIND[name.kind if name is not None else "gpu"]
    chosen: DeviceConfig = expected()
    for opaque in allocation.configs_for(result):
        config = decoded[id(opaque)]
        if isinstance(config, expected):
            if result.admin_access and sharing_of(config) is not None:
                _check_admin(allocation, result, opaque)
                continue
            _check_served(opaque, config, strategies)
            chosen = config
        elif opaque.named:
            raise ClaimError(
                f"{opaque.path}.kind: is {config.kind}, but request {result.request} got {described} {result.device}: "
                f"use {expected.kind}, or name another request in that entry's requests",
                Reason.INVALID_CONFIG,
                permanent=True,
            )
    return chosen


def sharing_of(config: DeviceConfig) -> Sharing | None:
    """How it wants the device shared; None where it does not say."""
    if isinstance(config, VfioDeviceConfig) or config.sharing is None or config.sharing.strategy is None:
        return None
    return config.sharing


def _check_admin(allocation: ClaimAllocation, result: AllocationResult, opaque: OpaqueConfig) -> None:
    """Sharing that can only have been meant for a device with admin access is a mistake; else it passes that over."""
    meant = opaque.named or (opaque.source == FROM_CLAIM and all(other.admin_access for other in allocation.results))
    if meant:
        raise ClaimError(
            f"{opaque.path}.sharing: request {result.request} has adminAccess, which looks at {result.device} and "
            "changes nothing on it; remove sharing, or name another request in that entry's requests",
            Reason.INVALID_CONFIG,
            permanent=True,
        )


def _check_served(opaque: OpaqueConfig, config: DeviceConfig, strategies: Collection[str]) -> None:
    sharing = sharing_of(config)
    if sharing is not None and sharing.strategy not in strategies:
        raise ClaimError(
            f"{opaque.path}.sharing.strategy: {sharing.strategy} is turned off on this node: remove sharing to get the "
            "device for the claim alone (containers and pods that use the same claim share it)",
            Reason.UNSUPPORTED_CONFIG,
            permanent=True,
        )
