"""The checkpoint file: what is prepared on this node, durable before it is acted upon.

Every change is the whole state, written over the oldest of a few (``driver.prepare.slots``). Waiting for the disk is
most of what a change costs, and is left out where the state of before would do after a loss of power. Changes that
arrive while a write is under way go out together in the next one.
A damaged file is set aside and never deleted; one that cannot be read at all (I/O error, permission, later version)
stops everything that would need it: nothing is handed out on a guess.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from driver.model import Problem
from driver.prepare import envelope, files
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.slots import MAX_BYTES, Line, SlotFile

FILE_NAME = "checkpoint.json"
_WITHHELD = "Devices in doubt are withheld until their claims are gone"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Loaded(msgspec.Struct, frozen=True):
    """What reading the file came to."""

    problems: tuple[Problem, ...] = ()
    complete: bool = True
    """False: the file was damaged or missing, and ``records`` may lack claims that are prepared."""
    removed: bool = False
    """The file went while the driver runs; ``records`` are as they were, and to be written again."""


class _Change(msgspec.Struct):
    records: Mapping[str, ClaimRecord | None]
    frees: bool
    sync: bool
    done: bool = False
    error: OSError | None = msgspec.field(default_factory=lambda: OSError(errno.EINTR, "the write was interrupted"))
    """None once the change is written."""


def stored(folder: Path) -> envelope.State | None:
    """The newest sound state in the file of a state folder, without a lock or a change; None: there is none.

    Raises:
        envelope.TooNewError: a later version of the driver wrote it.
        OSError: the file cannot be read.
    """
    file = SlotFile(folder / FILE_NAME)
    try:
        sound, _ = _sort(file.read())
    except (FileNotFoundError, files.NotAFileError, files.TooLargeError):
        return None
    finally:
        file.close()
    return max(sound, key=lambda state: state.sequence, default=None)


class Checkpoint:
    """The records of one state folder. Safe to use from several threads; several processes need a lock around it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._file = SlotFile(self.path)
        self._state = envelope.State()
        self._gone = False
        self._loaded = False
        self._queue: list[_Change] = []
        self._queue_lock = threading.Lock()
        self._writer = threading.Lock()

    @property
    def records(self) -> Mapping[str, ClaimRecord]:
        """Claim UID -> record, as last made durable. A value of its own: later changes do not show in it."""
        return self._state.records

    @property
    def boot_id(self) -> str | None:
        """The boot in which the file was last written."""
        return self._state.boot_id

    def refresh(self, boot_id: str | None) -> Loaded | None:
        """Read the file if it is not the one read or written last (another process may have written). None: it was.

        Args:
            boot_id: of the running system. Of what an earlier boot was writing when it ended nothing is in use by now.

        Raises:
            ClaimError: StateUnavailable, retryable: the file cannot be read, set aside or must not be touched.
        """
        with self._writer:
            if self._loaded and self._file.is_known():
                return None
            if self._loaded and not self._file.is_there():
                self._file.close()
                gone, self._gone = self._gone, True
                if gone:
                    return None
                message = "the checkpoint was removed while the driver runs; it is written again"
                return Loaded(problems=(Problem(str(self.path), message),), removed=True)
            self._loaded = False
            outcome = self._load(boot_id)
            self._loaded = True
            return outcome

    def forget(self) -> None:
        """Read the file again at the next ``refresh``, whatever it looks like."""
        with self._writer:
            self._loaded = False

    def commit(
        self,
        records: Mapping[str, ClaimRecord | None],
        *,
        boot_id: str | None,
        frees: bool = False,
        sync: bool = True,
    ) -> None:
        """Make changes durable: UID -> new record, or None to drop it. Returns when they are written.

        Args:
            records: the changes; no two calls at the same time may be about one UID.
            boot_id: of the running system.
            frees: the change leads to less being held; on a full disk it is written although others are not.
            sync: wait until the disk has them. False: they outlive this process, and as a rule also a machine that
                loses its power, which then may find the state of before them.

        Raises:
            ClaimError: WriteFailed, retryable; the old state stands.
        """
        change = _Change(records, frees, sync)
        with self._queue_lock:
            self._queue.append(change)
        with self._writer:
            if not change.done:
                self._write_queue(boot_id)
        if change.error is not None:
            raise storage_error("write the checkpoint", self.path, change.error) from change.error

    def _write_queue(self, boot_id: str | None) -> None:
        with self._queue_lock:
            batch, self._queue = self._queue, []
        try:
            failed = self._attempt(batch, boot_id)
            if failed is not None and failed.errno in _FULL:
                # What only takes away fits into the place that is there.
                self._attempt([change for change in batch if change.frees], boot_id)
        finally:
            for change in batch:
                change.done = True

    def _attempt(self, batch: list[_Change], boot_id: str | None) -> OSError | None:
        if not batch:
            return None
        error = None
        try:
            self._write(batch, boot_id)
        except OSError as failed:
            error = failed
        for change in batch:
            change.error = error
        return error

    def _write(self, batch: list[_Change], boot_id: str | None) -> None:
        records = dict(self._state.records)
        for change in batch:
            for uid, record in change.records.items():
                if record is None:
                    records.pop(uid, None)
                else:
                    records[uid] = record
        state = msgspec.structs.replace(
            self._state, records=MappingProxyType(records), boot_id=boot_id, sequence=self._state.sequence + 1
        )
        self._file.write(state.sequence, envelope.encode(state), sync=any(change.sync for change in batch))
        self._state = state
        self._gone = False

    def _load(self, boot_id: str | None) -> Loaded:
        self._gone = False
        try:
            lines = self._file.read()
        except FileNotFoundError:
            self._gone = True
            self._state = envelope.State()
            return Loaded(complete=False)
        except OSError as error:
            raise self._unavailable(
                f"cannot be read: {error.strerror}", "mend the file system or its permissions"
            ) from error
        except (files.NotAFileError, files.TooLargeError) as error:
            return self._lost(str(error))
        try:
            sound, damaged = _sort(lines)
        except envelope.TooNewError as error:
            raise self._unavailable(
                str(error), "run that version again, or unprepare all claims with it first"
            ) from error
        if not sound:
            return self._lost(next(iter(damaged.values()), "it is empty"))
        self._state = max(sound, key=lambda state: state.sequence)
        newer = [why for line, why in damaged.items() if _may_be_newer(line, self._state, lines)]
        if not newer:
            return Loaded(problems=tuple(_doubts(self.path, self._state)))
        if boot_id is not None and self._state.boot_id not in (None, boot_id):
            message = f"the last change before this boot was not whole ({newer[0]}); going on with the one before"
            return Loaded(problems=(Problem(str(self.path), message), *_doubts(self.path, self._state)))
        return self._fall_back(newer[0])

    def _lost(self, why: str) -> Loaded:
        """Nothing of the file is of use."""
        aside = self._aside()
        try:
            self._file.close()
            self.path.rename(aside)
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise self._not_set_aside(error) from error
        self._state = envelope.State()
        message = (
            f"the checkpoint is damaged ({why}), it is kept as {aside.name}; going on with what the CDI folder tells"
        )
        return Loaded(problems=(Problem(str(self.path), f"{message}. {_WITHHELD}"),), complete=False)

    def _fall_back(self, why: str) -> Loaded:
        """Go on with the state of before the last change, every record of it in doubt."""
        aside = self._aside()
        try:
            files.write_new(aside, files.read_regular(self.path, MAX_BYTES), 0o600)
        except (OSError, files.NotAFileError, files.TooLargeError) as error:
            raise self._not_set_aside(error) from error
        doubt = "the checkpoint is damaged; this is its state of before the last change"
        records = {uid: _in_doubt(record, doubt) for uid, record in self._state.records.items()}
        self._state = msgspec.structs.replace(self._state, records=MappingProxyType(records))
        message = (
            f"the checkpoint is damaged ({why}), it is kept as {aside.name}; going on with its state of before the last"
            f" change ({len(records)} claims, in doubt)"
        )
        return Loaded(problems=(Problem(str(self.path), f"{message}. {_WITHHELD}"),), complete=False)

    def _aside(self) -> Path:
        number = 1
        while os.path.lexists(aside := self.path.with_name(f"{FILE_NAME}.damaged-{number}")):
            number += 1
        return aside

    def _not_set_aside(self, error: Exception) -> ClaimError:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        return self._unavailable(
            f"is damaged and cannot be set aside: {cause}", "mend the file system or its permissions"
        )

    def _unavailable(self, what: str, remedy: str) -> ClaimError:
        return ClaimError(
            f"the checkpoint {self.path} {what}; nothing is prepared or unprepared until it can be used: {remedy}",
            Reason.STATE_UNAVAILABLE,
        )


