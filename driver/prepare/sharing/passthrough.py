"""Passthrough: a GPU is bound to vfio-pci for a virtual machine while a claim has it, and given back afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from driver.model import NodeInventory
from driver.names import DeviceName
from driver.prepare.cdi import CdiDeviceNode, ContainerEdits
from driver.prepare.config import IommuBackend, VfioDeviceConfig
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.steps import StepDefaults, Work
from native.commands import Deadline
from native.vfio import VFIO_PCI, VfioBus, VfioError

log = logging.getLogger(__name__)

VFIO: Final = "vfio"


class VfioRecord(msgspec.Struct, frozen=True):
    """What a claim's record says of one device for passthrough."""

    former: tuple[tuple[str, str | None], ...]
    """(address of a function of the board, the driver that it had), the GPU first."""
    iommufd: bool = False
    """Whether IOMMUFD was asked for."""
    api: bool = False
    """Whether the container gets the API device too."""
    product_name: str | None = None
    """What NVML called the GPU before it was bound."""

    def to_data(self) -> dict[str, object]:
        """As it is stored."""
        data: dict[str, object] = {"former": [{"address": a, "driver": d} for a, d in self.former]}
        return data | {"iommuFD": self.iommufd, "apiDevice": self.api, "productName": self.product_name}


def vfio_of(device: DeviceRecord) -> VfioRecord | None:
    """What the record says; None where the device is not for passthrough."""
    data = device.data.get(VFIO)
    if data is None:
        return None
    cursor = Cursor(data, f"{device.device}.data.vfio")
    try:
        former = []
        for entry in cursor.get("former").elements():
            driver = entry.find("driver")
            former.append((entry.get("address").text(), driver.text() if driver else None))
        name = cursor.find("productName")
        return VfioRecord(
            tuple(former),
            cursor.get("iommuFD").boolean(),
            cursor.get("apiDevice").boolean(),
            name.text() if name else None,
        )
    except DocumentError as error:
        raise ClaimError(f"the record of {device.device} cannot be read: {error}", Reason.STATE_UNAVAILABLE) from error


