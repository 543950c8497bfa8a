"""The end of a process that serves, as whoever ends it asks for it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

_kept: list[socket.socket] = []
"""Never closed: of a second signal the system would write into whatever has the number by then."""


def caught() -> Callable[[], object]:
    """Catch SIGTERM and SIGINT from now on; what is given back waits for one, and misses none that came before.

    The handler of a signal that comes right before a wait for a lock would run behind that wait, so the system itself
    writes a byte for it (``signal.set_wakeup_fd``). For the main thread, once in a process.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)

    _kept.extend((reader, writer))
    return lambda: reader.recv(1)


def event() -> threading.Event:
    """The same as an event that is set by the first of them."""
    stop, wait = threading.Event(), caught()

    def follow() -> None:
        wait()
        stop.set()

    threading.Thread(target=follow, name="signals", daemon=True).start()
    return stop
