"""The checkpoint file: what is prepared on this node, durable before it is acted upon.

Every change is a whole file: written beside the current one, synced, renamed, the folder synced. The two syncs are most
of what a change costs, and are left out where the state of before would do after a loss of power. Changes that arrive
while a write is under way go out together in the next one. The file before the last change is kept as a second copy;
the one before that is what the next change is written into, because a file system takes longer to free a file and to
make another one than to write.
A damaged file is set aside and never deleted; one that cannot be read at all (I/O error, permission, later version)
stops everything that would need it: nothing is handed out on a guess.
"""

from __future__ import annotations

import contextlib
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

FILE_NAME = "checkpoint.json"
_MAX_BYTES = 64 * 1024 * 1024
_RESERVE_BYTES = (64 * 1024, 16 * 1024, 4 * 1024)
"""As much as the file system still gives."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Loaded(msgspec.Struct, frozen=True):
    """What reading the file came to."""

    problems: tuple[Problem, ...] = ()
    complete: bool = True
    """False: the file was damaged or missing, and ``records`` may lack claims that are prepared."""


class _Change(msgspec.Struct):
    records: Mapping[str, ClaimRecord | None]
    frees: bool
    sync: bool
    done: bool = False
    error: OSError | None = msgspec.field(default_factory=lambda: OSError(errno.EINTR, "the write was interrupted"))
    """None once the change is written."""


class Checkpoint:
    """The records of one state folder. Safe to use from several threads; several processes need a lock around it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._previous = folder / f"{FILE_NAME}.previous"
        self._temporary = folder / f"{FILE_NAME}.tmp"
        self._reserve = folder / f"{FILE_NAME}.reserve"
        self._state = envelope.State()
        self._identity: tuple[int, int, int] | None = None
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

    def refresh(self) -> Loaded | None:
        """Read the file if it is not the one read or written last (another process may have written). None: it was.

        Raises:
            ClaimError: StateUnavailable, retryable: the file cannot be read, set aside or must not be touched.
        """
        with self._writer:
            identity = self._identify()
            if self._loaded and self._identity == identity:
                return None
            if self._loaded and identity is None:
                self._identity = None
                message = "the checkpoint was removed while the driver runs; it is written again with the next change"
                return Loaded(problems=(Problem(str(self.path), message),))
            self._loaded = False
            outcome = self._load()
            self._identity = self._identify()
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
            frees: the change leads to less being held, and may use the space that is reserved for a full disk.
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
            failed = self._attempt(batch, boot_id, reserve=False)
            if failed is not None and failed.errno in _FULL:
                self._attempt([change for change in batch if change.frees], boot_id, reserve=True)
        finally:
            for change in batch:
                change.done = True

    def _attempt(self, batch: list[_Change], boot_id: str | None, *, reserve: bool) -> OSError | None:
        if not batch:
            return None
        error = None
        try:
            self._write(batch, boot_id, reserve=reserve)
        except OSError as failed:
            error = failed
        for change in batch:
            change.error = error
        return error

    def _write(self, batch: list[_Change], boot_id: str | None, *, reserve: bool) -> None:
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
        data = envelope.encode(state)
        sync = any(change.sync for change in batch)
        if reserve:
            self._fill_reserve(data)
        elif sync or not self._write_unsynced(data):
            self._reuse_previous()
            files.write_over(self._temporary, data, 0o600)
            sync = True
        self._keep_previous()
        files.replace(self._temporary, self.path, sync=sync)
        self._state = state
        self._identity = self._identify()
        self._make_reserve()

    def _write_unsynced(self, data: bytes) -> bool:
        """Write the temporary file without waiting for the disk; False: the disk is full.

        Never into an old file: its blocks could come back after a loss of power, as a sound file that is too old.
        """
        try:
            files.write_new(self._temporary, data, 0o600, sync=False)
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise
        return True

    def _reuse_previous(self) -> None:
        """Let the second copy become the temporary file; the current file is about to become the second copy.

        Not where there is no current file: the second copy may be all there is.
        """
        if self._identity is not None:
            with contextlib.suppress(OSError):  # there is none, or it cannot be moved: a new file is made
                self._previous.rename(self._temporary)

    def _keep_previous(self) -> None:
        """Keep the current file under a second name. It is a help after damage, so a failure stops nothing.

        A crash between the two calls leaves no second copy beside a sound first one.
        """
        if self._identity is None:
            return  # there is no current file, and the second copy may be all there is
        with contextlib.suppress(OSError):
            try:
                os.link(self.path, self._previous)
            except FileExistsError:  # as a rule the temporary file has been made of it
                self._previous.unlink()
                os.link(self.path, self._previous)

    def _make_reserve(self) -> None:
        """Hold blocks back, so that claims can be undone on a full disk."""
        if self._reserve.exists():
            return
        # The write that matters is done; where this fails, the next write tries again.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if not any(_allocate(descriptor, size) for size in _RESERVE_BYTES):
                    self._reserve.unlink()
            finally:
                os.close(descriptor)

    def _fill_reserve(self, data: bytes) -> None:
        """Write into the blocks that were held back and make them the temporary file."""
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            files.write_all(descriptor, data)
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._reserve.rename(self._temporary)

    def _identify(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.lstat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _load(self) -> Loaded:
        try:
            self._state = envelope.decode(files.read_regular(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return self._fall_back("is missing", aside=None)
        except OSError as error:
            raise self._unavailable(
                f"cannot be read: {error.strerror}", "mend the file system or its permissions"
            ) from error
        except envelope.TooNewError as error:
            raise self._unavailable(
                str(error), "run that version again, or unprepare all claims with it first"
            ) from error
        except (envelope.DamagedError, files.NotAFileError, files.TooLargeError) as error:
            return self._fall_back(f"is damaged ({error})", aside=self._set_aside())
        return Loaded(problems=tuple(_doubts(self.path, self._state)))

    def _set_aside(self) -> Path:
        number = 1
        while os.path.lexists(self.path.with_name(f"{FILE_NAME}.damaged-{number}")):
            number += 1
        aside = self.path.with_name(f"{FILE_NAME}.damaged-{number}")
        try:
            self.path.rename(aside)
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise self._unavailable(
                f"is damaged and cannot be set aside: {error.strerror}", "mend the file system or its permissions"
            ) from error
        return aside

    def _fall_back(self, what: str, aside: Path | None) -> Loaded:
        """Go on with the copy of before the last change, every record of it in doubt; with nothing if there is none."""
        try:
            state = envelope.decode(files.read_regular(self._previous, _MAX_BYTES))
            help_from = f"going on with the copy of before the last change ({len(state.records)} claims, in doubt)"
        except FileNotFoundError:
            self._state = envelope.State()
            if aside is None:
                return Loaded(complete=False)
            help_from = "there is no earlier copy; going on with what the CDI folder tells"
        except (
            OSError,
            envelope.DamagedError,
            envelope.TooNewError,
            files.NotAFileError,
            files.TooLargeError,
        ) as error:
            self._state = envelope.State()
            help_from = f"the earlier copy is of no use either ({error}); going on with what the CDI folder tells"
        else:
            doubt = f"the checkpoint {what}; this is its state of before the last change"
            records = {uid: _in_doubt(record, doubt) for uid, record in state.records.items()}
            self._state = msgspec.structs.replace(state, records=MappingProxyType(records))
        kept = f", it is kept as {aside.name}" if aside else ""
        message = f"the checkpoint {what}{kept}; {help_from}. Devices in doubt are withheld until their claims are gone"
        return Loaded(problems=(Problem(str(self.path), message),), complete=False)

    def _unavailable(self, what: str, remedy: str) -> ClaimError:
        return ClaimError(
            f"the checkpoint {self.path} {what}; nothing is prepared or unprepared until it can be used: {remedy}",
            Reason.STATE_UNAVAILABLE,
        )


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
