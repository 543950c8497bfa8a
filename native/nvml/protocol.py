"""The one door to NVML. Two backends implement it; the same tests run over both and their snapshots must be equal.

No backend is safe to call from two threads at once, ``progress`` and ``stop_waiting`` apart: the thread is that of
``native.nvml.session``, or of ``native.nvml.watching`` for events.
Strings are cut at the first NUL, decoded with replacement and stripped of control characters before they get here.
``NVMLError`` of pynvml never escapes: errors are those of ``native.nvml.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from native.nvml.eventtypes import NvmlEvent
from native.nvml.healthtypes import GpuHealth, NvmlTopology
from native.nvml.migtypes import ComputeInstance, ComputeInstanceProfile, GpuInstance, Placement
from native.nvml.types import CallInProgress, NvmlSnapshot

WAIT_STEP = 0.5
"""Seconds after which a wait for events looks whether it was stopped.

NVML has no call that ends a wait, and a set must not be freed under one. So this is how long a Prepare that switches
MIG mode, or hands a GPU to a virtual machine, waits for the library, and how long the agent's end takes; a thread that
is left in the wait at the end would be there while the process runs the library's destructors. A look in between costs
some 50 microseconds, in C and without the interpreter (``cffi``): longer steps would save less than they cost.
"""


@runtime_checkable
class Nvml(Protocol):
    """An NVML library, loaded from an explicit path.

    Constructing a backend loads nothing. Every method but ``name``, ``library_path``, ``progress`` and ``close``
    raises ``LibraryUnavailableError`` when the library or its driver is not there, ``NvmlError`` for other failures.
    """

    @property
    def name(self) -> str:
        """``cffi`` or ``pynvml``."""

    @property
    def library_path(self) -> str:
        """The file it loads (resolved, absolute)."""

    def open(self) -> None:
        """Load the library and initialise it with NVML_INIT_FLAG_NO_GPUS (nvml.h: success with no GPU attached)."""

    def close(self) -> None:
        """Shut NVML down and drop every handle. Safe to repeat, and after a failed ``open``."""

    def is_mock(self) -> bool:
        """Whether the loaded library carries the mock's marker symbol (``gpudra_mock_marker``)."""

    def device_count(self) -> int:
        """nvmlDeviceGetCount_v2."""

    def addresses(self) -> tuple[str | None, ...]:
        """Canonical PCI address per index; None for an index whose GPU does not answer."""

    def snapshot(self, addresses: Sequence[str] | None = None, *, mig: bool = False) -> NvmlSnapshot:
        """Read the whole node, GPU by GPU, never failing for one of them.

        Args:
            addresses: canonical PCI addresses to look the GPUs up by (nvmlDeviceGetHandleByPciBusId_v2 touches only
                its target); None enumerates by index, for machines without a PCI tree in sysfs.
            mig: read MIG profiles also of GPUs that are capable of MIG but have it off (drivers answer that on
                Hopper and later, NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE). Where it is on, MIG is read
                always.
        """

    def compute_instance_profiles(self, address: str, gpu_instance: int) -> tuple[ComputeInstanceProfile, ...]:
        """What compute instances a GPU instance can hold (nvmlGpuInstanceGetComputeInstanceProfileInfoV)."""

    def remaining_capacity(self, address: str, profile_id: int) -> int:
        """How many more instances of a profile fit now (nvmlDeviceGetGpuInstanceRemainingCapacity). Needs root."""

    def set_mig_mode(self, address: str, enabled: bool) -> tuple[bool, bool]:
        """Switch MIG on or off (nvmlDeviceSetMigMode). May reset the GPU and change its minor number.

        Returns:
            (current, pending), read again afterwards.

        Raises:
            MigActivationError: the call succeeded and the mode still is not active: IN_USE (19) while a client has
                the GPU open, RESET_REQUIRED (16) where only a reset or a reboot helps.
        """

    def create_gpu_instance(self, address: str, profile_id: int, placement: Placement | None = None) -> GpuInstance:
        """Make a GPU instance, at ``placement`` or where NVML chooses.

        INSUFFICIENT_RESOURCES (23) also means that the placement is taken. An instance that was made but cannot be
        read is destroyed again.
        """

    def create_compute_instance(self, address: str, gpu_instance: int, profile_id: int) -> ComputeInstance:
        """Make a compute instance; its UUID is that of the MIG device. Undone when it cannot be read."""

    def destroy_compute_instance(self, address: str, gpu_instance: int, compute_instance: int) -> None:
        """nvmlComputeInstanceDestroy. NOT_FOUND (6): there is none; IN_USE (19): a process is on it."""

    def destroy_gpu_instance(self, address: str, gpu_instance: int) -> None:
        """nvmlGpuInstanceDestroy. IN_USE (19) while compute instances are in it."""

    def set_compute_mode(self, address: str, mode: int) -> None:
        """nvmlDeviceSetComputeMode: 0 default, 2 prohibited, 3 exclusive process. Lost when the driver is reloaded."""

    def set_persistence_mode(self, address: str, enabled: bool) -> None:
        """nvmlDeviceSetPersistenceMode."""

    def health(self, addresses: Sequence[str]) -> tuple[GpuHealth, ...]:
        """Errors, load and processes of each GPU, never failing for one of them. In the order of ``addresses``."""

    def topology(self, addresses: Sequence[str]) -> NvmlTopology:
        """NVML's account of how the GPUs lie to each other and to the host's CPUs, never failing for one of them."""

    def open_events(self) -> None:
        """A new, empty event set (nvmlEventSetCreate) in place of the one before."""

    def register_events(self, address: str, mask: int) -> int:
        """Have events of a GPU reported; of the whole GPU, because MIG devices cannot be registered.

        Returns:
            The kinds that are reported now: those of ``mask`` that the GPU supports, 0 where it supports none.
        """

    def wait_event(self, seconds: float) -> NvmlEvent | None:
        """Wait for an event; None when the time is over, or after ``stop_waiting``.

        Raises:
            NvmlError: with GPU_IS_LOST (15) NVML does not say which GPU; all further waits may fail the same way until
                a new set is opened without it.
        """

    def stop_waiting(self) -> None:
        """End the wait under way, or the next one where there is none. From any thread; the wait may last
        ``WAIT_STEP`` longer."""

    def close_events(self) -> None:
        """Free the event set. Safe to repeat. In the thread that waits, never beside it."""

    def progress(self) -> CallInProgress | None:
        """The NVML call under way, for a watcher in another thread; None between calls."""
