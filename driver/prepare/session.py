"""The ground that every operation stands on: state loaded, other processes kept out, claims and GPUs locked.

What the checkpoint lost is made up for here, before anything is handed out: claims that only the CDI folder knows are
taken in as records in doubt.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from driver.model import Problem
from driver.prepare import files
from driver.prepare.checkpoint import Checkpoint, Loaded
from driver.prepare.claimspec import adopt
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.locks import KeyedLocks, ProcessLock
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.specfolder import SpecFolder

_LOCK_FILE = "serialize.lock"
_MAX_PROBLEMS = 100


def read_boot_id(proc_root: Path = Path("/proc")) -> str | None:
    """The kernel's id of this boot; None where it has none to tell."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


class Session:
    """One state folder and one CDI folder, shared by all operations of the process."""

    def __init__(
        self, state_dir: Path, specs: SpecFolder, *, boot_id: Callable[[], str | None], patience: float
    ) -> None:
        self._state_dir = state_dir
        self._specs = specs
        self._boot_id = boot_id
        self._patience = patience
        self._checkpoint = Checkpoint(state_dir)
        self._process = ProcessLock(state_dir / _LOCK_FILE)
        self._keyed = KeyedLocks()
        self._problems: list[Problem] = []
        self._loading = threading.Lock()

    @property
    def records(self) -> Mapping[str, ClaimRecord]:
        """Claim UID -> record."""
        return self._checkpoint.records

    @property
    def boot_id(self) -> str | None:
        """Of the running system."""
        return self._boot_id()

    def take_problems(self) -> tuple[Problem, ...]:
        """What was found wrong with the stored state since the last call."""
        with self._loading:
            found, self._problems = self._problems, []
        return tuple(found)

    def commit(self, changes: Mapping[str, ClaimRecord | None], *, frees: bool = False, sync: bool = True) -> None:
        """Make changes durable (``Checkpoint.commit``); nothing to change costs nothing."""
        if changes:
            self._checkpoint.commit(changes, boot_id=self.boot_id, frees=frees, sync=sync)

    @contextlib.contextmanager
    def open(self) -> Iterator[float]:
        """Keep other processes out and have the state loaded; gives the deadline for the locks that follow.

        Raises:
            ClaimError: retryable; the state cannot be had.
        """
        deadline = time.monotonic() + self._patience
        with contextlib.ExitStack() as stack:
            try:
                files.private_folder(self._state_dir)
                stack.enter_context(self._process.hold(deadline))
            except TimeoutError as error:
                raise ClaimError(f"another instance of the driver is still at work: {error}", Reason.BUSY) from error
            except OSError as error:
                failure = storage_error("use the state folder", self._state_dir, error)
                raise ClaimError(str(failure), Reason.STATE_UNAVAILABLE) from error
            self._load()
            yield deadline

    @contextlib.contextmanager
    def claims(self, uids: Iterable[str], deadline: float) -> Iterator[frozenset[str]]:
        """Lock claims; gives the UIDs that were free by the deadline."""
        with self._keyed.hold((f"claim/{uid}" for uid in uids), deadline) as names:
            yield frozenset(name.removeprefix("claim/") for name in names)

    @contextlib.contextmanager
    def gpus(self, records: Iterable[ClaimRecord], deadline: float) -> Iterator[frozenset[str]]:
        """Lock the GPUs of claims; gives the addresses that were free by the deadline."""
        with self.addresses({device.address for record in records for device in record.devices}, deadline) as free:
            yield free

    @contextlib.contextmanager
    def addresses(self, addresses: Iterable[str], deadline: float) -> Iterator[frozenset[str]]:
        """Lock GPUs by address, as ``gpus`` does."""
        with self._keyed.hold((f"gpu/{address}" for address in addresses), deadline) as names:
            yield frozenset(name.removeprefix("gpu/") for name in names)

    def _load(self) -> None:
        with self._loading:
            loaded = self._checkpoint.refresh(self.boot_id)
            if loaded is None:
                return
            problems = list(loaded.problems)
            if not loaded.complete:
                problems += self._make_up(loaded)
            if loaded.removed and self.records:
                try:
                    self._checkpoint.commit({}, boot_id=self.boot_id)
                except ClaimError as error:  # it is with the next change
                    problems.append(Problem(str(self._checkpoint.path), str(error)))
            self._problems = [*self._problems, *problems][-_MAX_PROBLEMS:]

    def _make_up(self, loaded: Loaded) -> list[Problem]:
        """Take in what only the CDI folder knows, and store what is known now."""
        try:
            leftovers = self._specs.leftovers()
        except OSError as error:
            self._checkpoint.forget()
            failure = storage_error("read the CDI folder", self._specs.folder, error)
            raise ClaimError(f"the checkpoint is lost and {failure}", Reason.STATE_UNAVAILABLE) from error
        told = {item.uid: adopt(item) for item in leftovers}
        adopted = {uid: record for uid, record in told.items() if _tells_more(record, self.records.get(uid))}
        if not adopted and not self.records and not loaded.problems:
            return []  # a first start
        try:
            self._checkpoint.commit({**self.records, **adopted}, boot_id=self.boot_id, frees=True)
        except ClaimError:
            self._checkpoint.forget()
            raise
        return [
            Problem(str(self._specs.path(uid)), f"claim {record.ref}: {record.doubt}; its devices are withheld")
            for uid, record in adopted.items()
        ]


def _tells_more(told: ClaimRecord, known: ClaimRecord | None) -> bool:
    """Whether a CDI file tells more than the checkpoint: all, or what the change that was lost came to."""
    if known is None:
        return True
    told_all = told.spec_digest is not None and told.spec_digest != known.spec_digest
    return told_all and known.doubt is not None and known.phase is Phase.PREPARED
