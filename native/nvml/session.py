"""The one door of the agent to NVML: snapshots from any thread, with deadlines that are watched from outside.

A call about a GPU that does not come back costs that GPU, not the node: the GPU is reported with
``codes["handle"] == TIMEOUT`` and left out, the thread is left behind and a new one goes on with the others. The GPU is
asked again once the call did come back (at once the first time, then after a delay that doubles). So there is never
more than one thread left behind per GPU, and a bound for all of them.

A call about no GPU that does not come back (nvmlInit on a driver that hangs) cannot be worked around: the thread is
kept, callers get NvmlTimeoutError, and the next reading goes on where it came back.

A GPU that was plugged in after NVML was initialised is not known to it, nor is one that was lost and came back: NVML is
initialised anew for such ones, at first sight and then ever more rarely.

A library that was replaced on disk (a driver upgrade) is noticed before the next reading: the old one is closed and the
new one loaded, in the same process and also while a thread is stuck in the old one (``opening.path_to_load``).

While a library is open, the process holds ``/dev/nvidiactl`` and the device nodes of the GPUs it has looked at: the
kernel modules cannot be unloaded, and a GPU cannot be reset or given to another driver, until ``close`` (or until the
session has nothing open, which is so after LibraryUnavailableError).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from native.nvml.errors import NvmlError, NvmlReturn, NvmlTimeoutError
from native.nvml.healthtypes import GpuHealth, NvmlTopology
from native.nvml.healthvalues import unreachable_health
from native.nvml.opening import make_backend
from native.nvml.protocol import Nvml
from native.nvml.types import CallInProgress, NvmlSnapshot
from native.nvml.values import unreachable_gpu
from native.nvml.worker import LoadedLibrary, NvmlWorker
from native.pci import canonical_address

logger = logging.getLogger(__name__)
T = TypeVar("T")

DEADLINE = 60.0
CHANGE_DEADLINE = 60.0
"""Destroying a GPU instance takes about a second, switching MIG with a reset of the GPU tens of seconds."""
CALL_TIMEOUT = 10.0
RETRY_AFTER = 30.0
RETRY_AT_MOST = 600.0
MAX_STUCK_THREADS = 16
RENEW_AFTER = 5.0
"""A GPU is often looked at in the moment before it is usable: the second attempt must not be a minute away."""
REST_AT_MOST = 5.0
GONE = frozenset({NvmlReturn.NOT_FOUND, NvmlReturn.GPU_NOT_FOUND, NvmlReturn.GPU_IS_LOST})
"""What NVML says of a GPU that was plugged in, or came back, after it was initialised."""


class WedgedGpu(msgspec.Struct, frozen=True):
    """A GPU that is left out of snapshots."""

    address: str
    call: str
    """The call that did not come back."""
    since: float
    """When it was given up (time.monotonic)."""
    times: int
    """How often it happened without a good reading in between."""
    stuck: bool
    """Whether that call is still under way."""
    retry_at: float
    """When it may be asked again (time.monotonic), where it is not stuck."""


class _StuckError(Exception):
    """A call about a GPU is over its time."""

    def __init__(self, call: str, address: str, seconds: float) -> None:
        super().__init__(call)
        self.call = call
        self.address = address
        self.seconds = seconds


class Companion(Protocol):
    """Somebody else in this process who holds the same library open (``EventWatcher``)."""

    def rest(self, timeout: float) -> bool:
        """Let go of the library; False when that takes longer than ``timeout`` seconds."""

    def go_on(self) -> None:
        """Open it again."""


class NvmlSession:
    """See the module. Every method may be called from any thread; none blocks for longer than it was given.

    Args:
        find: gives the library's path before every reading (``lambda: find_library(root)``); raises
            LibraryUnavailableError where there is none. A path that never changes may be given as it is.
        backend: ``auto``, ``cffi`` or ``pynvml``.
        call_timeout: seconds that a single NVML call about a GPU may take. Opening a GPU that nothing holds open takes
            seconds; a healthy one answers the rest in microseconds.
        retry_after: seconds before a GPU that wedged twice is asked again; doubles each time, up to RETRY_AT_MOST.
        renew_after: seconds before NVML is initialised anew once more for GPUs that it still does not know; doubles
            each time, up to RETRY_AT_MOST.
        max_stuck_threads: threads that may be left behind at any time.
        make: gives a backend, not opened, for a path; for tests and for other backends.
    """

    def __init__(
        self,
        find: Callable[[], Path] | Path | str,
        backend: str = "auto",
        *,
        call_timeout: float = CALL_TIMEOUT,
        retry_after: float = RETRY_AFTER,
        max_stuck_threads: int = MAX_STUCK_THREADS,
        renew_after: float = RENEW_AFTER,
        make: Callable[[Path], Nvml] | None = None,
    ) -> None:
        self._find = find if callable(find) else (lambda path=Path(find): path)
        self._make = make or (lambda path: make_backend(path, backend))
        self._call_timeout = call_timeout
        self._retry_after = retry_after
        self._max_stuck = max_stuck_threads
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._worker: NvmlWorker | None = None
        self._left_behind: dict[NvmlWorker, str] = {}
        self._wedged: dict[str, WedgedGpu] = {}
        self._by_index: tuple[str, ...] = ()
        self._companions: list[Companion] = []
        self._gone: frozenset[str] = frozenset()
        self._renew_at = 0.0
        self._renew_delay = renew_after
        self._renew_after = renew_after
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def library(self) -> LoadedLibrary | None:
        """The library that is open now, if one is."""
        worker = self._worker
        return worker.loaded if worker is not None else None

    @property
    def wedged(self) -> tuple[WedgedGpu, ...]:
        """The GPUs left out at present, in the order of their addresses."""
        with self._state:
            return tuple(entry for _, entry in sorted(self._wedged.items()))

    def progress(self) -> CallInProgress | None:
        """The NVML call under way."""
        worker = self._worker
        return worker.progress() if worker is not None else None

    def accompany(self, companion: Companion) -> None:
        """Make ``companion`` rest while NVML is initialised anew: the library counts who has initialised it."""
        self._companions.append(companion)

    def snapshot(
        self, addresses: Sequence[str] | None = None, deadline: float = DEADLINE, *, mig: bool = False
    ) -> NvmlSnapshot:
        """Read the whole node.

        Args:
            addresses: PCI addresses to look GPUs up by, in the order of the answer; None enumerates by index (a GPU
                that wedges before it said its address then counts as the node's trouble).
            mig: read MIG profiles also where MIG is off; see the Protocol.
            deadline: seconds for all of it. A GPU call may take half of that at most, whatever ``call_timeout`` says.

        Raises:
            LibraryUnavailableError: no library, or no driver behind it; the next call tries again from the start.
            NvmlTimeoutError: not done in time; names the call under way. GPUs found wedged on the way stay known.
            NvmlError: another failure of NVML as a whole, or the session is closed.
            ValueError: one of ``addresses`` is no PCI address.
        """
        asked = None if addresses is None else tuple(canonical_address(text) for text in addresses)
        end = time.monotonic() + deadline
        with self._in_turn(deadline):
            while True:
                try:
                    snapshot = self._read(asked, end, deadline, mig)
                    if not self._to_be_renewed(snapshot):
                        return snapshot
                    return self._renewed(lambda: self._read(asked, end, deadline, mig), end)
                except _StuckError as stuck:
                    self._give_up(stuck)

    def health(self, addresses: Sequence[str], deadline: float = DEADLINE) -> tuple[GpuHealth, ...]:
        """Errors, load and processes of the GPUs, in the order asked for; deadlines and errors as for ``snapshot``."""
        asked = tuple(canonical_address(text) for text in addresses)
        readable, found = self._gather(asked, deadline, lambda backend, left: backend.health(left))
        read = dict(zip(readable, found, strict=True))
        return tuple(read.get(address) or unreachable_health(address, NvmlReturn.TIMEOUT) for address in asked)

    def topology(self, addresses: Sequence[str], deadline: float = DEADLINE) -> NvmlTopology:
        """NVML's topology of those GPUs that are not left out; deadlines and errors as for ``snapshot``."""
        asked = tuple(canonical_address(text) for text in addresses)
        return self._gather(asked, deadline, lambda backend, left: backend.topology(left))[1]

    def change(
        self, address: str, work: Callable[[Nvml], T], deadline: float = CHANGE_DEADLINE, *, alone: bool = False
    ) -> T:
        """Have something done to one GPU: ``change(gpu, lambda nvml: nvml.destroy_gpu_instance(gpu, 3))``.

        It is done once at most: where it is not known whether it was done, the error says so and the caller reads back.

        Args:
            address: the GPU's PCI address.
            work: what is done, in the session's thread, with calls about that GPU only.
            deadline: seconds for all of it, however they are spread over its calls.
            alone: companions let go of the library meanwhile. Switching the MIG mode wants that nobody else has the
                GPU open.

        Raises:
            NvmlTimeoutError: a call does not come back, and is named. It may still take effect; the GPU is left out of
                readings until it has come back. Also where the GPU is left out already: then nothing was done.
            LibraryUnavailableError: no library, or no driver behind it; nothing was done.
            NvmlError: a call failed.
            ValueError: that is no PCI address.
        """
        address = canonical_address(address)
        end = time.monotonic() + deadline
        with self._in_turn(deadline):
            wedged = next((entry for entry in self.wedged if entry.address == address), None)
            if wedged is not None and address in self._left_out():
                raise NvmlTimeoutError(wedged.call, address, time.monotonic() - wedged.since)
            try:
                with self._alone(end) if alone else nullcontext():
                    return self._wait(work, end, deadline, limit=None)
            except _StuckError as stuck:
                self._give_up(stuck)
                raise NvmlTimeoutError(stuck.call, stuck.address, deadline) from None

    @contextmanager
    def _in_turn(self, deadline: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=deadline):
            raise self._timed_out(self.progress(), deadline)
        try:
            yield
        finally:
            self._turn.release()

    def retry_wedged(self) -> tuple[str, ...]:
        """Ask wedged GPUs again at the next snapshot, without their delay; after a reset, for instance.

        Returns:
            The addresses that will be asked. A GPU whose call is still under way is not among them: a second thread
            would only be lost beside the first.
        """
        with self._state:
            freed = [entry for entry in self._wedged.values() if not entry.stuck]
            for entry in freed:
                self._wedged[entry.address] = msgspec.structs.replace(entry, retry_at=0.0)
            return tuple(sorted(entry.address for entry in freed))

    def close(self, timeout: float = 5.0) -> bool:
        """Shut NVML down and end the thread. False: a call is still under way, the thread ends when it comes back."""
        with self._state:
            worker = self._worker
            if worker is not None and not self._closed:
                worker.retire()
            self._closed = True
        return worker is None or worker.join(timeout)

    def _to_be_renewed(self, snapshot: NvmlSnapshot) -> bool:
        """NVML knows the GPUs that were there when it was initialised. One that the caller sees on the bus and NVML
        does not know, or takes for lost, may be known once NVML is initialised anew: at once, then ever more rarely."""
        gone = frozenset(gpu.address for gpu in snapshot.gpus if gpu.address and gpu.codes.get("handle") in GONE)
        if not gone:
            self._gone, self._renew_delay = gone, self._renew_after
            return False
        now = time.monotonic()
        if gone <= self._gone and now < self._renew_at:
            return False
        self._renew_delay = min(2 * self._renew_delay, RETRY_AT_MOST) if gone <= self._gone else self._renew_after
        self._gone, self._renew_at = gone, now + self._renew_delay
        logger.info("NVML does not know GPU %s: initialising it anew", ", ".join(sorted(gone)))
        return True

    def _renewed(self, read: Callable[[], NvmlSnapshot], end: float) -> NvmlSnapshot:
        with self._alone(end):
            with self._state:
                if self._worker is not None:
                    self._worker.expire()
            return read()

    @contextmanager
    def _alone(self, end: float) -> Iterator[None]:
        """The companions rest meanwhile; one that cannot is left as it is."""
        companions = tuple(self._companions)
        try:
            for companion in companions:
                if not companion.rest(max(0.0, min(REST_AT_MOST, end - time.monotonic()))):
                    logger.warning("NVML stays initialised: events are still waited for in a call that does not end")
            yield
        finally:
            for companion in companions:
                companion.go_on()

    def _gather(
        self, asked: tuple[str, ...], deadline: float, read: Callable[[Nvml, tuple[str, ...]], T]
    ) -> tuple[tuple[str, ...], T]:
        """What ``read`` gives for the GPUs that are not left out, and which these were."""
        end = time.monotonic() + deadline
        limit = min(self._call_timeout, deadline / 2)
        with self._in_turn(deadline):
            while True:
                left_out = self._left_out()
                readable = tuple(address for address in asked if address not in left_out)
                try:
                    found = self._wait(functools.partial(_reading, read, readable), end, deadline, limit)
                except _StuckError as stuck:
                    self._give_up(stuck)
                    continue
                self._recovered(readable)
                return readable, found

    def _read(self, asked: tuple[str, ...] | None, end: float, deadline: float, mig: bool) -> NvmlSnapshot:
        limit = min(self._call_timeout, deadline / 2)
        left_out = self._left_out()
        if asked is None and left_out:
            asked = self._by_index or self._addresses_by_index(end, deadline, limit)
        if asked is None:
            snapshot = self._wait(lambda backend: backend.snapshot(None, mig=mig), end, deadline, limit)
            self._by_index = tuple(gpu.address for gpu in snapshot.gpus if gpu.address is not None)
            self._recovered(self._by_index)
            return snapshot
        readable = tuple(address for address in asked if address not in left_out)
        snapshot = self._wait(lambda backend: backend.snapshot(readable, mig=mig), end, deadline, limit)
        self._recovered(readable)
        read = iter(snapshot.gpus)
        gpus = tuple(
            unreachable_gpu(address, None, NvmlReturn.TIMEOUT) if address in left_out else next(read)
            for address in asked
        )
        return msgspec.structs.replace(snapshot, gpus=gpus)

    def _addresses_by_index(self, end: float, deadline: float, limit: float) -> tuple[str, ...]:
        found = self._wait(lambda backend: backend.addresses(), end, deadline, limit)
        return tuple(address for address in found if address is not None)

    def _wait(self, work: Callable[[Nvml], T], end: float, deadline: float, limit: float | None) -> T:
        """Have it done, and watch: a call about a GPU that stays the same for ``limit`` seconds is stuck.

        Without a limit it is a change: not done again when NVML was not initialised, and stuck at its deadline.
        """
        worker, future = self._submit(work, again=limit is not None)
        try:
            return self._watch(worker, future, end, deadline, limit)
        finally:
            # No effect on a finished one; where it waits behind an older piece of work, nobody wants it any more.
            future.cancel()

    def _watch(self, worker: NvmlWorker, future: Future[T], end: float, deadline: float, limit: float | None) -> T:
        seen: CallInProgress | None = None
        since = time.monotonic()
        while True:
            step = max(0.0, min((limit or deadline) / 4, end - time.monotonic()))
            if wait((future,), timeout=step).done:
                return future.result()
            now = time.monotonic()
            call = worker.progress()
            if call is None or call != seen:
                seen, since = call, now
            elif call.address is not None and (now >= end if limit is None else now - since >= limit):
                raise _StuckError(call.call, call.address, now - since)
            if now >= end:
                raise self._timed_out(call, deadline)

    def _timed_out(self, call: CallInProgress | None, seconds: float) -> NvmlTimeoutError:
        if call is None:
            return NvmlTimeoutError("finding and loading the NVML library", None, seconds)
        return NvmlTimeoutError(call.call, call.address, seconds)

    def _submit(self, work: Callable[[Nvml], T], *, again: bool) -> tuple[NvmlWorker, Future[T]]:
        with self._state:
            if self._closed:
                raise NvmlError("use of a closed session", NvmlReturn.UNINITIALIZED)
            if self._worker is None:
                self._worker = NvmlWorker(self._find, self._make, self._came_back)
            return self._worker, self._worker.submit(work, again=again)

    def _left_out(self) -> frozenset[str]:
        now = time.monotonic()
        with self._state:
            return frozenset(entry.address for entry in self._wedged.values() if entry.stuck or now < entry.retry_at)

    def _recovered(self, addresses: Sequence[str]) -> None:
        with self._state:
            recovered = [self._wedged.pop(address) for address in addresses if address in self._wedged]
        for entry in recovered:
            logger.info("GPU %s answers again after %s had not come back", entry.address, entry.call)

    def _give_up(self, stuck: _StuckError) -> None:
        """Leave the thread behind with its GPU, and let the next reading start another."""
        with self._state:
            worker = self._worker
            if worker is None or len(self._left_behind) >= self._max_stuck:
                logger.error(
                    "GPU %s: %s does not come back, and %d threads are left behind already: no more are started until "
                    "one comes back; restart the agent after mending the GPUs",
                    stuck.address,
                    stuck.call,
                    len(self._left_behind),
                )
                raise NvmlTimeoutError(stuck.call, stuck.address, stuck.seconds)
            before = self._wedged.get(stuck.address)
            times = before.times + 1 if before is not None else 1
            self._wedged[stuck.address] = WedgedGpu(stuck.address, stuck.call, time.monotonic(), times, True, 0.0)
            self._left_behind[worker] = stuck.address
            self._worker = None
        logger.warning(
            "GPU %s: %s did not come back within %.1f s; the GPU is left out until it does (dmesg may say why; "
            "nvidia-smi --gpu-reset or a reboot mends most causes)",
            stuck.address,
            stuck.call,
            stuck.seconds,
        )
        worker.retire()

    def _came_back(self, worker: NvmlWorker) -> None:
        """In the worker's thread, at its end: its GPU may be asked again, at once or after a delay."""
        with self._state:
            address = self._left_behind.pop(worker, None)
            entry = self._wedged.get(address) if address is not None else None
            if entry is None:
                return
            delay = 0.0 if entry.times == 1 else min(self._retry_after * 2 ** (entry.times - 2), RETRY_AT_MOST)
            self._wedged[entry.address] = msgspec.structs.replace(entry, stuck=False, retry_at=time.monotonic() + delay)
        logger.info("GPU %s: %s came back; it is asked again in %.0f s", entry.address, entry.call, delay)


def _reading(read: Callable[[Nvml, tuple[str, ...]], T], readable: tuple[str, ...], backend: Nvml) -> T:
    return read(backend, readable)
