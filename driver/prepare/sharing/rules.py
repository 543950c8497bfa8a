"""What claims that use one device at the same time must agree on, judged before anything is changed.

A device is used by several claims at once only where it is published in shares (KEP-5075). Its settings are the GPU's,
not the claim's, so they must be the same for all; the first claim decides, and the error names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver.prepare.config import Interval
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.modes import interval_of
from driver.prepare.sharing.mpsrecord import mps_of
from driver.prepare.steps import StepDefaults, Work


class SharingRulesStep(StepDefaults):
    """Changes nothing; refuses claims whose settings do not go together. Comes behind the steps that record them."""

    name = "sharingRules"
    subject = "what it shares"
    do_points = ("s3",)
    undo_points = ("v3",)

    def check(self, work: Work) -> None:
        """Compare with the claim's own devices and with those of all other claims."""
        for device in work.record.devices:
            if not device.admin_access:
                _compare(device, [work.record, *work.others], work.record)


def setting_of(device: DeviceRecord) -> str:
    """How a device's GPU is set for it, in words; equal words go together."""
    mps = mps_of(device)
    if mps is not None:
        return f"MPS ({mps.shown()})"
    interval = interval_of(device) or Interval.DEFAULT.value
    return f"time slices ({interval})"


def _compare(device: DeviceRecord, claims: Iterable[ClaimRecord], own: ClaimRecord) -> None:
    wanted = setting_of(device)
    for claim in claims:
        for other in claim.devices:
            if other.admin_access or other.cdi_device == device.cdi_device or not device.hardware & other.hardware:
                continue
            found = setting_of(other)
            if found == wanted:
                continue
            if claim.ref.uid == own.ref.uid:
                raise ClaimError(
                    f"requests {device.request} and {other.request} of claim {own.ref} share {device.device}, but one "
                    f"asks for {wanted} and the other for {found}: give both the same configuration",
                    Reason.INVALID_CONFIG,
                    permanent=True,
                )
            raise ClaimError(
                f"{device.device} is shared with claim {claim.ref}, which set it to {found}; this claim asks for "
                f"{wanted}: use the same configuration, or wait until that claim is unprepared",
                Reason.DEVICE_IN_USE,
            )
