"""``gpudra journal``: what happened on a node, from its state folder."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver.journal import Entry, Record
    from driver.journal.telling import Query

DEFAULT_STATE = "/var/lib/kubelet/plugins/gpu.nvidia.com/gpudra"

_DESCRIPTION = """\
Show the journal of a node's agent: claims prepared and unprepared, health verdicts, taints, XIDs, the driver, slices
published and refused. It only reads, needs no agent and no cluster, and may run beside the agent.

A line "gap" says that something may be missing there, and why. docs/journal.md explains the kinds.
"""

_EXAMPLES = """\
examples:
  gpudra journal --since 2h                                  the last two hours
  gpudra journal --device 'gpu-0000-1b-*' --kind device,xid  one GPU's health
  gpudra journal --claim team-a/train --follow               one claim, along with what happens
  gpudra journal --state                                     what holds now, added up from the records
  kubectl -n gpudra-system exec ds/gpudra-agent -- gpudra journal -o json | jq .
                                                             from a running agent's pod
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "journal",
        help="what happened on a node",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_state_argument(parser)
    parser.add_argument("--device", action="append", metavar="NAME", help="records about this device; * for anything")
    parser.add_argument(
        "--claim", action="append", metavar="[NAMESPACE/]NAME|UID", help="records about this claim; * for anything"
    )
    parser.add_argument(
        "--kind", action="append", metavar="KINDS", help="kinds, separated by commas; claim takes claim.*"
    )
    parser.add_argument(
        "--since", metavar="TIME", help="from this time on: 2026-01-31T12:00:00Z, or 90s, 30m, 2h, 3d ago"
    )
    parser.add_argument("--until", metavar="TIME", help="up to this time")
    parser.add_argument(
        "--follow", action="store_true", help="go on with what is written from now on, until interrupted"
    )
    parser.add_argument("--state", action="store_true", help="show what the records add up to, instead of the records")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="default: text; json: a line each"
    )
    parser.set_defaults(run=run)


def add_state_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that names a node's state folder."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path(DEFAULT_STATE),
        metavar="DIR",
        help=f"the agent's own folder (default: {DEFAULT_STATE})",
    )


def run(args: argparse.Namespace) -> int:
    """Print the records; 1 where some could not be read."""
    from driver.cli.main import UsageError
    from driver.journal import read

    folder = args.state_dir / "journal"
    if not folder.is_dir() and not args.follow:
        raise UsageError(
            f"there is no journal in {args.state_dir}: name the folder of the agent with --state-dir (below the "
            "kubelet's plugins folder, <driver name>/gpudra), and check that journalBytes is not 0"
        )
    query = _query(args)
    show = _json if args.output == "json" else _text
    try:
        if args.state:
            return _print_state(read(folder), args.output)
        if args.follow:
            return _follow(folder, query, show)
        return _print(read(folder), query, show)
    except OSError as error:
        raise UsageError(f"the journal in {folder} cannot be read: {error.strerror}") from error


def _query(args: argparse.Namespace) -> Query:
    from datetime import UTC, datetime

    from driver.cli.main import UsageError
    from driver.journal import Kind
    from driver.journal.telling import Query, QueryError, parse_time

    kinds = tuple(word for part in args.kind or () for one in part.split(",") if (word := one.strip()))
    known = {kind.value for kind in Kind} | {kind.value.partition(".")[0] for kind in Kind}
    for kind in kinds:
        if kind.rstrip(".") not in known:
            raise UsageError(f"--kind {kind}: no such kind; there are {', '.join(sorted(kind.value for kind in Kind))}")
    try:
        now = datetime.now(UTC)
        since = parse_time(args.since, now) if args.since else None
        until = parse_time(args.until, now) if args.until else None
    except QueryError as error:
        raise UsageError(str(error)) from error
    return Query(tuple(args.device or ()), tuple(args.claim or ()), kinds, since, until)


Show = Callable[["Record"], str]


def _print(entries: Iterator[Entry], query: Query, show: Show) -> int:
    from driver.journal import Damage

    damaged = first = 0
    for entry in entries:
        if isinstance(entry, Damage):
            damaged += 1
            print(f"{entry.file}:{entry.line}: {entry.reason}", file=sys.stderr)
            continue
        first = first or entry.seq
        if query.wants(entry):
            print(show(entry))
    if first > 1:
        print(f"the {first - 1} oldest records are no longer kept (journalBytes)", file=sys.stderr)
    return 1 if damaged else 0


def _follow(folder: Path, query: Query, show: Show) -> int:
    from driver.journal import follow

    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text stream, as a program's stdout is
    return _print(follow(folder, stop), query, show)


def _print_state(entries: Iterator[Entry], output: str) -> int:
    from driver.journal import Record, replay

    state = replay(entry for entry in entries if isinstance(entry, Record)).as_data()
    if output == "json":
        print(json.dumps(state, sort_keys=True))
        return 0
    from driver.journal.telling import printable

    for title, part in state.items():
        print(f"{title}:")
        for key, value in sorted(part.items()):
            words = " ".join(f"{name}={word}" for name, word in value.items()) if isinstance(value, dict) else value
            print(printable(f"  {key}  {words}"))
    return 0


def _text(record: Record) -> str:
    from driver.journal.telling import line

    return line(record)


def _json(record: Record) -> str:
    import msgspec

    return msgspec.json.encode(record).decode()
