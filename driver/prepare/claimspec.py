"""A prepared claim -> its CDI spec; and back: what a spec that lies in the folder says of a forgotten claim.

Variables that containers get: ``NVIDIA_VISIBLE_DEVICES=void`` (so that NVIDIA's older runtime hook adds nothing),
``GPUDRA_CLAIM_<claim UID>=<namespace>/<name>``, and per device ``GPUDRA_DEVICE_<device name>=<UUID of the GPU or of the
MIG device>``, for admin access ``GPUDRA_ADMIN_DEVICE_<device name>``. Their names hold the identity, so that several
claims in one container do not overwrite each other's. ``GPUDRA_PARTITION_<device name>`` tells earlier versions of the
driver of a partition that was made for the claim.

One device more, ``<claim UID>_record``, which no container is given, holds the record of the claim for the case that
nothing but this file is left of it. The file is the last thing that is made for a claim and the first that is removed,
so what it tells was done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from driver.model import Placement
from driver.prepare.cdi import CdiDevice, CdiDeviceNode, CdiError, CdiSpec, ContainerEdits
from driver.prepare.claims import ClaimRef
from driver.prepare.document import Cursor
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.partition import Origin, PartitionRecord
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase, record_from_json, record_to_json
from driver.prepare.specfolder import Leftover, digest, encode

VOID = "NVIDIA_VISIBLE_DEVICES=void"
_RECORD = "GPUDRA_RECORD="

_CLAIM = re.compile(r'"GPUDRA_CLAIM_[A-Z0-9_]+=([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})"')
_DEVICE = re.compile(
    r'"GPUDRA_DEVICE_(GPU_([0-9A-F]{4,8})_([0-9A-F]{2})_([0-9A-F]{2})_([0-7])(?:_MIG_[A-Z0-9_]+|_VFIO)?)'
    r'=((?:GPU|MIG|VFIO)-[0-9A-Za-z:./-]+)"'
)
_PARTITION = re.compile(
    r'"GPUDRA_PARTITION_(GPU_[0-9A-F]{4,8}_[0-9A-F_]+_MIG_[A-Z0-9_]+)='
    r'(\d{1,4})\.(\d{1,3})\.(\d{1,3})\.(\d{1,4})\.(\d{1,4})\.([01])\.(GPU-[0-9A-Za-z-]+)"'
)


def build_spec(
    kind: str,
    record: ClaimRecord,
    own: Mapping[str, ContainerEdits],
    control: Sequence[CdiDeviceNode],
    common: ContainerEdits,
) -> bytes:
    """The content of a claim's CDI file: one device for each allocation result, with its own hardware's nodes alone,
    and one that tells the record.

    Args:
        kind: the CDI kind.
        record: the claim; the UUIDs of its devices are known.
        own: CDI device name -> what its hardware and its configuration give (``Plan.edits``).
        control: the nodes that every container with a GPU gets.
        common: the user-space driver.

    Raises:
        ClaimError: retryable; the spec would not be legal.
    """
    void = ContainerEdits(env=(VOID, _claim_variable(record.ref)), device_nodes=tuple(control))
    devices = tuple(
        CdiDevice(device.cdi_device, ContainerEdits(env=(_variable(device),)).merged(own[device.cdi_device]))
        for device in record.devices
    )
    try:
        return encode(CdiSpec(kind=kind, devices=(*devices, _telling(record)), edits=void.merged(common)))
    except CdiError as error:
        raise ClaimError(f"the CDI spec would not be legal: {error}", Reason.DRIVER_NOT_READY) from error


def _variable(record: DeviceRecord) -> str:
    prefix = "GPUDRA_ADMIN_DEVICE" if record.admin_access else "GPUDRA_DEVICE"
    return f"{prefix}_{env_word(record.device)}={record.uuid}"


def _claim_variable(ref: ClaimRef) -> str:
    return f"GPUDRA_CLAIM_{env_word(ref.uid)}={ref.namespace}/{ref.name}"


def _telling(record: ClaimRecord) -> CdiDevice:
    bare = msgspec.structs.replace(record, phase=Phase.PREPARED, boot_id=None, spec_digest=None, doubt=None)
    text = _RECORD + msgspec.json.encode(record_to_json(bare)).decode()
    return CdiDevice(telling_name(record.ref.uid), ContainerEdits(env=(text,)))


def telling_name(uid: str) -> str:
    """The CDI device that holds the record of a claim. Those of hardware have three parts: UID, request, device."""
    return f"{uid}_record"


def env_word(text: str) -> str:
    """The text as a part of a variable's name: ``gpu-0000-1b-00-0`` is ``GPU_0000_1B_00_0``."""
    return re.sub(r"[^A-Z0-9]", "_", text.upper())


