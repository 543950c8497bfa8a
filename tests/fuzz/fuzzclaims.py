"""Targets: claims, configurations, CDI files, the checkpoint and what else Prepare reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver.model import PciAddress
from driver.names import DeviceName
from driver.prepare import ClaimError, config, ctkspec, envelope, quantity, strictjson
from driver.prepare.claims import is_claim_uid, read_claim
from driver.prepare.claimspec import adopt
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.effective import effective_configs
from driver.prepare.files import NotAFileError, TooLargeError, read_regular
from driver.prepare.hostpaths import DriverRoot
from driver.prepare.partition import PartitionRecord, read_partition
from driver.prepare.records import record_from_json
from driver.prepare.session import read_boot_id
from driver.prepare.slots import SlotFile
from driver.prepare.specfolder import Leftover, SpecFolder
from kubeletplugin.api import ClaimRef, PrepareError
from kubeletplugin.claims import check_ref
from tests.fuzz.engine import Target
from tests.fuzz.fuzztools import as_json, as_text, written

DRIVER = "gpu.nvidia.com"
POOL = f"node-a/{DRIVER}"
UID = "0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55"

GPU_CONFIG = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {
        "strategy": "MPS",
        "mpsConfig": {
            "defaultActiveThreadPercentage": 50,
            "defaultPinnedDeviceMemoryLimit": "2Gi",
            "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"},
        },
    },
}
SLICE_CONFIG = {**GPU_CONFIG, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
MIG_CONFIG = {**GPU_CONFIG, "kind": "MigDeviceConfig"}
VFIO_CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"namespace": "default", "name": "train", "uid": UID},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r0", "driver": DRIVER, "pool": POOL, "device": "gpu-0000-1b-00-0"},
                    {
                        "request": "r1/a",
                        "driver": DRIVER,
                        "pool": POOL,
                        "device": "gpu-0000-43-00-0",
                        "shareID": UID,
                        "consumedCapacity": {"shares": "1", "memory": "10Gi"},
                    },
                    {"request": "nic", "driver": "nic.example", "pool": "other", "device": "eth0", "adminAccess": True},
                ],
                "config": [
                    {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": SLICE_CONFIG}},
                    {"source": "FromClaim", "requests": ["r0"], "opaque": {"driver": DRIVER, "parameters": GPU_CONFIG}},
                ],
            }
        }
    },
}
RECORD: dict[str, Any] = {
    "namespace": "default",
    "name": "train",
    "phase": "Prepared",
    "bootID": "b",
    "specDigest": "0" * 64,
    "held": ["0000:1b:00.0"],
    "devices": [
        {
            "request": "r0",
            "pool": POOL,
            "device": "gpu-0000-1b-00-0-mig-1g-10gb-19-0",
            "address": "0000:1b:00.0",
            "uuid": "MIG-1",
            "cdiDevice": "d",
            "data": {
                "partition": {
                    "profileID": 19,
                    "profile": "1g.10gb",
                    "start": 0,
                    "size": 1,
                    "parentUUID": "GPU-1",
                    "origin": "made",
                    "gpuInstance": 1,
                    "computeInstance": 0,
                    "switchesMode": True,
                }
            },
        }
    ],
}
CTK_SPEC = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "hooks": [
            {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "x"]}
        ],
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro"]}],
    },
}
CLAIM_SPEC = (
    b'{"env":["GPUDRA_CLAIM_X=default/train","GPUDRA_DEVICE_GPU_0000_1B_00_0_MIG_1G_10GB_19_0=MIG-1"],'
    b'"more":["GPUDRA_PARTITION_GPU_0000_1B_00_0_MIG_1G_10GB_19_0=19.0.1.1.0.1.GPU-1"]}'
)


def _claim(data: bytes, _folder: Path) -> None:
    allocation = read_claim(as_json(data), uid=UID, driver_name=DRIVER, pool_name=POOL)
    for result in allocation.results:
        DeviceName.parse(result.device)
    effective_configs(allocation, frozenset({"MPS", "TimeSlicing"}))


def _sealed(data: bytes, _folder: Path) -> None:
    """As it stands; and with its checksum made right, so that the inside is reached."""
    try:
        envelope.decode(data)
    except envelope.DamagedError:
        start = data.find(b'"data":') + 7
        inside = data[start:-2]
        head = b'{"checksum":"sha256:' + hashlib.sha256(inside).hexdigest().encode()
        envelope.decode(head + b'","data":' + inside + b"}\n")


def _checkpoint() -> bytes:
    return envelope.encode(envelope.State({UID: record_from_json(UID, RECORD)}, "boot", 7))


def _slots(data: bytes, folder: Path) -> None:
    file = SlotFile(written(folder, "checkpoint.json", data))
    try:
        for line in file.read():
            envelope.number_of(line.raw)
    finally:
        file.close()


def _specs(data: bytes, folder: Path) -> None:
    specs = SpecFolder(folder, DRIVER)
    written(folder, f"{DRIVER}-claim_{UID}.json", data)
    for leftover in specs.leftovers():
        adopt(leftover)
    specs.current_digest(UID)


def _ctk(name: str) -> Callable[[bytes, Path], object]:
    return lambda data, folder: ctkspec.read_common_edits(written(folder, name, data), DriverRoot(folder))


def _names(data: bytes, _folder: Path) -> None:
    text = as_text(data)
    DeviceName.parse(text)
    is_claim_uid(text)


def _yaml() -> bytes:
    import yaml

    return yaml.safe_dump(CTK_SPEC).encode()


def _ref(data: bytes, _folder: Path) -> None:
    namespace, _, rest = as_text(data).partition("/")
    name, _, uid = rest.partition("/")
    check_ref(ClaimRef(namespace, name, uid))


TARGETS = (
    Target("claim", _claim, (ClaimError,), [json.dumps(CLAIM).encode()], ("driver.prepare.claims:read_claim",)),
    Target("claim reference", _ref, (PrepareError,), [f"default/train/{UID}".encode()]),
    Target(
        "opaque configuration",
        lambda data, _: config.decode_text(data),
        (DocumentError,),
        [json.dumps(one).encode() for one in (GPU_CONFIG, SLICE_CONFIG, MIG_CONFIG, VFIO_CONFIG)],
        ("driver.prepare.config:decode_text", "driver.prepare.strictjson:loads"),
    ),
    Target(
        "stored configuration",
        lambda data, _: config.decode(as_json(data), strict=False),
        (DocumentError,),
        [json.dumps(one).encode() for one in (GPU_CONFIG, SLICE_CONFIG, MIG_CONFIG, VFIO_CONFIG)],
        ("driver.prepare.config:decode",),
    ),
    Target(
        "strict JSON",
        lambda data, _: strictjson.loads(data, max_bytes=100_000),
        (strictjson.StrictJSONError,),
        [json.dumps(CLAIM).encode()],
        ("driver.prepare.strictjson:loads",),
    ),
    Target(
        "memory quantity",
        lambda data, _: quantity.parse_bytes(as_text(data)),
        (ValueError,),
        [b"1Gi", b"500M", b"1e9", b"1500m", b"1.5Ti"],
        ("driver.prepare.quantity:parse_bytes",),
    ),
    Target(
        "device name",
        _names,
        (),
        [b"gpu-0000-1b-00-0-mig-1g-10gb-19-0-c2", b"gpu-0000-1b-00-0"],
        ("driver.names:DeviceName.parse",),
    ),
    Target(
        "PCI address",
        lambda data, _: PciAddress.parse(as_text(data)),
        (ValueError,),
        [b"0000:1b:00.0", b"0000000F:01:00.0"],
        ("driver.model:PciAddress.parse",),
    ),
    Target(
        "checkpoint",
        _sealed,
        (envelope.DamagedError, envelope.TooNewError),
        [_checkpoint()],
        ("driver.prepare.envelope:decode",),
    ),
    Target(
        "checkpoint file",
        _slots,
        (NotAFileError, TooLargeError, OSError),
        [_checkpoint()],
        ("driver.prepare.slots:SlotFile.read",),
    ),
    Target(
        "stored record",
        lambda data, _: record_from_json(UID, as_json(data)).hardware,
        (),
        [json.dumps(RECORD).encode()],
    ),
    Target(
        "stored partition",
        lambda data, _: (read_partition(Cursor(as_json(data))), as_json(data)),
        (DocumentError,),
        [json.dumps(RECORD["devices"][0]["data"]["partition"]).encode()],
        ("driver.prepare.partition:read_partition",),
    ),
    Target(
        "stored partition, from data",
        lambda data, _: PartitionRecord.from_data(as_json(data)),
        (DocumentError,),
        [json.dumps(RECORD["devices"][0]["data"]["partition"]).encode()],
        ("driver.prepare.partition:PartitionRecord.from_data",),
    ),
    Target("CDI file of a forgotten claim", lambda data, _: adopt(Leftover(UID, as_text(data))), (), [CLAIM_SPEC]),
    Target("CDI folder", _specs, (), [CLAIM_SPEC]),
    Target(
        "nvidia-ctk specification, JSON",
        _ctk("spec.json"),
        (ctkspec.SpecError,),
        [json.dumps(CTK_SPEC).encode()],
        ("driver.prepare.ctkspec:read_common_edits",),
    ),
    Target(
        "nvidia-ctk specification, YAML",
        _ctk("spec.yaml"),
        (ctkspec.SpecError,),
        [_yaml()],
        ("driver.prepare.ctkspec:read_common_edits",),
    ),
    Target(
        "file of ours",
        lambda data, folder: read_regular(written(folder, "f", data), 10_000),
        (TooLargeError,),
        [b"x"],
        ("driver.prepare.files:read_regular",),
    ),
    Target(
        "boot id",
        lambda data, folder: read_boot_id(written(folder, "sys/kernel/random/boot_id", data).parents[3]),
        (),
        [b"0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55\n"],
        ("driver.prepare.session:read_boot_id",),
    ),
)
