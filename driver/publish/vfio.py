"""GPUs that are offered to virtual machines: devices of the type ``vfio``, by what the bus knows of them. Pure.

A GPU that is bound to vfio-pci is none of NVML's, so nothing here may depend on NVML: the device must look the same
before, while and after a claim has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from driver.model import Gpu
from driver.names import DeviceName
from driver.publish.attributes import STANDARD_DOMAIN
from driver.publish.devices import tainted
from driver.publish.values import bus_id, clip

NO_IOMMU: Final = (
    "it is in no IOMMU group, so no virtual machine can have it; turn the IOMMU on (firmware, and intel_iommu=on or "
    "amd_iommu=on on the kernel's command line)"
)
_NAMESPACE: Final = uuid.NAMESPACE_URL


def vfio_name(gpu: Gpu) -> str:
    """The name of the device: ``gpu-0000-1b-00-0-vfio``."""
    name = f"{gpu.name}-vfio"
    assert DeviceName.parse(name) is not None
    return name


def vfio_devices(gpus: Sequence[Gpu], taints: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The devices, in the order of the GPUs; all with the same keys.

    Args:
        gpus: those for passthrough.
        taints: by device name; what NVML has against the GPU does not count, it cannot see the device.
    """
    rows = {vfio_name(gpu): _values(gpu) for gpu in gpus}
    shared = [key for key in next(iter(rows.values()), {}) if all(row[key] is not None for row in rows.values())]
    devices = []
    for name, row in rows.items():
        device: dict[str, Any] = {"name": name, "attributes": {key: row[key] for key in shared}}
        devices.append(tainted(device, taints.get(name, ())))
    return devices


def _values(gpu: Gpu) -> dict[str, dict[str, Any] | None]:
    packed = gpu.pci_device_id
    address = bus_id(str(gpu.address))
    return {
        "type": {"string": "vfio"},
        "uuid": {"string": str(uuid.uuid5(_NAMESPACE, str(gpu.address)))},
        "vendorID": None if packed is None else {"string": f"0x{packed & 0xFFFF:04x}"},
        "deviceID": None if packed is None else {"string": f"0x{packed >> 16:04x}"},
        "productName": {"string": clip((gpu.passthrough and gpu.passthrough.product_name) or "") or "Unknown"},
        "iommuFDEnabled": {"bool": gpu.passthrough is not None and gpu.passthrough.iommufd},
        STANDARD_DOMAIN + "pciBusID": None if address is None else {"string": address},
        STANDARD_DOMAIN + "pcieRoot": None if gpu.pcie_root is None else {"string": gpu.pcie_root},
        STANDARD_DOMAIN + "numaNode": None if gpu.numa_node is None else {"int": gpu.numa_node},
    }