def _sort(lines: list[Line]) -> tuple[list[envelope.State], dict[Line, str]]:
    """States that are sound, and the others with what is wrong; nothing of slots that never held one."""
    sound, damaged = [], {}
    for line in lines:
        if not line.raw and line.number is not None:
            continue
        if line.number is None and envelope.number_of(line.raw) is not None:
            # Numbers came with slots: this one stood beside others, and how many changes it lacks nobody knows.
            damaged[line] = "it is cut short"
            continue
        try:
            sound.append(envelope.decode(line.raw))
        except envelope.DamagedError as error:
            damaged[line] = str(error)
    return sound, damaged


def _may_be_newer(line: Line, newest: envelope.State, lines: list[Line]) -> bool:
    """Whether a damaged line may be a later state than the newest sound one.

    It says so itself, where its beginning is sound. Where not, its place does: lines follow each other around the file,
    so the place behind the newest holds the next one, or the one that is to be overwritten next.
    """
    number = envelope.number_of(line.raw)
    if number is not None:
        return number > newest.sequence
    return line.number is None or line.number == (newest.sequence + 1) % len(lines)


def _in_doubt(record: ClaimRecord, doubt: str) -> ClaimRecord:
    """A record whose last change may be lost: one that was being prepared may be prepared, and in use, by now."""
    phase = Phase.PREPARED if record.phase is Phase.PREPARING else record.phase
    return msgspec.structs.replace(record, phase=phase, doubt=record.doubt or doubt)


def _allocate(descriptor: int, size: int) -> bool:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        return False
    return True


def _doubts(path: Path, state: envelope.State) -> list[Problem]:
    return [
        Problem(str(path), f"claim {record.ref}: {record.doubt}; its devices are withheld until it is unprepared")
        for record in state.records.values()
        if record.doubt
    ]
