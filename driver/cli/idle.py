"""``gpudra idle``: which claims of a node hold a GPU and do not use it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from driver.cli.journal import add_state_argument

if TYPE_CHECKING:
    from driver.idle import Use

_DESCRIPTION = """\
List the devices of the prepared claims of this node by how long they have not been used, from what the agent has
counted (at most a minute old). It only reads, and needs no cluster.

A whole GPU is in use while its utilisation is above 0, a partition while a process is on it; what several claims share
counts as used for all of them. "never" stands for a device that was not seen in use since it was prepared.
"""

_EXAMPLES = """\
examples:
  gpudra idle                    all claims of this node, longest unused first
  gpudra idle --at-least 1h      those that have not used their GPU for an hour
  gpudra idle -o json | jq '.[] | select(.processes == 0)'
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "idle",
        help="which claims hold a GPU and do not use it",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_state_argument(parser)
    parser.add_argument(
        "--at-least", default="0s", metavar="TIME", help="only those unused for so long: 90s, 30m, 2h, 3d"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from datetime import UTC, datetime

    from driver.cli.main import UsageError
    from driver.idle import FILE_NAME, read_book
    from driver.journal.telling import QueryError, parse_time

    now = datetime.now(UTC)
    try:
        least = (now - parse_time(args.at_least, now)).total_seconds()
    except QueryError as error:
        raise UsageError(f"--at-least {error}") from error
    stored = read_book(args.state_dir / FILE_NAME)
    if stored is None:
        raise UsageError(
            f"the agent has counted nothing in {args.state_dir}: name its folder with --state-dir (below the kubelet's "
            "plugins folder, <driver name>/gpudra), or wait a minute after its start"
        )
    uses = [use for use in stored.uses if use.seconds >= least]
    print(_json(uses) if args.output == "json" else "\n".join(_lines(uses)))
    return 0


def _json(uses: Sequence[Use]) -> str:
    return json.dumps(
        [
            {
                "namespace": use.namespace,
                "claim": use.claim,
                "uid": use.uid,
                "device": use.device,
                "unusedSeconds": round(use.seconds),
                "everUsed": use.ever,
                "idle": use.idle,
                "utilization": use.utilization,
                "processes": use.processes,
                "memoryBytes": use.memory,
            }
            for use in uses
        ],
        indent=2,
    )


def _lines(uses: Sequence[Use]) -> list[str]:
    from driver.journal.telling import printable

    if not uses:
        return ["no claim has left its device unused for so long"]
    rows = [("CLAIM", "DEVICE", "UNUSED FOR", "LAST USED", "PROCESSES", "GPU", "MEMORY")]
    for use in uses:
        memory = "" if use.memory is None else f"{use.memory / 2**30:.1f} GiB"
        load = "" if use.utilization is None else f"{use.utilization} %"
        used = _age(use.seconds) + " ago" if use.ever else "never"
        rows.append(
            (f"{use.namespace}/{use.claim}", use.device, _age(use.seconds), used, str(use.processes), load, memory)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for row in rows
    ]


def _age(seconds: float) -> str:
    """The two largest units: ``3d4h``, ``2h5m``, ``17m``, ``40s``."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m" if minutes else f"{whole}s"
