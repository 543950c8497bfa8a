"""The loop: an event, what must hold after it, now and then a rest; on failure all that is needed to see it again."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable

from tests.soak import soakchecks
from tests.soak.soakevents import EVENTS, Event
from tests.soak.soakleaks import Figures, largest
from tests.soak.soakrun import WORLDS, Run, opened

_TAIL = 40
_TROUBLE_LASTS = (2, 9)
"""Events from the first trouble to the rest that ends it."""
_REST_EVERY = 60
_EMPTY_EVERY = 5
"""Rests to one at which all claims end."""


class SoakError(AssertionError):
    """What broke, after which events, and how to see it again."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run was."""

    world: str
    seed: int
    events: int
    seconds: float
    counts: Counter[str]
    first: Figures
    """Of the first agent at its first rest."""
    last: Figures
    """Of the last agent at its last rest."""
    most: Figures
    """The largest of each at any rest."""
    rests: int

    def __str__(self) -> str:
        return (
            f"{self.world}, seed {self.seed}: {self.events} events in {self.seconds:.0f} s, {self.rests} rests; "
            f"first {self.first}; last {self.last}; most {self.most}"
        )


def soak(
    world: str, seed: int, events: int, *, restarts: bool = True, say: Callable[[str], None] = lambda _text: None
) -> Result:
    """Let so many events happen on a new node.

    Raises:
        SoakError: with the seed, the last events and the first thing that does not hold.
    """
    began = time.monotonic()
    with opened(WORLDS[world], seed, exact=not restarts) as run:
        try:
            _events(run, events, [event for event in EVENTS if restarts or not event.restarts], say)
            run.finish()
        except Exception as error:
            tail = "\n".join(run.history[-_TAIL:])
            options = f"--world {world} --seed {seed} --events {events}{'' if restarts else ' --no-restarts'}"
            raise SoakError(
                f"{error}\n\nafter event {len(run.history)} of: python -m tests.soak {options}\n"
                f"now wrong with the node: {', '.join(run.troubles) or 'nothing'}\nthe last events:\n{tail}\n"
                f"the agent's last words:\n{run.node.recent(150)}"
            ) from error
    seconds, found = time.monotonic() - began, run.figures
    return Result(world, seed, events, seconds, run.counts, found[0], found[-1], largest(found), len(found))


def _events(run: Run, events: int, choice: list[Event], say: Callable[[str], None]) -> None:
    until_rest, rests = _REST_EVERY, 0
    for number in range(1, events + 1):
        calm = run.calm
        happened = _one(run, choice)
        run.history.append(f"{number:6} {happened}")
        soakchecks.after_event(run)
        if calm and not run.calm:
            until_rest = min(until_rest, run.chance.randint(*_TROUBLE_LASTS))
        until_rest -= 1
        if until_rest <= 0:
            rests += 1
            if rests % _EMPTY_EVERY:
                run.rest()
                run.history.append("       at rest")
            else:
                run.empty()
                run.history.append("       at rest, without claims")
            until_rest = _REST_EVERY
        if number % 100 == 0:
            say(f"{number} events, {len(run.claims)} claims, {run.figures[-1] if run.figures else ''}")


def _one(run: Run, choice: list[Event]) -> str:
    away = "no API server" in run.troubles
    possible = [event for event in choice if not (event.server and away)]
    (event,) = run.chance.choices(possible, [one.weight for one in possible])
    run.counts[event.name] += 1
    run.life += 1
    run.history.append(f"       begins: {event.name}")
    whom = event.happen(run)
    run.history.pop()
    return f"{event.name}: {whom}"
