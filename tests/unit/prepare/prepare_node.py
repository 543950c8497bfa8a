"""A node for the tests of prepare: GPUs, device nodes, driver files, folders and a boot id, all changeable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from driver.model import Gpu, GpuState, NodeInventory, PciAddress
from driver.prepare import ClaimRef, CommonEdits, DeviceNodes, Preparer, Step
from driver.prepare.cdi import CdiMount, ContainerEdits

DRIVER = "gpu.nvidia.com"
POOL = "node-a/gpu.nvidia.com"


def gpu(index: int, **changes: Any) -> Gpu:
    """GPU number ``index`` of a node of eight."""
    made = Gpu(
        address=PciAddress(0, 0x1B + index, 0, 0),
        state=GpuState.READY,
        uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000",
        product_name="NVIDIA H100 80GB HBM3",
        minor=index,
        drm_nodes=(f"card{index}", f"renderD{128 + index}"),
    )
    return replace(made, **changes)


def device(index: int) -> str:
    """The device name of GPU number ``index``."""
    return gpu(index).name


def result(index: int, request: str = "gpu", **changes: Any) -> dict[str, Any]:
    """An allocation result for GPU number ``index``."""
    return {"request": request, "driver": DRIVER, "pool": POOL, "device": device(index), **changes}


def config(parameters: Any, source: str = "FromClaim", requests: Sequence[str] | None = None) -> dict[str, Any]:
    """A configuration entry for this driver."""
    entry: dict[str, Any] = {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}
    if requests is not None:
        entry["requests"] = list(requests)
    return entry


def gpu_config(**fields: Any) -> dict[str, Any]:
    """The parameters of a GpuConfig."""
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **fields}


def claim(uid: str, *results: dict[str, Any], configs: Sequence[Any] = (), name: str | None = None) -> dict[str, Any]:
    """An allocated ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": name or f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results), "config": list(configs)}}},
    }


def ref(uid: str) -> ClaimRef:
    """What the kubelet names a claim of ``claim`` by."""
    return ClaimRef("ns", f"claim-{uid}", uid)


@dataclass(frozen=True)
class FakeStatus:
    """What stands at a device path."""

    kind: str = "character device"


class FakeDeviceNodes:
    """A device root in memory."""

    def __init__(self) -> None:
        self.nodes: dict[str, FakeStatus] = {}
        names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
        names += [f"nvidia{index}" for index in range(8)]
        names += [f"dri/card{index}" for index in range(8)]
        for name in names:
            self.nodes[f"/dev/{name}"] = FakeStatus()

    def __call__(self, path: str, /) -> FakeStatus | None:
        return self.nodes.get(path)


class FakeEdits:
    """Common edits of one library."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def common(self, driver_version: str | None) -> CommonEdits:
        if self.error is not None:
            raise self.error
        library = f"/usr/lib/libcuda.so.{driver_version}"
        return CommonEdits(ContainerEdits(mounts=(CdiMount(library, "/usr/lib/libcuda.so.1", ("ro",)),)), "fake")


def nothing(point: str) -> None:
    """Pass every crash point."""


@dataclass
class FakeNode:
    """Eight H100 and what the Preparer needs of a host below ``base``."""

    base: Path
    gpus: tuple[Gpu, ...] = field(default_factory=lambda: tuple(gpu(index) for index in range(8)))
    driver_version: str | None = "580.105.08"
    ready: bool = True
    boot: str | None = "boot-1"
    nodes: FakeDeviceNodes = field(default_factory=FakeDeviceNodes)
    edits: FakeEdits = field(default_factory=FakeEdits)
    faults: Callable[[str], None] = nothing
    snapshots: int = 0

    @property
    def state_dir(self) -> Path:
        return self.base / "state"

    @property
    def cdi_dir(self) -> Path:
        return self.base / "cdi"

    def inventory(self) -> NodeInventory | None:
        self.snapshots += 1
        return NodeInventory(self.driver_version, (13, 0), "13.580", self.gpus) if self.ready else None

    def start(self, patience: float = 10.0, steps: Sequence[Step] = ()) -> Preparer:
        """A driver process that starts now."""
        return Preparer(
            DRIVER,
            POOL,
            self.state_dir,
            self.cdi_dir,
            self.inventory,
            edits=self.edits,
            nodes=DeviceNodes(self.nodes),
            steps=steps,
            boot_id=lambda: self.boot,
            faults=lambda point: self.faults(point),
            patience=patience,
        )

    def reboot(self) -> None:
        """The CDI folder is a tmpfs; the kernel has a new boot id."""
        for path in self.cdi_dir.iterdir():
            path.unlink()
        self.boot = f"{self.boot}'"

    def spec_path(self, uid: str) -> Path:
        return self.cdi_dir / f"{DRIVER}-claim_{uid}.json"

    def specs(self) -> list[str]:
        """UIDs of the claims that have a file."""
        prefix, suffix = f"{DRIVER}-claim_", ".json"
        names = [path.name for path in self.cdi_dir.iterdir()] if self.cdi_dir.exists() else []
        return sorted(name.removeprefix(prefix).removesuffix(suffix) for name in names)

    def drop_gpu(self, index: int) -> None:
        self.gpus = tuple(item for item in self.gpus if item.name != device(index))

    def change_gpu(self, index: int, **changes: Any) -> None:
        self.gpus = tuple(replace(item, **changes) if item.name == device(index) else item for item in self.gpus)
