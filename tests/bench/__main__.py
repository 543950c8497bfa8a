"""What the agent costs as a process: ``make bench``, or ``python -m tests.bench --help``.

A mock DGX H100, a real etcd and kube-apiserver on the loopback, claims allocated by writing their status, and a client
that calls the driver as the kubelet does. Compare figures of one run only, best as ratios: the same machine differs by
a third from hour to hour.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from native.mock import MockNode
from tests.bench import apiserver, cluster
from tests.bench.awake import cpus_awake
from tests.bench.candidate import NODE_NAME, OWN_ARGUMENTS, OWN_DRIVER, OWN_LABEL, Candidate
from tests.bench.installation import install
from tests.bench.phases import Effort, one_round
from tests.bench.report import table

_PEER = (
    "another DRA driver, measured in the same rounds; in its command line {node}, {kubeconfig}, {plugins}, {registry}, "
    "{cdi} and {root} (the mock node's driver root) are filled in"
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds over all drivers (default: 3)")
    add("--quick", action="store_true", help="few repetitions: a look, not a measurement")
    add("--idle", type=float, metavar="SECONDS", help="how long idleness is observed (default: 30)")
    add("--cycles", type=int, metavar="N", help="Prepare and Unprepare cycles in the test for growth (default: 2000)")
    add("--awake", action="store_true", help="keep CPUs that have nothing to do from sleeping, as on a node with work")
    add("--peer", action="append", default=[], metavar="COMMAND", help=_PEER)
    add("--peer-driver", default=OWN_DRIVER, metavar="NAME", help=f"the peers' driver name (default: {OWN_DRIVER})")
    add("--peer-only", action="store_true", help="leave the own agent out")
    add("--out", type=Path, metavar="FILE", help="write every round's figures as JSON")
    return parser.parse_args()


def main() -> int:
    """Measure and print; the exit code is 1 where a driver could not be measured."""
    options = _options()
    signal.signal(signal.SIGTERM, _end)
    effort = Effort.quick() if options.quick else Effort()
    given = {"idle": options.idle, "cycles": options.cycles}
    effort = replace(effort, **{name: value for name, value in given.items() if value is not None})
    turning = cpus_awake() if options.awake else contextlib.nullcontext()
    with turning, _folder(None) as folder, _folder(_tmpfs()) as fast, apiserver.running(folder) as server:
        node = MockNode.create(folder / "node", "dgx-h100")
        with server.client() as client:
            cluster.create_node(client, NODE_NAME)
            cluster.create_namespace(client)
            results: dict[str, list[dict[str, float]]] = {}
            candidates = _candidates(options, folder, fast, server, node)
            for number in range(options.rounds):
                for candidate in candidates:
                    print(f"round {number + 1} of {options.rounds}: {candidate.label}", file=sys.stderr, flush=True)
                    results.setdefault(candidate.label, []).append(one_round(candidate, client, effort))
    machine = _machine()
    print(table(results))
    machine["awake"] = options.awake
    state = "CPUs kept awake" if options.awake else "CPUs"
    print(
        f"\n{machine['cpus']} {state}, Linux {machine['kernel']}, Python {machine['python']}, {options.rounds} rounds"
    )
    if options.out is not None:
        document = {"machine": machine, "effort": asdict(effort), "rounds": results}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _candidates(
    options: argparse.Namespace, folder: Path, fast: Path, server: apiserver.ApiServer, node: MockNode
) -> list[Candidate]:
    commands = [] if options.peer_only else [(OWN_LABEL, f"{install(folder / 'own')} {OWN_ARGUMENTS}", OWN_DRIVER)]
    for number, command in enumerate(options.peer):
        label = "peer" if len(options.peer) == 1 else f"peer {number + 1}"
        commands.append((label, command, options.peer_driver))
    found = []
    for number, (label, command, driver) in enumerate(commands):
        root = folder / f"c{number}"
        root.mkdir()
        found.append(Candidate(label, command, driver, root, fast / f"c{number}", server.kubeconfig, node))
    return found


@contextlib.contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gb-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _tmpfs() -> Path | None:
    """Where the CDI folder stands: /var/run of a node is a tmpfs."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


def _machine() -> dict[str, object]:
    return {"cpus": os.cpu_count(), "kernel": platform.release().split("-")[0], "python": platform.python_version()}


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
