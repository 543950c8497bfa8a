"""The command line: ``python -m hack.oracle build|vectors|fuzz``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from . import build, compare, scenes, selectors, vectors

BATCH = 200
SEEDS = 600
"""Scenes whose answers are kept as vectors, for each version."""


def main() -> int:
    """Run one verb; the exit status is 0, 1 with a sentence on standard error, or 2 where port and oracle differ."""
    arguments = _parser().parse_args()
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {"build": _build, "vectors": _vectors, "fuzz": _fuzz}
    wanted = build.VERSIONS if arguments.version == "all" else (arguments.version,)
    try:
        return max(verbs[arguments.verb](argparse.Namespace(**vars(arguments) | {"version": each})) for each in wanted)
    except build.OracleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.oracle", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    building = verbs.add_parser("build", help="build the oracle into ~/.cache/gpudra/oracle (a minute, needs Go)")
    keeping = verbs.add_parser("vectors", help="ask the oracle again and write tests/unit/analysis_allocator/data")
    keeping.add_argument(
        "--kind", choices=("upstream", "cel", "fuzz"), action="append", help="only these (default: all)"
    )
    fuzzing = verbs.add_parser("fuzz", help="hold the port to the oracle on random clusters")
    fuzzing.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default: %(default)s)")
    fuzzing.add_argument("--count", type=int, default=1000, metavar="N", help="scenes (default: %(default)s)")
    fuzzing.add_argument("--selectors", action="store_true", help="random CEL expressions instead of clusters")
    fuzzing.add_argument("--shrink", action="store_true", help="print the smallest scene of each difference")
    for verb in (building, keeping, fuzzing):
        verb.add_argument(
            "--version",
            default=build.VERSIONS[0],
            metavar="VERSION",
            help=f"of k8s.io/dynamic-resource-allocation: {', '.join(build.VERSIONS)} or all (default: %(default)s)",
        )
    return parser


def _build(arguments: argparse.Namespace) -> int:
    print(build.build(arguments.version))
    return 0


def _vectors(arguments: argparse.Namespace) -> int:
    version = arguments.version
    for kind in arguments.kind or ("upstream", "cel", "fuzz"):
        if kind == "upstream":
            entries = vectors.record(version)
        elif kind == "cel":
            entries = selectors.record(version)
        else:
            entries = compare.digests(version, range(SEEDS))
        print(f"{kind} {version}: {vectors.write(kind, version, entries)} vectors")
    return 0


def _fuzz(arguments: argparse.Namespace) -> int:
    if arguments.selectors:
        return _fuzz_selectors(arguments)
    last, differ, begin = arguments.first + arguments.count, 0, time.monotonic()
    for first in range(arguments.first, last, BATCH):
        batch = [scenes.scene(arguments.version, seed) for seed in range(first, min(first + BATCH, last))]
        for each in compare.differences(arguments.version, batch):
            differ += 1
            shown = compare.shrink(arguments.version, each.scene) if arguments.shrink else each.scene
            print(json.dumps(shown))
            print(f"  port:   {each.port['error'] or json.dumps(each.port['results'])}")
            print(f"  oracle: {each.oracle.get('error') or json.dumps(each.oracle['results'])}")
        done = min(first + BATCH, last) - arguments.first
        print(f"\r{done} of {arguments.count} scenes, {differ} differ", end="", file=sys.stderr)
    print(f"\n{arguments.version}: {arguments.count} scenes, {differ} differ, {time.monotonic() - begin:.0f} s")
    return 2 if differ else 0


def _fuzz_selectors(arguments: argparse.Namespace) -> int:
    differ = 0
    seeds = range(arguments.first, arguments.first + arguments.count)
    for text, mine, theirs in selectors.disagreements(arguments.version, seeds):
        differ += 1
        print(f"{text}\n  port:   {mine}\n  oracle: {theirs}")
    print(f"{arguments.version}: {arguments.count} expressions, {differ} differ")
    return 2 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
