"""The memory limits of an MPS configuration, key by key, for the devices that it is for."""

from __future__ import annotations

from collections.abc import Sequence

from driver.prepare.config import ALL_DEVICES, MpsConfig
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.quantity import MIB, parse_bytes
from driver.prepare.records import DeviceRecord

_FIELD = "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"


def pinned_limits(config: MpsConfig, devices: Sequence[DeviceRecord]) -> dict[str, int]:
    """CDI device -> MiB, for those that have a limit. The most exact key wins: UUID, index, ``*``, the default.

    Args:
        config: checked already (``config.decode``): every quantity is at least one MiB.
        devices: those that the configuration is for, in the order of the allocation; indices count them.

    Raises:
        ClaimError: permanent; a key names none of the devices.
    """
    keyed = dict(config.default_per_device_pinned_memory_limit)
    uuids = [device.uuid for device in devices]
    for key in keyed:
        if key == ALL_DEVICES or (key.isdigit() and int(key) < len(devices)) or key in uuids:
            continue
        raise ClaimError(f"{_FIELD}[{key}]: {_why(key, devices)}", Reason.INVALID_CONFIG, permanent=True)
    by_index = {int(key): value for key, value in keyed.items() if key.isdigit()}
    limits = {}
    for index, device in enumerate(devices):
        general = keyed.get(ALL_DEVICES, config.default_pinned_device_memory_limit)
        text = keyed.get(device.uuid, by_index.get(index, general))
        if text is not None:
            limits[device.cdi_device] = parse_bytes(text) // MIB
    return limits


def _why(key: str, devices: Sequence[DeviceRecord]) -> str:
    if key.isdigit():
        return f"the configuration is for {len(devices)} device(s), so indices go from 0 to {len(devices) - 1}"
    if any(device.partition is not None and not device.uuid for device in devices):
        return "a MIG device that is made for the claim has no UUID beforehand: use an index or *"
    held = ", ".join(device.uuid for device in devices)
    return f"is none of the devices of the claim ({held}): use an index, which fits on every node"
