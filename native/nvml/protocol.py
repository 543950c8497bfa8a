"""The one door to NVML. Two backends implement it; the same tests run over both and their snapshots must be equal.

No backend is safe to call from two threads at once, ``progress`` apart: ``native.nvml.session`` owns the thread.
Strings are cut at the first NUL, decoded with replacement and stripped of control characters before they get here.
``NVMLError`` of pynvml never escapes: errors are those of ``native.nvml.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from native.nvml.types import CallInProgress, NvmlSnapshot


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

    def snapshot(self, addresses: Sequence[str] | None = None) -> NvmlSnapshot:
        """Read the whole node, GPU by GPU, never failing for one of them.

        Args:
            addresses: canonical PCI addresses to look the GPUs up by (nvmlDeviceGetHandleByPciBusId_v2 touches only
                its target); None enumerates by index, for machines without a PCI tree in sysfs.
        """

    def progress(self) -> CallInProgress | None:
        """The NVML call under way, for a watcher in another thread; None between calls."""
