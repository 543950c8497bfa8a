"""What a claim's record says of MPS: which daemon serves a device, and with which limits."""

from __future__ import annotations

import msgspec

from driver.prepare.document import Cursor, DocumentError
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.modes import MPS


class MpsRecord(msgspec.Struct, frozen=True):
    """What a claim's record says of MPS on one device."""

    daemon: str
    """Id of the daemon that serves it; equal on all devices that it serves."""
    percentage: int | None = None
    """Default active thread percentage of the daemon."""
    pinned_mib: int | None = None
    """Default limit of pinned memory on this device."""
    multi_user: bool = False
    share_percentage: int | None = None
    """What the claim's part of a shared GPU comes to; CUDA keeps to it through the container's environment."""
    share_mib: int | None = None

    def to_data(self) -> dict[str, object]:
        """As it is stored."""
        named = {
            "daemon": self.daemon,
            "activeThreadPercentage": self.percentage,
            "pinnedMiB": self.pinned_mib,
            "multiUser": self.multi_user or None,
            "sharePercentage": self.share_percentage,
            "shareMiB": self.share_mib,
        }
        return {key: value for key, value in named.items() if value is not None}

    def shown(self) -> str:
        """The settings that all users of the daemon have in common."""
        percentage = "all threads" if self.percentage is None else f"{self.percentage} % of the threads"
        memory = "no memory limit" if self.pinned_mib is None else f"{self.pinned_mib} MiB"
        return f"{percentage}, {memory}{', multi-user' if self.multi_user else ''}"


def mps_of(device: DeviceRecord) -> MpsRecord | None:
    """What the record says; None where the device has no MPS."""
    data = device.data.get(MPS)
    if data is None:
        return None
    cursor = Cursor(data, f"{device.device}.data.mps")
    multi_user = cursor.find("multiUser")
    try:
        return MpsRecord(
            cursor.get("daemon").text(),
            _number(cursor, "activeThreadPercentage"),
            _number(cursor, "pinnedMiB"),
            multi_user is not None and multi_user.boolean(),
            _number(cursor, "sharePercentage"),
            _number(cursor, "shareMiB"),
        )
    except DocumentError as error:
        raise ClaimError(f"the record of {device.device} cannot be read: {error}", Reason.STATE_UNAVAILABLE) from error


def daemon_ids(record: ClaimRecord) -> frozenset[str]:
    """The daemons that a claim uses; none of a record that cannot be read."""
    found = set()
    for device in record.devices:
        daemon = device.data.get(MPS, {}).get("daemon")
        if isinstance(daemon, str):
            found.add(daemon)
    return frozenset(found)


def _number(cursor: Cursor, key: str) -> int | None:
    found = cursor.find(key)
    return None if found is None else found.integer()
