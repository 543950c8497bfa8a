"""What GPUs were set to before claims changed it: a file of its own, so that no loss of a claim's record loses it.

An entry is on the disk before the change is made, and goes when the setting is back, or when there is nothing to set
back any more. Compute modes and time slices are kept in the driver's memory: of an earlier boot none stands.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from driver.prepare import files
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.sharing import DEBTS_FILE
from native.smi import ComputeMode

log = logging.getLogger(__name__)

_MAX_BYTES: Final = 1024 * 1024


class Setting(enum.StrEnum):
    """What is set for a whole GPU."""

    COMPUTE_MODE = "computeMode"
    TIME_SLICE = "timeSlice"

    @property
    def shown(self) -> str:
        """In words."""
        return {Setting.COMPUTE_MODE: "compute mode", Setting.TIME_SLICE: "time slice"}[self]


VALUES: Final[Mapping[Setting, frozenset[str]]] = {
    Setting.COMPUTE_MODE: frozenset(ComputeMode),
    Setting.TIME_SLICE: frozenset("0123"),
}
"""What they can be."""


class Debt(msgspec.Struct, frozen=True):
    """One setting of one GPU that is to be set back when no claim needs it any more."""

    uuid: str
    address: str
    setting: Setting
    former: str
    """What it was: the name of a compute mode, the number of a time slice."""
    given: str
    """What it was changed to. Where it is another one by now, somebody else has changed it, and nothing is owed."""

    @property
    def key(self) -> tuple[str, Setting]:
        """There is one for each setting of a GPU."""
        return self.uuid, self.setting


class Debts:
    """The file. Safe to use from several threads; of several processes one at a time (``Session.open``).

    Args:
        path: of the file.
        boot_id: of the running system; None: unknown.
    """

    def __init__(self, path: Path, boot_id: Callable[[], str | None]) -> None:
        self.path = path
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, Setting], Debt] = {}
        self._strange: list[object] = []
        """Entries of a later version, kept as they are."""
        self._seen: tuple[int, ...] | None = ()
        """The file that was read last; None: there was none, and nothing of one."""
        self._unwritten = False

    def all(self) -> tuple[Debt, ...]:
        """Everything that is owed. ClaimError: retryable; the file cannot be read."""
        with self._lock:
            self._load()
            self._catch_up()
            return tuple(self._entries.values())

    def find(self, uuid: str, setting: Setting) -> Debt | None:
        """What is owed for a setting of a GPU. ClaimError: as ``all``."""
        with self._lock:
            self._load()
            return self._entries.get((uuid, setting))

    def add(self, debt: Debt) -> None:
        """Owe this, in the place of what was owed for the same; it is on the disk when this returns.

        Raises:
            ClaimError: retryable; it is not, and nothing may be changed.
        """
        with self._lock:
            self._load()
            before, self._entries[debt.key] = self._entries.get(debt.key), debt
            try:
                self._write()
            except OSError as error:
                if before is None:
                    del self._entries[debt.key]
                else:
                    self._entries[debt.key] = before
                raise storage_error("write", self.path, error) from error

    def drop(self, debt: Debt) -> None:
        """Owe it no more.

        Where that cannot be written now, it is with the next change; until then only a restart brings it back, which
        then finds that the setting is not the one that was given.
        """
        with self._lock:
            self._load()
            if self._entries.get(debt.key) == debt:
                del self._entries[debt.key]
                self._unwritten = True
            self._catch_up()

    def _catch_up(self) -> None:
        """Write what is owed no more, if that is still to be done."""
        if self._unwritten:
            try:
                self._write()
            except OSError as error:
                log.warning("%s", storage_error("write", self.path, error))

    def _load(self) -> None:
        """Read the file if another process has written it."""
        seen = self._signature()
        if seen == self._seen:
            return
        try:
            raw = files.read_regular(self.path, _MAX_BYTES) if seen is not None else b""
        except OSError as error:
            raise ClaimError(str(storage_error("read", self.path, error)), Reason.STATE_UNAVAILABLE) from error
        except (files.NotAFileError, files.TooLargeError) as error:
            self._set_aside(str(error))
            raw = b""
        self._entries, self._strange, self._unwritten = {}, [], False
        if raw:
            try:
                self._entries, self._strange, self._unwritten = _read(raw, self._boot_id())
            except (msgspec.DecodeError, DocumentError, RecursionError) as error:
                self._set_aside(str(error))
        self._seen = self._signature()
        try:
            files.remove(self._temporary)  # of a write that was interrupted
        except OSError as error:
            log.warning("%s", storage_error("remove", self._temporary, error))

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(f"{self.path.name}.tmp")

    def _set_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            self.path.replace(aside)
        except OSError as error:
            raise ClaimError(
                f"{self.path} is damaged ({why}) and cannot be set aside: {error.strerror}; mend the file system or "
                "its permissions",
                Reason.STATE_UNAVAILABLE,
            ) from error
        log.warning(
            "%s is damaged (%s) and kept as %s: compute modes and time slices of before the present claims are known "
            "from their records alone",
            self.path,
            why,
            aside.name,
        )

    def _write(self) -> None:
        """Write all, or remove the file where nothing is owed, which works on a full disk too."""
        if self._entries or self._strange:
            entries = [{**msgspec.to_builtins(one), "bootID": self._boot_id()} for one in self._entries.values()]
            files.write_new(self._temporary, msgspec.json.encode({"debts": [*entries, *self._strange]}) + b"\n", 0o600)
            files.replace(self._temporary, self.path)
        else:
            files.remove(self.path)
        self._seen, self._unwritten = self._signature(), False

    def _signature(self) -> tuple[int, ...] | None:
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(raw: bytes, boot_id: str | None) -> tuple[dict[tuple[str, Setting], Debt], list[object], bool]:
    """What is owed in this boot, entries that this version does not know, and whether there were others."""
    entries: dict[tuple[str, Setting], Debt] = {}
    strange: list[object] = []
    others = False
    for item in Cursor(msgspec.json.decode(raw), DEBTS_FILE).get("debts").elements():
        fields: Mapping[str, object] = item.as_object()
        boot = item.find("bootID")
        if boot is not None and boot_id is not None and boot.text() != boot_id:
            others = True
            continue
        if fields.get("setting") not in list(Setting):
            strange.append(item.value)
            continue
        debt = _debt(item)
        entries[debt.key] = debt
    return entries, strange, others


def _debt(item: Cursor) -> Debt:
    setting = Setting(item.get("setting").text())
    values = []
    for name in ("former", "given"):
        value = item.get(name)
        if value.text() not in VALUES[setting]:
            raise value.error(f"is {value.text()[:32]!a}, which is no {setting.shown}")
        values.append(value.text())
    return Debt(item.get("uuid").text(), item.get("address").text(), setting, *values)
