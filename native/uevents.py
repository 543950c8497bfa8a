"""Kernel uevents of the PCI bus as one debounced callback: something changed, look again.

``source="kernel"`` on purpose: udev's own messages are sent by udevd from the host's network namespace and do not
reach a pod, and without /run/udev/control libudev disables that source silently. The kernel's messages reach every
network namespace that the initial user namespace owns. They come before the device is usable, hence the debounce;
they may be lost, hence the caller's periodic rescan stays the truth and this module only makes it prompt.

Whoever reads another tree than the kernel's (a mock node) is told of that tree's changes instead: ``native.treewatch``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from native.treewatch import TreeSource, is_kernel_tree

_LOG = logging.getLogger(__name__)
_ACTIONS = frozenset({"add", "remove", "bind", "unbind"})


class EventSource(Protocol):
    """Where events come from: a file descriptor to wait on, and the actions that have arrived."""

    def fileno(self) -> int:
        """Readable when an event has arrived."""

    def take(self) -> list[str]:
        """The actions (``add``, ``bind`` ...) that are waiting; never blocks.

        Raises:
            OSError: the source is broken (ENOBUFS: events were lost).
        """

    def close(self) -> None:
        """Give the descriptor back."""


class SourceUnavailableError(Exception):
    """There is no source of uevents here; the text says why and what the consequence is."""


class UeventWatcher:
    """Calls ``on_change`` once things have been quiet for ``settle_seconds`` after a change on the PCI bus.

    A stream of events that does not end is cut after ``max_delay_seconds``. The callback runs on the watcher's own
    thread; an exception in it is logged and the watch goes on. ``sys_root`` is the sysfs that the caller reads.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        *,
        settle_seconds: float = 1.0,
        max_delay_seconds: float = 10.0,
        sys_root: Path = Path("/sys"),
        open_source: Callable[[], EventSource] | None = None,
    ) -> None:
        self._on_change = on_change
        self._settle = settle_seconds
        self._max_delay = max_delay_seconds
        self._open_source = open_source or functools.partial(open_source_of, sys_root)
        self._thread: threading.Thread | None = None
        self._wake_read = -1
        self._wake_write = -1

    def start(self) -> bool:
        """Begin to watch. False, with a log line, where this machine offers no uevents: the rescan has to do then.

        Raises:
            RuntimeError: already started.
        """
        if self._thread is not None:
            raise RuntimeError("the uevent watcher is already started")
        try:
            source = self._open_source()
        except SourceUnavailableError as error:
            _LOG.warning("no PCI uevents: %s; changes are seen at the next periodic rescan only", error)
            return False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, args=(source,), name="uevents", daemon=True)
        self._thread.start()
        return True

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread. Safe to repeat, and without a start. A change that has not settled yet is dropped.

        Raises:
            TimeoutError: the callback did not come back within ``timeout`` seconds.
        """
        thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it wakes the thread as it is
            os.write(self._wake_write, b"x")
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError(f"the uevent thread did not end within {timeout:g} s: its callback is still running")
        os.close(self._wake_write)
        os.close(self._wake_read)
        self._thread = None

    def _run(self, source: EventSource) -> None:
        first: float | None = None
        last = 0.0
        poller = select.poll()
        poller.register(source.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        try:
            while True:
                timeout = None if first is None else self._due(first, last) - time.monotonic()
                ready = poller.poll(None if timeout is None else max(timeout, 0) * 1000)
                if any(descriptor == self._wake_read for descriptor, _ in ready):
                    return
                if ready and self._changed(source):
                    last = time.monotonic()
                    first = last if first is None else first
                if first is not None and time.monotonic() >= self._due(first, last):
                    first = None
                    self._call()
        except OSError:
            _LOG.exception("the PCI uevent source broke; changes are seen at the next periodic rescan only")
        finally:
            source.close()

    def _due(self, first: float, last: float) -> float:
        return min(last + self._settle, first + self._max_delay)

    def _changed(self, source: EventSource) -> bool:
        try:
            return any(action in _ACTIONS for action in source.take())
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            _LOG.warning("PCI uevents were lost (the socket's buffer was full); rescanning")
            return True

    def _call(self) -> None:
        try:
            self._on_change()
        except Exception:  # noqa: BLE001  the callback is foreign; its failure must not end the watch
            _LOG.exception("the rescan after a PCI uevent failed; the periodic rescan tries again")


def open_source_of(sys_root: Path) -> EventSource:
    """What tells of changes of the PCI bus in that sysfs: the kernel, or the tree itself where no kernel is behind it.

    Raises:
        SourceUnavailableError: there is neither; the text says why.
    """
    if is_kernel_tree(sys_root):
        return open_kernel_source()
    try:
        return TreeSource(sys_root)
    except OSError as error:
        raise SourceUnavailableError(f"the tree at {sys_root} cannot be watched ({error})") from error


def open_kernel_source() -> EventSource:
    """The kernel's uevents of subsystem ``pci``, through pyudev and libudev.

    Raises:
        SourceUnavailableError: pyudev or libudev is not installed, or the netlink socket is refused.
    """
    try:
        import pyudev
    except ImportError as error:  # also where libudev.so.1 is missing
        raise SourceUnavailableError(f"pyudev cannot be used ({error}); install pyudev and libudev1") from error
    try:
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.filter_by(subsystem="pci")
        monitor.start()
    except (OSError, ValueError) as error:
        raise SourceUnavailableError(f"the kernel's uevent socket is refused ({error})") from error
    return _PyudevSource(monitor)


class _Device(Protocol):
    @property
    def action(self) -> str | None: ...


class _Monitor(Protocol):
    def fileno(self) -> int: ...

    def poll(self, timeout: float | None = None) -> _Device | None: ...


class _PyudevSource:
    def __init__(self, monitor: _Monitor) -> None:
        self._monitor: _Monitor | None = monitor

    def fileno(self) -> int:
        return self._require().fileno()

    def take(self) -> list[str]:
        actions = []
        while (device := self._require().poll(timeout=0)) is not None:
            actions.append(device.action or "")
        return actions

    def close(self) -> None:
        self._monitor = None  # libudev closes the socket with the last reference

    def _require(self) -> _Monitor:
        if self._monitor is None:
            raise OSError(errno.EBADF, "the uevent source is closed")
        return self._monitor
