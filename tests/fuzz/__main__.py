"""``python -m tests.fuzz TARGET --seconds N``: one target, or all in turn, for as long as one wants."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.fuzz.engine import FuzzError, run
from tests.fuzz.fuzztable import TARGETS


def main() -> int:
    """Run and print what was tried; the first input that breaks the rules ends it and is kept as a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", help=f"default: all. {', '.join(target.name for target in TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    chosen = [target for target in TARGETS if given.target in (None, target.name)]
    if not chosen:
        parser.error(f"there is no target {given.target!r}")
    warnings.simplefilter("error")
    logging.disable()
    for target in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                tried, taken = run(target, Path(folder), seed=given.seed, seconds=given.seconds)
            except FuzzError as error:
                kept = Path(tempfile.gettempdir()) / f"fuzz-{target.name.replace(' ', '-')}.input"
                kept.write_bytes(error.data)
                print(f"{error}\nthe input is kept as {kept}")
                return 1
        print(f"{target.name}: {tried} inputs, {taken} of them taken", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
