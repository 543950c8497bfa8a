"""What is known of the devices' health, and for how long: reports of checks go in, lists for the kubelet come out.

The kubelet keeps a device's health for ``timeout_seconds`` after each message that names it. So a message may only be
sent because a check has really ended; a program that repeated its last list by itself would keep a device Healthy whose
checker hangs. A word that has become too old is turned into Unknown here as well, because a list names all devices and
would otherwise renew what a silent check once said. Source: KEP-4680, k8s.io/kubelet/pkg/apis/dra-health/v1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from kubeletplugin.api import DeviceHealth, HealthStatus, NullObserver, Observer

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1024
COALESCE_SECONDS = 0.2
"""Changes that follow a message sooner than this travel together in the next one."""

Devices: TypeAlias = tuple[DeviceHealth, ...]
_Key: TypeAlias = tuple[str, str]
_Silent: TypeAlias = tuple[str, int, float]

_SEVERITY = (HealthStatus.HEALTHY, HealthStatus.UNKNOWN, HealthStatus.UNHEALTHY)


class _Source(msgspec.Struct):
    """The last report of one check."""

    devices: dict[_Key, DeviceHealth]
    at: float
    told_silent: bool = False


class HealthBoard:
    """The health of all devices of one driver. Safe for threads.

    Args:
        observer: told when a check falls silent.
        clock: monotonic seconds.
        coalesce: seconds between two messages of one stream, at least.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        coalesce: float = COALESCE_SECONDS,
    ) -> None:
        self._observer: Observer = observer if observer is not None else NullObserver()
        self._clock = clock
        self._coalesce = coalesce
        self._changed = threading.Condition()
        self._sources: dict[str, _Source] = {}
        self._reports = 0

    def report(self, devices: Iterable[DeviceHealth], *, source: str = "") -> None:
        """A check has ended: all that ``source`` knows now. What it said before and does not repeat is forgotten.

        Call it after every round of the check, whether anything changed or not: this is the heartbeat. A driver with
        several checks reports under several names, so that one which hangs takes only its own devices to Unknown. A
        device that two of them report is as ill as the worse one says.

        Raises:
            ValueError: a timeout is below one second, or a device is named twice.
        """
        words: dict[_Key, DeviceHealth] = {}
        for device in devices:
            key = device.pool, device.device
            if device.timeout_seconds < 1:
                raise ValueError(f"health of {device.device}: timeout_seconds is {device.timeout_seconds}, below 1")
            if key in words:
                raise ValueError(f"health of {device.device} in pool {device.pool} is reported twice")
            words[key] = msgspec.structs.replace(device, message=cut_message(device.message))
        with self._changed:
            self._sources[source] = _Source(words, self._clock())
            self._reports += 1
            self._changed.notify_all()

    def retire(self, source: str) -> None:
        """The check called ``source`` is over for good: its devices are no longer reported by it."""
        with self._changed:
            if self._sources.pop(source, None) is not None:
                self._reports += 1
                self._changed.notify_all()

    def current(self) -> Devices:
        """All devices by pool and name, as of now."""
        with self._changed:
            devices, silent = self._current(self._clock())
        self._tell(silent)
        return devices

    def stream(self) -> HealthStream:
        """What one kubelet is to be told, from now on."""
        return HealthStream(self)

    def close_stream(self, stream: HealthStream) -> None:
        """Let ``next_for`` return ``None``."""
        with self._changed:
            stream.closed = True
            self._changed.notify_all()

    def next_for(self, stream: HealthStream) -> Devices | None:
        """Waits until the stream is to be told something; see ``HealthStream.next``."""
        devices, silent = None, list[_Silent]()
        with self._changed:
            while not stream.closed:
                now = self._clock()
                devices, fallen = self._current(now)
                silent += fallen
                due = self._due(stream, now, devices)
                if due is not None and due <= now:
                    stream.sent, stream.sent_at, stream.seen = devices, now, self._reports
                    break
                devices = None
                wakes = [at for at in (due, self._next_stale(now)) if at is not None]
                self._changed.wait(max(0.0, min(wakes) - now) if wakes else None)
        self._tell(silent)
        return None if stream.closed else devices

    def _due(self, stream: HealthStream, now: float, devices: Devices) -> float | None:
        """When ``devices`` are to be sent; None: not before something happens."""
        if stream.sent is None:
            return now if self._reports else None
        if [_content(one) for one in devices] != [_content(one) for one in stream.sent]:
            return stream.sent_at + self._coalesce
        if self._reports != stream.seen:
            return stream.sent_at + max(self._coalesce, self._heartbeat())
        return None

    def _current(self, now: float) -> tuple[Devices, list[_Silent]]:
        """The list, and the checks that have fallen silent since the last look."""
        found: dict[_Key, DeviceHealth] = {}
        silent: list[_Silent] = []
        for name, source in self._sources.items():
            old = {key: one for key, one in source.devices.items() if now - source.at >= one.timeout_seconds}
            for key, device in source.devices.items():
                word = _outdated(device, name) if key in old else device
                known = found.get(key)
                if known is None or _SEVERITY.index(word.status) > _SEVERITY.index(known.status):
                    found[key] = word
            if old and not source.told_silent:
                source.told_silent = True
                silent.append((name, len(old), now - source.at))
        return tuple(found[key] for key in sorted(found)), silent

    def _tell(self, silent: list[_Silent]) -> None:
        for name, devices, seconds in silent:
            log.warning(
                "health check %s has been silent for %.0f s, devices: %d", name or "(unnamed)", seconds, devices
            )
            self._observer.health_stale(name, devices=devices, seconds=seconds)

    def _next_stale(self, now: float) -> float | None:
        """When the next word becomes too old, of those that are not yet."""
        times = (
            source.at + device.timeout_seconds
            for source in self._sources.values()
            for device in source.devices.values()
        )
        return min((at for at in times if at > now), default=None)

    def _heartbeat(self) -> float:
        """Seconds after which a report without news is passed on: a third of the shortest timeout."""
        timeouts = [device.timeout_seconds for source in self._sources.values() for device in source.devices.values()]
        return min(timeouts, default=30) / 3


class HealthStream(msgspec.Struct, eq=False):
    """One kubelet's view: ``next`` gives whole lists, each as new as possible, until ``close``."""

    board: HealthBoard
    closed: bool = False
    sent: Devices | None = None
    sent_at: float = 0.0
    seen: int = 0
    """How many reports there had been when the last list was sent."""

    def close(self) -> None:
        """Ends the stream; ``next`` returns at once. From any thread, any number of times."""
        self.board.close_stream(self)

    def next(self) -> Devices | None:
        """Waits for something to say: the first list, a change, or a check that ended after a while without change.

        ``None`` when the stream is closed. Before the first report there is nothing to say.
        """
        return self.board.next_for(self)


def _content(device: DeviceHealth) -> DeviceHealth:
    """Without the time of the check, which is different each time and no news."""
    return msgspec.structs.replace(device, checked_at=0.0)


def _outdated(device: DeviceHealth, source: str) -> DeviceHealth:
    name = f"health check {source}" if source else "the health check"
    message = f"{name} has not answered for more than {device.timeout_seconds} s; its last word was {device.status}"
    return msgspec.structs.replace(device, status=HealthStatus.UNKNOWN, message=cut_message(message))


def cut_message(text: str) -> str:
    """At most 1024 bytes of valid UTF-8, with dots at the end where something is missing."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return data[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "..."
