"""Reads this machine into a ``NodeInventory``: sysfs first, then NVML for the GPUs that the bus shows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from driver.discovery import DriverUnavailableError
from driver.inventory import build_inventory
from driver.inventory.states import NVIDIA_DRIVER
from driver.model import NodeInventory
from native.capabilities import instance_minors
from native.driverroot import find_library
from native.nvml.errors import LibraryUnavailableError, NvmlError
from native.nvml.session import NvmlSession
from native.nvml.types import GpuSnapshot, NvmlSnapshot
from native.sysfs import HostTopology, read_host


class NodePaths(msgspec.Struct, frozen=True):
    """Where the machine is, as this process sees it."""

    driver_root: Path = Path("/")
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    library: Path | None = None
    """The libnvidia-ml.so.1 to load; None: searched below the driver root before every reading."""


class HiddenLinks:
    """The NVLinks of GPUs in MIG mode, which NVML does not show while the mode is on.

    A driver that switches the mode for each claim would else tell schedulers again and again that a GPU has lost its
    links, and that it has them back only at the next reading.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str | None, str | None], GpuSnapshot] = {}

    def put_back(self, snapshot: NvmlSnapshot) -> NvmlSnapshot:
        """The reading with the links that each GPU had when its mode was off; of GPUs seen with it off only."""
        gpus = []
        for gpu in snapshot.gpus:
            key = gpu.address, gpu.uuid
            if gpu.mig_mode is None or not gpu.mig_mode[0]:
                self._seen[key] = gpu
            elif key in self._seen:
                before = self._seen[key]
                # The same GPU.
                gpu = msgspec.structs.replace(gpu, nvlinks=before.nvlinks, fabric=before.fabric)  # noqa: PLW2901
            gpus.append(gpu)
        return msgspec.structs.replace(snapshot, gpus=tuple(gpus))


class NodeReader:
    """Gives whole readings of one machine, from any thread, each within its deadline.

    Args:
        paths: where the machine is.
        backend: ``auto``, ``cffi`` or ``pynvml``.
        deadline: seconds for one reading of NVML.
        mig: read what boards can be divided into also where MIG mode is off (drivers tell that since Hopper).
    """

    def __init__(self, paths: NodePaths, *, backend: str = "auto", deadline: float = 30.0, mig: bool = False) -> None:
        self._paths = paths
        self._mig = mig
        self._links = HiddenLinks()
        self._deadline = deadline
        find = paths.library if paths.library is not None else (lambda: find_library(paths.driver_root))
        self._session = NvmlSession(find, backend)

    def read(self) -> NodeInventory:
        """Read the machine now.

        A machine whose bus shows no NVIDIA GPU and that has no driver either is read as what it is: a node with no GPU.

        Raises:
            DriverUnavailableError: there are GPUs, and the driver that could tell about them does not answer.
        """
        host = read_host(self._paths.sys_root, self._paths.proc_root)
        # Without a PCI tree (WSL) NVML's own enumeration is all there is. A GPU that another driver holds (vfio-pci) is
        # none of NVML's: asking for it would have NVML look for it anew each time.
        ours = [device.address for device in host.gpus if device.driver in (None, NVIDIA_DRIVER)]
        addresses = ours if host.gpus else None
        try:
            snapshot = self._session.snapshot(addresses, self._deadline, mig=self._mig)
        except LibraryUnavailableError as err:
            if self._has_no_gpu(host):
                return build_inventory(None, host, mock=False)
            raise DriverUnavailableError(str(err)) from err
        except NvmlError as err:
            raise DriverUnavailableError(str(err)) from err
        library = self._session.library
        if self._mig:
            snapshot = self._links.put_back(snapshot)
        divided = any(gpu.mig is not None and gpu.mig.instances for gpu in snapshot.gpus)
        minors = instance_minors(self._paths.proc_root) if divided else {}
        return build_inventory(snapshot, host, mock=library is not None and library.mock, minors=minors)

    @property
    def session(self) -> NvmlSession:
        """The door to NVML behind the readings, for whoever changes something."""
        return self._session

    def close(self) -> None:
        """Let go of NVML; a call that hangs is left behind."""
        self._session.close()

    def _has_no_gpu(self, host: HostTopology) -> bool:
        return (self._paths.sys_root / "bus/pci/devices").is_dir() and not host.gpus
