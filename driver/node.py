"""Reads this machine into a ``NodeInventory``: sysfs first, then NVML for the GPUs that the bus shows."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from driver import statefile
from driver.discovery import DriverUnavailableError
from driver.inventory import build_inventory
from driver.inventory.states import NVIDIA_DRIVER
from driver.model import NodeInventory
from native.capabilities import instance_minors
from native.driverroot import find_library
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.session import NvmlSession
from native.nvml.types import FabricInfo, GpuSnapshot, NvLink, NvmlSnapshot
from native.sysfs import HostTopology, read_host

log = logging.getLogger(__name__)

LINKS = "links.json"
_MAX_BYTES = 4 * 1024 * 1024


class NodePaths(msgspec.Struct, frozen=True):
    """Where the machine is, as this process sees it."""

    driver_root: Path = Path("/")
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    library: Path | None = None
    """The libnvidia-ml.so.1 to load; None: searched below the driver root before every reading."""


class _Links(msgspec.Struct, frozen=True):
    """What a GPU's NVLinks were when they could be seen."""

    uuid: str | None
    nvlinks: tuple[NvLink, ...] | None
    fabric: FabricInfo | None


class HiddenLinks:
    """The NVLinks of GPUs in MIG mode, which NVML does not show while the mode is on.

    A driver that switches the mode for each claim would else tell schedulers again and again that a GPU has lost its
    links, and that it has them back only at the next reading.

    Args:
        path: a file in which they outlive this process, which may be started anew while the mode is on. One that cannot
            be used costs just that. None: there is none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file = statefile.HelpfulFile(path, "A restart would not know NVLinks") if path is not None else None
        self._seen: dict[str, _Links] | None = None
        self._saved: dict[str, _Links] = {}

    def put_back(self, snapshot: NvmlSnapshot) -> NvmlSnapshot:
        """The reading with the links that each GPU had when its mode was off; of GPUs seen with it off only."""
        if self._seen is None:
            self._seen = self._load()
            self._saved = dict(self._seen)
        gpus = []
        for gpu in snapshot.gpus:
            before = self._seen.get(gpu.address) if gpu.address is not None else None
            if _is_whole(gpu):
                if gpu.address is not None and gpu.uuid is not None and not _refused(gpu, "nvlinks", "fabric"):
                    self._seen[gpu.address] = _Links(gpu.uuid, gpu.nvlinks, gpu.fabric)
            elif before is not None and before.uuid == gpu.uuid:
                # The same GPU.
                gpu = msgspec.structs.replace(gpu, nvlinks=before.nvlinks, fabric=before.fabric)  # noqa: PLW2901
            gpus.append(gpu)
        if self._file is not None and self._seen != self._saved and self._file.write(msgspec.json.encode(self._seen)):
            self._saved = dict(self._seen)
        return msgspec.structs.replace(snapshot, gpus=tuple(gpus))

    def _load(self) -> dict[str, _Links]:
        if self._path is None:
            return {}
        try:
            return msgspec.json.decode(statefile.read(self._path, _MAX_BYTES), type=dict[str, _Links])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be used: %s; GPUs in MIG mode are shown without their NVLinks", self._path, error)
            return {}


def _is_whole(gpu: GpuSnapshot) -> bool:
    """Whether the mode is off, or there is none; one that NVML does not tell may be on."""
    return not _refused(gpu, "mig_mode") and (gpu.mig_mode is None or not gpu.mig_mode[0])


def _refused(gpu: GpuSnapshot, *fields: str) -> bool:
    """Whether NVML did not tell one of them, of which it may know."""
    codes = [code for field in fields if (code := gpu.codes.get(field)) is not None]
    return any(code not in (NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND) for code in codes)


class NodeReader:
    """Gives whole readings of one machine, from any thread, each within its deadline.

    Args:
        paths: where the machine is.
        backend: ``auto``, ``cffi`` or ``pynvml``.
        deadline: seconds for one reading of NVML.
        mig: read what boards can be divided into also where MIG mode is off (drivers tell that since Hopper).
        state_dir: the agent's own folder; None: nothing of one reading outlives this process.
    """

    def __init__(
        self,
        paths: NodePaths,
        *,
        backend: str = "auto",
        deadline: float = 30.0,
        mig: bool = False,
        state_dir: Path | None = None,
    ) -> None:
        self._paths = paths
        self._mig = mig
        self._links = HiddenLinks(state_dir / LINKS if state_dir is not None else None)
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
