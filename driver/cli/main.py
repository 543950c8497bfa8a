"""The ``gpudra`` command: one module per verb, imported only when its verb is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

_VERBS = ("agent", "topology", "slices", "validate", "lint", "shape", "journal", "idle", "demo", "mps", "mock")

_DESCRIPTION = """\
A Kubernetes DRA driver for NVIDIA GPUs.

The agent runs on every GPU node (as a DaemonSet): it publishes the node's GPUs as ResourceSlices and prepares
devices for the kubelet. The other verbs show what the agent sees and would publish, without a cluster; each works
on this machine or, with --mock-profile, on a machine that is not here.
"""

_EXAMPLES = """\
examples:
  gpudra topology --mock-profile dgx-h100     the tree of a DGX H100: NUMA nodes, PCIe switches, GPUs, NICs, NVLink
  gpudra slices -o yaml                       the ResourceSlices that this node would publish
  gpudra validate claim.yaml                  what is wrong with a claim's configuration, before it is applied
  gpudra lint --cluster                       what will mislead the scheduler or an autoscaler
  gpudra shape export                         what a new node of this kind would publish
  gpudra journal --since 2h                   what happened on this node
  gpudra demo                                 a claim's whole life on a mock node, in a minute
  gpudra mock up --root /tmp/node             a GPU node without a GPU, for any program that uses NVML
  gpudra agent --node-name "$NODE_NAME"       the daemon
  gpudra mps --driver-root /driver-root       MPS daemons in a pod of their own, for --mps-daemons pod
"""


class UsageError(Exception):
    """The command cannot do what was asked; the message says why and what would help. Exit code 2."""


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for: importlib.metadata takes as long to import as argparse thrice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        from importlib import metadata

        print(f"gpudra {metadata.version('gpudra')}")
        parser.exit()


def build_parser(verbs: Sequence[str] = _VERBS) -> argparse.ArgumentParser:
    """The parser with the given verbs; each verb's module adds its own arguments."""
    parser = argparse.ArgumentParser(
        prog="gpudra", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in verbs:
        import_module(f"driver.cli.{verb}").add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (0: done, 1: the answer is bad news, 2: it could not be asked)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # The agent's start is measured in milliseconds: only the verb that was asked for is imported.
    verbs = tuple(verb for verb in _VERBS if given and given[0] == verb) or _VERBS
    options = build_parser(verbs).parse_args(given)
    try:
        return int(options.run(options))
    except UsageError as err:
        print(f"gpudra {options.verb}: {err}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1


if __name__ == "__main__":
    sys.exit(main())