def partition_variable(device: DeviceRecord, partition: PartitionRecord) -> str:
    """What ``adopt`` must know of a partition that was made for the claim."""
    place = partition.placement
    numbers = (partition.profile_id, place.start, place.size, partition.gpu_instance, partition.compute_instance)
    value = ".".join(str(number) for number in (*numbers, int(partition.switches), partition.parent))
    return f"GPUDRA_PARTITION_{env_word(device.device)}={value}"


def adopt(leftover: Leftover) -> ClaimRecord:
    """A record in doubt for a spec file whose claim the checkpoint does not know: its hardware is withheld.

    Where the file tells the whole record, the record has the file's digest: if all of it is found to be so, there is no
    doubt any more. Of a file of an earlier version only GPUs are known, and partitions that were made for the claim.
    """
    return _whole(leftover) or _guessed(leftover)


def _whole(leftover: Leftover) -> ClaimRecord | None:
    """The record that a file tells; None where it tells none, or not that of its own devices."""
    try:
        devices = list(Cursor(msgspec.json.decode(leftover.text)).get("devices").elements())
        named = {device.get("name").text(): device for device in devices}
        telling = named.pop(telling_name(leftover.uid), None)
        if telling is None:
            return None
        (text,) = telling.get("containerEdits").get("env").elements()
        record = record_from_json(leftover.uid, msgspec.json.decode(text.text().removeprefix(_RECORD)))
    except (ValueError, RecursionError):  # of JSON, of a document, of a number of variables
        return None
    if record.doubt is not None or {device.cdi_device for device in record.devices} != named.keys():
        return None
    return msgspec.structs.replace(
        record,
        phase=Phase.PREPARED,
        boot_id=None,
        spec_digest=digest(leftover.text.encode()),
        doubt="the checkpoint was lost; its CDI file tells what it has",
    )


def _guessed(leftover: Leftover) -> ClaimRecord:
    claim = _CLAIM.search(leftover.text)
    namespace, name = claim.groups() if claim else ("", "")
    made = {found[0]: found[1:] for found in _PARTITION.findall(leftover.text)}
    held: set[str] = set()
    devices = []
    for word, domain, bus, device, function, uuid in _DEVICE.findall(leftover.text):
        address = f"{domain}:{bus}:{device}.{function}".lower()
        if word in made:
            devices.append(_adopted(word.lower().replace("_", "-"), address, uuid, made[word]))
        else:
            held.update((address, uuid))
    return ClaimRecord(
        ref=ClaimRef(namespace, name, leftover.uid),
        phase=Phase.PREPARED,
        devices=tuple(devices),
        doubt="the checkpoint was lost; only the CDI file of this claim is known",
        held=frozenset(held),
    )


def _adopted(name: str, address: str, uuid: str, values: Sequence[str]) -> DeviceRecord:
    profile_id, start, size, gpu_instance, compute_instance, switches = (int(value) for value in values[:6])
    partition = PartitionRecord(
        profile_id=profile_id,
        profile="",
        placement=Placement(start, max(size, 1)),
        parent=values[6],
        origin=Origin.MADE,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        switches=bool(switches),
    )
    device = DeviceRecord(
        request="", pool="", device=name, share_id=None, admin_access=False, address=address, uuid="", cdi_device=""
    )
    return device.with_partition(partition, uuid)
