"""From an allocated claim to prepared devices: reading, configuration, state machine, checkpoint, CDI."""

from __future__ import annotations

from driver.prepare.claims import ClaimRef
from driver.prepare.devices import DeviceNodeReader, DeviceNodes, NodeStatus
from driver.prepare.edits import CommonEdits, EditsSource, HostEdits
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.hostpaths import DriverRoot
from driver.prepare.miglook import MigDoor
from driver.prepare.migstep import MigStep
from driver.prepare.partition import Origin
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.recovery import Recovery
from driver.prepare.remnant import is_remnant
from driver.prepare.session import read_boot_id
from driver.prepare.state import PreparedDevice, Preparer
from driver.prepare.steps import Step, StepDefaults, Work
from driver.prepare.waiting import PatientPreparer

__all__ = [
    "ClaimError",
    "ClaimRecord",
    "ClaimRef",
    "CommonEdits",
    "DeviceNodeReader",
    "DeviceNodes",
    "DeviceRecord",
    "DriverRoot",
    "EditsSource",
    "HostEdits",
    "MigDoor",
    "MigStep",
    "NodeStatus",
    "Origin",
    "PatientPreparer",
    "Phase",
    "PreparedDevice",
    "Preparer",
    "Reason",
    "Recovery",
    "Step",
    "StepDefaults",
    "Work",
    "is_remnant",
    "read_boot_id",
]
