"""Shares of a GPU (KEP-5075): what part of it a claim has, and what containers are told of it.

The scheduler counts shares and memory; the hardware does not. With MPS, CUDA keeps programs to their part. Without, a
program may keep itself to it: the containers' environment says how much it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from driver.model import NodeInventory
from driver.prepare.cdi import ContainerEdits
from driver.prepare.claimspec import env_word
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.quantity import MIB, parse_bytes
from driver.prepare.records import SHARE, ClaimRecord, DeviceRecord
from driver.prepare.steps import StepDefaults, Work


class Share(msgspec.Struct, frozen=True):
    """A part of a GPU, or what several parts for one request come to together."""

    shares: int | None
    of: int | None
    """How many shares the GPU has in all."""
    memory: int | None
    """Bytes."""

    @property
    def percentage(self) -> int | None:
        """Of the GPU's threads, at least 1; None where shares are not counted."""
        return max(1, min(100, 100 * self.shares // self.of)) if self.shares and self.of else None

    @property
    def memory_mib(self) -> int | None:
        """Whole MiB of memory; None without a limit."""
        return self.memory // MIB if self.memory and self.memory >= MIB else None


def share_data(consumed: Mapping[str, object], shares: int | None) -> dict[str, object]:
    """What a device's record says of its share: ``{"shares": 1, "of": 4, "memory": 21474836480}``.

    Args:
        consumed: ``consumedCapacity`` of the allocation result, as written.
        shares: how many the GPU has in all; None: they are not counted.

    Returns:
        Without what is not known.

    Raises:
        ClaimError: a capacity is no quantity.
    """
    data: dict[str, object] = {}
    try:
        if shares and "shares" in consumed:
            data.update(shares=parse_bytes(str(consumed["shares"])), of=shares)
        if "memory" in consumed:
            data["memory"] = parse_bytes(str(consumed["memory"]))
    except ValueError as error:
        raise ClaimError(f"consumedCapacity: {error}", Reason.INVALID_CLAIM, permanent=True) from error
    return data


def share_of(device: DeviceRecord, devices: Iterable[DeviceRecord]) -> Share | None:
    """What a device's request has of its GPU: containers get all devices of a request together.

    Args:
        device: None is given back for one that is no share.
        devices: of the same claim; those of the same request and GPU count.
    """
    if device.share_id is None:
        return None
    base = device.request.partition("/")[0]
    parts = [
        _read(other)
        for other in devices
        if other.share_id is not None and other.device == device.device and other.request.partition("/")[0] == base
    ]
    return Share(
        _sum(part.shares for part in parts),
        next((part.of for part in parts if part.of is not None), None),
        _sum(part.memory for part in parts),
    )


class ShareStep(StepDefaults):
    """Tells containers what part of the GPU is theirs.

    Args:
        shares: how many shares a GPU (by device name) is published in; None where they are not counted.
    """

    name = SHARE
    subject = "its shares"
    do_points = ("s0",)
    undo_points = ("v0",)

    def __init__(self, shares: Callable[[str, NodeInventory], int | None]) -> None:
        self._shares = shares

    def check(self, work: Work) -> None:
        """Count what the scheduler gave, and put it into the record: a setting that changes later changes no share."""
        work.record = work.record.with_devices(tuple(self._counted(d, work) for d in work.record.devices))

    def _counted(self, device: DeviceRecord, work: Work) -> DeviceRecord:
        consumed = device.data.get(SHARE, {}).get("consumed")
        if not isinstance(consumed, Mapping):
            return device
        return device.with_data(SHARE, share_data(consumed, self._shares(device.device, work.inventory)))

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """``GPUDRA_MEMORY_LIMIT_<device>`` in bytes and ``GPUDRA_SHARES_<device>`` as ``1/4``."""
        told = {}
        for device in record.devices:
            share = share_of(device, record.devices)
            if share is None:
                continue
            word = env_word(device.device)
            env = [f"GPUDRA_SHARES_{word}={share.shares}/{share.of}"] if share.shares and share.of else []
            env += [f"GPUDRA_MEMORY_LIMIT_{word}={share.memory}"] if share.memory else []
            told[device.cdi_device] = ContainerEdits(env=tuple(env))
        return told


def _read(device: DeviceRecord) -> Share:
    cursor = Cursor(device.data.get(SHARE, {}), f"{device.device}.data.share")
    try:
        return Share(*(found.integer() if (found := cursor.find(key)) else None for key in ("shares", "of", "memory")))
    except DocumentError as error:
        raise ClaimError(f"the record of {device.device} cannot be read: {error}", Reason.STATE_UNAVAILABLE) from error


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
