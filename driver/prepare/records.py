"""What the checkpoint remembers of a claim: enough to undo it without the claim, and to make it again after a reboot.

A record is plain data. Fields that this version does not know are kept, so that a newer version's file survives a
downgrade and comes back whole.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping

import msgspec

from driver.prepare.claims import ClaimRef
from driver.prepare.document import Cursor, DocumentError

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
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def hardware(self) -> frozenset[str]:
        """What this device occupies. Two devices overlap if they have any of it in common."""
        return frozenset((self.address, self.uuid))


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
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """Prepared, and no doubt about it: a repeated Prepare may be answered from it."""
        return self.phase is Phase.PREPARED and self.doubt is None

    @property
    def hardware(self) -> frozenset[str]:
        """Everything that the claim holds for itself: devices for admin access hold nothing."""
        own = (device.hardware for device in self.devices if not device.admin_access)
        return self.held.union(*own)

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
    return document


_CLAIM_KEYS = frozenset(("namespace", "name", "phase", "devices", "bootID", "specDigest", "doubt", "held"))
_DEVICE_KEYS = frozenset(("request", "pool", "device", "address", "uuid", "cdiDevice", "shareID", "adminAccess"))


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
        extra=_unknown(cursor, _CLAIM_KEYS),
    )


def _read_device(cursor: Cursor) -> DeviceRecord:
    admin = cursor.find("adminAccess")
    return DeviceRecord(
        request=cursor.get("request").text(),
        pool=cursor.get("pool").text(),
        device=cursor.get("device").text(),
        share_id=_text(cursor, "shareID"),
        admin_access=admin is not None and admin.boolean(),
        address=cursor.get("address").text(),
        uuid=cursor.get("uuid").text(),
        cdi_device=cursor.get("cdiDevice").text(),
        extra=_unknown(cursor, _DEVICE_KEYS),
    )


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