class VfioStep(StepDefaults):
    """Binds GPUs to vfio-pci and back.

    Args:
        bus: binds.
        holders: who has device nodes (``/dev/nvidia0``, ``/dev/vfio/7``) open, in words; asked before anything is
            unbound, because the kernel waits for them.
        release: makes this process let go of a GPU (NVML holds its node open).
        offered: whether GPUs are offered for passthrough here; where not, only what was begun before is undone.
        host_root: where the device root stands on the host.
        seconds: that one claim may take.
    """

    name = VFIO
    subject = "the driver of its GPUs"
    do_points = ("s4",)
    undo_points = ("v4",)

    def __init__(
        self,
        bus: VfioBus,
        holders: Callable[[Sequence[str]], Sequence[str]],
        release: Callable[[], None],
        *,
        offered: bool = True,
        host_root: str = "/",
        seconds: float = 20.0,
    ) -> None:
        self._bus = bus
        self._holders = holders
        self._release = release
        self.kinds = frozenset({"vfio"}) if offered else frozenset()
        self._host_root = host_root.rstrip("/")
        self._seconds = seconds

    def check(self, work: Work) -> None:
        """See that each GPU can be handed over, and remember which drivers its board has."""
        work.record = work.record.with_devices(tuple(self._checked(device, work) for device in work.record.devices))

    def do(self, work: Work) -> None:
        """Bind every function of each board, if nobody uses the GPU."""
        deadline = Deadline(self._seconds)
        for device, vfio in _with_vfio(work.record):
            if all(self._bus.driver(address) == VFIO_PCI for address, _ in vfio.former):
                continue
            self._refuse_users(device, work.inventory)
            work.spec = None  # the device file of IOMMUFD is there, and has its name, only now
            try:
                for address, _ in vfio.former:
                    self._bus.bind(address, deadline)
            except VfioError as error:
                raise ClaimError(f"{device.device} cannot be handed over: {error}", Reason.DEVICE_NOT_READY) from error

    def is_done(self, work: Work) -> bool:
        """Whether every function is bound to vfio-pci."""
        return all(
            self._bus.driver(address) == VFIO_PCI for _, vfio in _with_vfio(work.record) for address, _ in vfio.former
        )

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Give every function back to the driver that it had; the GPU last, when its board is whole again."""
        deadline = Deadline(self._seconds)
        for device, vfio in _with_vfio(record):
            if device.admin_access or vfio.former[0][1] == VFIO_PCI:
                continue
            self._refuse_machines(device, vfio)
            try:
                for address, driver in reversed(vfio.former):
                    self._bus.restore(address, driver, deadline)
            except VfioError as error:
                raise ClaimError(f"{device.device} cannot be taken back: {error}", Reason.DEVICE_NOT_READY) from error

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether no function is bound to vfio-pci any more that had another driver before."""
        return all(
            driver == VFIO_PCI or self._bus.driver(address) != VFIO_PCI
            for device, vfio in _with_vfio(record)
            if not device.admin_access and vfio.former[0][1] != VFIO_PCI
            for address, driver in vfio.former
        )

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """The device files that open the GPU to a virtual machine."""
        found = {}
        for device, vfio in _with_vfio(record):
            try:
                nodes = self._bus.nodes(vfio.former[0][0], iommufd=vfio.iommufd)
            except VfioError as error:
                raise ClaimError(f"{device.device}: {error}", Reason.DEVICE_NOT_READY) from error
            paths = (nodes.device, nodes.api) if vfio.api else (nodes.device,)
            found[device.cdi_device] = ContainerEdits(device_nodes=tuple(self._node(path) for path in paths))
        return found

    def _checked(self, device: DeviceRecord, work: Work) -> DeviceRecord:
        name = DeviceName.parse(device.device)
        if name is None or name.kind != "vfio":
            return device
        if device.admin_access:
            raise ClaimError(
                f"request {device.request} has adminAccess, which binds no driver: {device.device} cannot be looked at "
                "while it belongs to a virtual machine; ask for the GPU itself",
                Reason.INVALID_CONFIG,
                permanent=True,
            )
        if vfio_of(device) is not None:
            return device
        obstacle = self._bus.obstacle(device.address)
        if obstacle is not None:
            raise ClaimError(f"{device.device} cannot be handed over: {obstacle}", Reason.DEVICE_NOT_READY)
        config = work.configs.get(device.cdi_device)
        config = config if isinstance(config, VfioDeviceConfig) else VfioDeviceConfig()
        gpu = work.inventory.at(device.address)
        made = VfioRecord(
            tuple((function.address, function.driver) for function in self._bus.board(device.address)),
            config.backend_policy is IommuBackend.PREFER_IOMMUFD,
            config.enable_api_device,
            gpu.product_name if gpu is not None else None,
        )
        return device.with_data(VFIO, made.to_data())

    def _refuse_users(self, device: DeviceRecord, inventory: NodeInventory) -> None:
        gpu = inventory.at(device.address)
        if gpu is None or gpu.minor is None:
            return
        self._release()
        users = self._holders([f"/dev/nvidia{gpu.minor}"])
        if users:
            raise ClaimError(
                f"{device.device} is in use by {', '.join(users[:3])}; the kernel would wait for them without end: end "
                "them (nvidia-persistenced and monitoring included), and the claim goes on",
                Reason.DEVICE_IN_USE,
            )

    def _refuse_machines(self, device: DeviceRecord, vfio: VfioRecord) -> None:
        if self._bus.driver(vfio.former[0][0]) != VFIO_PCI:
            return
        try:
            nodes = {self._bus.nodes(vfio.former[0][0], iommufd=kind).device for kind in (False, True)}
        except VfioError:
            return
        users = self._holders(sorted(nodes))
        if users:
            raise ClaimError(
                f"{device.device} is still used by {', '.join(users[:3])}: it is taken back when the virtual machine "
                "has ended",
                Reason.DEVICE_IN_USE,
            )

    def _node(self, path: str) -> CdiDeviceNode:
        return CdiDeviceNode(path, host_path=f"{self._host_root}{path}" if self._host_root else None)


def _with_vfio(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, VfioRecord]]:
    for device in record.devices:
        vfio = vfio_of(device)
        if vfio is not None and vfio.former:
            yield device, vfio
