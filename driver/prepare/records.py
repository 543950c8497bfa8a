"""What the checkpoint remembers of a claim: enough to undo it without the claim, and to make it again after a reboot.

A record is plain data. Fields that this version does not know are kept, so that a newer version's file survives a
downgrade and comes back whole.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from driver.prepare.claims import ClaimRef
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.partition import PARTITION, PartitionRecord, read_partition

StepData: TypeAlias = Mapping[str, Mapping[str, object]]
"""Step name -> a JSON object of the step's own."""
SHARE = "share"
"""The name under which the data of a share stands in a device's data."""

_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\b")
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9A-Za-z-]{4,}\b")


class Phase(enum.StrEnum):
    """How far a claim has come. Anything but PREPARED is unfinished work."""

    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


class DeviceRecord(msgspec.Struct, frozen=True):
    """One device of a claim: what was asked for, and the hardware that stands for it."""

    request: str
    pool: str
    device: str
    share_id: str | None
    admin_access: bool
    address: str
    """PCI address in the kernel's spelling."""
    uuid: str
    cdi_device: str
    """The device's name within the CDI kind."""
    data: StepData = msgspec.field(default_factory=dict)
    """What steps must know of this device to undo or make again what they did, by the step's name."""
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def partition(self) -> PartitionRecord | None:
        """Which part of the GPU it is; None for a whole one."""
        data = self.data.get(PARTITION)
        return None if data is None else PartitionRecord.from_data(data)

    @property
    def stands(self) -> bool:
        """Whether the device is there, as far as the record knows: not while its partition is being made again."""
        partition = self.partition
        return partition is None or partition.compute_instance is not None

    @property
    def hardware(self) -> frozenset[str]:
        """What this device occupies. Two devices overlap if they have any of it in common, or if one occupies what the
        other is a part of (``within``)."""
        partition = self.partition
        parts = (self.address,) if partition is None else partition.parts(self.address)
        return frozenset((*parts, self.uuid)) - {""}

    @property
    def within(self) -> frozenset[str]:
        """What this device is a part of: nothing for a whole GPU. Two parts of the same do not overlap by that."""
        partition = self.partition
        return frozenset() if partition is None else partition.wholes(self.address)

    def with_data(self, step: str, data: Mapping[str, object]) -> DeviceRecord:
        """The same device, with what a step must know of it."""
        return msgspec.structs.replace(self, data={**self.data, step: data})

    def with_partition(self, partition: PartitionRecord, uuid: str) -> DeviceRecord:
        """The same device, with another state of its partition."""
        return msgspec.structs.replace(self.with_data(PARTITION, partition.to_data()), uuid=uuid)


class ClaimRecord(msgspec.Struct, frozen=True):
    """One claim."""

    ref: ClaimRef
    phase: Phase
    devices: tuple[DeviceRecord, ...] = ()
    boot_id: str | None = None
    """The boot in which hardware and CDI file were last known to be right. None: unknown, so they must be checked."""
    spec_digest: str | None = None
    """SHA-256 of the CDI file."""
    doubt: str | None = None
    """Why this record is not to be trusted: its hardware is withheld, but it is not answered from."""
    held: frozenset[str] = frozenset()
    """Hardware that is occupied beside that of ``devices``: of a record that could not be read in full."""
    data: StepData = msgspec.field(default_factory=dict)
    """What steps must know of the claim as a whole, by the step's name."""
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)
    pod_claim: str | None = None
    """The pod's name for a claim that was made from a template, by which containers find its metadata; empty for
    others. None: unknown, for an earlier version wrote the record."""

    @property
    def trusted(self) -> bool:
        """Prepared, and no doubt about it: a repeated Prepare may be answered from it."""
        return self.phase is Phase.PREPARED and self.doubt is None and all(device.stands for device in self.devices)

    @property
    def hardware(self) -> frozenset[str]:
        """Everything that the claim holds for itself: devices for admin access hold nothing."""
        own = (device.hardware for device in self.devices if not device.admin_access)
        return self.held.union(*own)

    @property
    def within(self) -> frozenset[str]:
        """What the claim's devices are parts of."""
        return frozenset().union(*(device.within for device in self.devices if not device.admin_access))

    def with_devices(self, devices: tuple[DeviceRecord, ...]) -> ClaimRecord:
        """The same claim, with what became of its devices."""
        return msgspec.structs.replace(self, devices=devices)

    def with_phase(self, phase: Phase) -> ClaimRecord:
        """The same claim, one phase on."""
        return msgspec.structs.replace(self, phase=phase)


