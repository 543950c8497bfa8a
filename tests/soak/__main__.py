"""``python -m tests.soak``: random events against the agent on mock nodes, until they are done or something breaks."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter

from tests.soak.soakloop import SoakError, soak
from tests.soak.soakrun import WORLDS

PIECE = 1000


def main() -> int:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261130, help="of the first piece; the next has the next number")
    parser.add_argument("--world", choices=sorted(WORLDS), help="default: one after the other")
    parser.add_argument("--no-restarts", action="store_true", help="one agent for the whole of a piece")
    parser.add_argument("--keep-going", action="store_true", help="after a piece that broke, with the next one")
    parser.add_argument("--piece", type=int, default=PIECE, help="events on one node")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the agent with it
    done, number, broken, counts, began = 0, 0, 0, Counter[str](), time.monotonic()
    while done < given.events:
        events = min(given.piece, given.events - done)
        world = given.world or sorted(WORLDS)[number % len(WORLDS)]
        restarts = not given.no_restarts and (number % 4 < 2 or given.events <= PIECE)
        try:
            result = soak(world, given.seed + number, events, restarts=restarts, say=_say)
        except SoakError as failure:
            print(failure, flush=True)
            broken += 1
            if not given.keep_going:
                return 1
        else:
            print(f"{result}{'' if restarts else ' (one agent)'}", flush=True)
            counts += result.counts
        done, number = done + events, number + 1
    print(f"{done} events in {time.monotonic() - began:.0f} s, {broken} pieces broke: {dict(counts.most_common())}")
    return 1 if broken else 0


def _say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
