"""Runs a target over inputs: only its documented errors may come out, each within bounded time and memory."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.mutate import Mutator

HANG_SECONDS = 20.0
"""No input that may come in takes so long by far: what does is stuck."""
MEMORY_MIB = 300
"""By which the process may grow over all inputs of one target."""


@dataclass(frozen=True)
class Target:
    """A parser of bytes from outside."""

    name: str
    call: Callable[[bytes, Path], object]
    """Gives it the input; the path is of an empty folder for those that read files."""
    errors: tuple[type[Exception], ...]
    """What its documentation says it raises."""
    corpus: Sequence[bytes]
    covers: tuple[str, ...] = ()
    """``module:name`` of the public parsers that it is about."""
    seeds: tuple[bytes, ...] = ()
    """What is mutated beside the corpus, and may be refused."""


class HangError(Exception):
    """It does not come back."""


class FuzzError(AssertionError):
    """An input that breaks the rules; holds it."""

    def __init__(self, target: Target, data: bytes, seed: int, what: str) -> None:
        shown = data if len(data) < 400 else data[:200] + b" ... " + data[-100:]
        super().__init__(f"{target.name}: {what}\ninput ({len(data)} bytes, seed {seed}): {shown!r}")
        self.data = data


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    def stuck(_signal: int, _frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def try_one(target: Target, data: bytes, folder: Path, seed: int) -> bool:
    """Give it one input; False where it was refused.

    Raises:
        FuzzError: it raised what it must not, or did not come back.
    """
    try:
        with _no_longer_than(HANG_SECONDS):
            target.call(data, folder)
    except HangError as error:
        raise FuzzError(target, data, seed, f"is still at it after {HANG_SECONDS} s") from error
    except target.errors as error:
        message = str(error)
        if len(message) > 20_000 + 8 * len(data):
            raise FuzzError(target, data, seed, f"its message is {len(message)} characters long") from error
        return False
    except Exception as error:
        raise FuzzError(target, data, seed, f"raised {type(error).__name__}: {str(error)[:300]}") from error
    return True


def run(target: Target, folder: Path, *, seed: int, count: int = 0, seconds: float = 0.0) -> tuple[int, int]:
    """Try the corpus, the traps and ``count`` mutations, or mutations for so many seconds.

    Returns:
        How many inputs were tried, and how many of them were taken.

    Raises:
        FuzzError: the first input that breaks the rules.
    """
    mutator = Mutator([*target.corpus, *target.seeds], seed)
    for data in target.corpus:
        if not try_one(target, data, folder, seed):
            raise FuzzError(target, data, seed, "refuses what its corpus calls valid")
    tried = taken = len(target.corpus)
    end = time.monotonic() + seconds
    before = _peak_mib()
    inputs: Iterator[bytes] = iter(mutator.inputs(count)[len(target.corpus) :])
    while (data := next(inputs, None)) is not None or time.monotonic() < end:
        tried += 1
        taken += try_one(target, mutator.one() if data is None else data, folder, seed)
        if _peak_mib() - before > MEMORY_MIB:
            raise FuzzError(target, data or b"", seed, f"the process grew by {_peak_mib() - before:.0f} MiB")
    return tried, taken


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