def record_to_json(record: ClaimRecord) -> dict[str, object]:
    """The record as it is stored: unknown fields first, absent values left out."""
    document: dict[str, object] = dict(record.extra)
    document.update(
        namespace=record.ref.namespace,
        name=record.ref.name,
        phase=str(record.phase),
        devices=[_device_to_json(device) for device in record.devices],
    )
    optional = {
        "bootID": record.boot_id,
        "specDigest": record.spec_digest,
        "doubt": record.doubt,
        "held": sorted(record.held) or None,
        "data": record.data or None,
        "podClaim": record.pod_claim,
    }
    document.update({key: value for key, value in optional.items() if value is not None})
    return document


def _device_to_json(device: DeviceRecord) -> dict[str, object]:
    document: dict[str, object] = dict(device.extra)
    document.update(
        request=device.request,
        pool=device.pool,
        device=device.device,
        address=device.address,
        uuid=device.uuid,
        cdiDevice=device.cdi_device,
    )
    if device.share_id is not None:
        document["shareID"] = device.share_id
    if device.admin_access:
        document["adminAccess"] = True
    if device.data:
        document["data"] = device.data
    return document


_CLAIM_KEYS = frozenset(
    ("namespace", "name", "phase", "devices", "bootID", "specDigest", "doubt", "held", "data", "podClaim")
)
_DEVICE_KEYS = frozenset(
    ("request", "pool", "device", "address", "uuid", "cdiDevice", "shareID", "adminAccess", "data")
)


def record_from_json(uid: str, value: object) -> ClaimRecord:
    """Read a stored record. One that cannot be read becomes a record in doubt that keeps all it mentions withheld."""
    try:
        return _read(uid, Cursor(value, f"claims.{uid}"))
    except DocumentError as error:
        return unreadable_record(uid, value, str(error))


def _read(uid: str, cursor: Cursor) -> ClaimRecord:
    phase = cursor.get("phase")
    if phase.text() not in list(Phase):
        raise phase.error(f"is {phase.text()!a}, which this version does not know")
    held = cursor.find("held")
    return ClaimRecord(
        ref=ClaimRef(_text(cursor, "namespace") or "", _text(cursor, "name") or "", uid),
        phase=Phase(phase.text()),
        devices=tuple(_read_device(device) for device in cursor.get("devices").elements()),
        boot_id=_text(cursor, "bootID"),
        spec_digest=_text(cursor, "specDigest"),
        doubt=_text(cursor, "doubt"),
        held=frozenset(item.text() for item in held.elements()) if held else frozenset(),
        data=_step_data(cursor),
        extra=_unknown(cursor, _CLAIM_KEYS),
        pod_claim=_text(cursor, "podClaim"),
    )


def _read_device(cursor: Cursor) -> DeviceRecord:
    admin = cursor.find("adminAccess")
    device = DeviceRecord(
        request=cursor.get("request").text(),
        pool=cursor.get("pool").text(),
        device=cursor.get("device").text(),
        share_id=_text(cursor, "shareID"),
        admin_access=admin is not None and admin.boolean(),
        address=cursor.get("address").text(),
        uuid=cursor.get("uuid").text(),
        cdi_device=cursor.get("cdiDevice").text(),
        data=_step_data(cursor),
        extra=_unknown(cursor, _DEVICE_KEYS),
    )
    if PARTITION in device.data:
        read_partition(cursor.get("data").get(PARTITION))
    return device


def _step_data(cursor: Cursor) -> StepData:
    """What steps wrote: an object for each. What is in them is the steps' own affair."""
    found = cursor.find("data")
    return {} if found is None else {name: item.as_object() for name, item in found.members()}


def unreadable_record(uid: str, value: object, problem: str) -> ClaimRecord:
    """A record in doubt: whatever hardware the stored value mentions stays withheld until the claim is unprepared."""
    text = json.dumps(value, default=str)
    names = value if isinstance(value, Mapping) else {}
    namespace, name = names.get("namespace"), names.get("name")
    return ClaimRecord(
        ref=ClaimRef(namespace if isinstance(namespace, str) else "", name if isinstance(name, str) else "", uid),
        phase=Phase.PREPARED,
        doubt=f"its record cannot be read: {problem}",
        held=frozenset(_ADDRESS.findall(text.lower())) | frozenset(_UUID.findall(text)),
        extra={"unreadable": value},
    )


def _text(cursor: Cursor, key: str) -> str | None:
    found = cursor.find(key)
    return None if found is None else found.text()


def _unknown(cursor: Cursor, known: frozenset[str]) -> Mapping[str, object]:
    return {key: value for key, value in cursor.as_object().items() if key not in known}
