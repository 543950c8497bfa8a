"""One thread that owns one NVML backend: opens it when there is work, reopens it when its file was replaced.

Everything that can take long (looking for the file, dlopen, every NVML call) happens in this thread. Work that raises
gives its error to whoever waits; the thread goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.protocol import Nvml
from native.nvml.types import CallInProgress

logger = logging.getLogger(__name__)
T = TypeVar("T")


class LoadedLibrary(msgspec.Struct, frozen=True):
    """The library that is open now."""

    backend: str
    """``cffi`` or ``pynvml``."""
    path: str
    mock: bool


class NvmlWorker:
    """The thread and its backend.

    Args:
        find: gives the library's path; raises LibraryUnavailableError where there is none. Asked before every piece of
            work, so that an upgraded driver is noticed.
        make: gives a backend for a path, not opened.
        on_exit: called in the thread when it ends.
    """

    def __init__(
        self, find: Callable[[], Path], make: Callable[[Path], Nvml], on_exit: Callable[[NvmlWorker], None]
    ) -> None:
        self._find = find
        self._make = make
        self._on_exit = on_exit
        self._backend: Nvml | None = None
        self._file: tuple[object, ...] | None = None
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[Nvml], Any], bool] | None] = SimpleQueue()
        self._loaded: LoadedLibrary | None = None
        self._expired = False
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    @property
    def loaded(self) -> LoadedLibrary | None:
        """What is open now."""
        return self._loaded

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[Nvml], T], *, again: bool = True) -> Future[T]:
        """Have ``work`` done with the open backend, after whatever was submitted before.

        Args:
            work: what is done.
            again: once more, with the library opened anew, where NVML turned out not to be initialised.
        """
        future: Future[T] = Future()
        self._jobs.put((future, work, again))
        return future

    def expire(self) -> None:
        """Have NVML shut down and initialised anew before the next piece of work."""
        self._expired = True

    def progress(self) -> CallInProgress | None:
        """The NVML call under way."""
        backend = self._backend
        return backend.progress() if backend is not None else None

    def retire(self) -> None:
        """Let the thread close its backend and end, once what it does now comes back. Does not wait."""
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; False when it did not come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                future, work, again = job
                if future.set_running_or_notify_cancel():
                    self._perform(future, work, again)
                # Nothing of a finished job may stay referenced while the thread waits for the next one.
                del job, future, work
            self._close()
        finally:
            self._on_exit(self)

    def _perform(self, future: Future[T], work: Callable[[Nvml], T], again: bool) -> None:
        try:
            result = self._attempt(work, again)
        except BaseException as error:  # noqa: BLE001 - it is the waiting caller's, whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)

    def _attempt(self, work: Callable[[Nvml], T], again: bool) -> T:
        try:
            return work(self._opened())
        except LibraryUnavailableError:
            self._close()
            raise
        except NvmlError as error:
            if error.code != NvmlReturn.UNINITIALIZED:
                raise
            logger.warning("NVML lost its initialisation (%s): opening it again", error)
            self._close()
            if not again:
                raise
        return work(self._opened())

    def _opened(self) -> Nvml:
        path = self._find()
        file = file_identity(path)
        if self._backend is not None and file != self._file:
            logger.info("the NVML library %s was replaced: opening %s", self._backend.library_path, path)
            self._close()
        if self._expired:
            self._expired = False
            self._close()
        if self._backend is None:
            self._file = file
            return self._open(path)
        return self._backend

    def _open(self, path: Path) -> Nvml:
        # Set before it is open: a watcher must see which call of the opening does not come back.
        self._backend = backend = self._make(path)
        try:
            backend.open()
            self._loaded = LoadedLibrary(backend.name, backend.library_path, backend.is_mock())
        except BaseException:
            self._close()
            raise
        return backend

    def _close(self) -> None:
        backend = self._backend
        self._loaded = None
        if backend is not None:
            backend.close()
            self._backend = None


def file_identity(path: Path) -> tuple[object, ...]:
    """What changes when the file is replaced: the real path, device, inode, size and time of change.

    Raises:
        LibraryUnavailableError: it is not there (any more).
    """
    try:
        status = path.stat()
        return str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    except OSError as error:
        message = f"the NVML library {path} cannot be looked at: {error.strerror}"
        raise LibraryUnavailableError("stat", NvmlReturn.LIBRARY_NOT_FOUND, message) from error
