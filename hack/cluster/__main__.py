"""The command line: ``python -m hack.cluster build|up|down|status|logs|test``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import agent, binaries, lifecycle
from .components import START_ORDER
from .layout import ClusterError, Layout

TESTED = ("tests/cluster", "tests/contract/apiserver", "tests/kubelet")
DECIDED = "tests/scheduler"
"""Needs no node; its fixture starts a control plane, after the cluster of the others has ended."""
NOTHING_COLLECTED = 5
"""Exit status of pytest."""


def main() -> int:
    """Run one verb; the exit status is 0, or 1 with a sentence on standard error."""
    arguments = _parser().parse_args()
    try:
        layout = Layout.default()
        return int(_VERBS[arguments.verb](layout, arguments) or 0)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.cluster",
        description="A real one-node Kubernetes cluster.",
        epilog="GPUDRA_CLUSTER_DIR moves its folder from /var/tmp/gpudra-cluster.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    build = verbs.add_parser("build", help="build the programs that are missing into the cache (15 minutes at first)")
    up = verbs.add_parser("up", help="build, start and wait until the node is ready; print the KUBECONFIG line")
    test = verbs.add_parser("test", help=f"up, pytest on {', '.join(TESTED)}, down; then {DECIDED}")
    for verb in (build, up, test):
        verb.add_argument(
            "--k8s",
            default=binaries.DEFAULT_VERSION,
            metavar="VERSION",
            help="Kubernetes version, 1.37 or 1.37.2 (default: %(default)s)",
        )
    up.add_argument("--agent", action="store_true", help="start the agent too, on a mock node")
    up.add_argument("--control-plane", action="store_true", help="no node: only what decides about pods")
    up.add_argument("--profile", default="dgx-h100", metavar="NAME|FILE", help="mock node for --agent")
    up.add_argument("--owner", type=int, metavar="PID", help="end the cluster when this process ends, however it ends")
    test.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="arguments for pytest (after --)")
    verbs.add_parser("down", help="end everything and remove its folder; harmless when nothing runs")
    verbs.add_parser("status", help="say what runs")
    logs = verbs.add_parser("logs", help="print or follow a component's log")
    logs.add_argument("component", choices=[*START_ORDER, "init", "guard", "agent", "audit"])
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing")
    guard = verbs.add_parser("guard", help="used by up --owner: wait for that process and end the cluster")
    guard.add_argument("--owner", type=int, required=True, metavar="PID")
    return parser


def _build(_: Layout, arguments: argparse.Namespace) -> None:
    version = binaries.resolve(arguments.k8s)
    print(f"programs of Kubernetes {version}: {binaries.build(version)}")


def _up(layout: Layout, arguments: argparse.Namespace) -> None:
    version = binaries.resolve(arguments.k8s)
    state = lifecycle.up(layout, version, owner=arguments.owner, control_plane=arguments.control_plane)
    if arguments.agent:
        mock = agent.Agent(layout, arguments.profile)
        mock.ensure()
        print(f"the agent runs on a mock {arguments.profile}, log {mock.log}")
    print(f"export KUBECONFIG={layout.kubeconfig()}")
    print(f"export PATH={state.binaries}:$PATH  # kubectl")


def _test(layout: Layout, arguments: argparse.Namespace) -> int:
    """Run the tests. When this process is killed, they and the cluster end. A cluster that ran before stays."""
    version = binaries.resolve(arguments.k8s)
    on_node, deciding, options = _chosen(arguments.pytest)
    codes = []
    if on_node:
        codes.append(_test_on_node(layout, version, [*on_node, *options]))
    if deciding:
        codes.append(_pytest([*deciding, *options], {"GPUDRA_TEST_K8S": version}))
    ran = [code for code in codes if code != NOTHING_COLLECTED]
    return next((code for code in ran if code), 0) if ran else NOTHING_COLLECTED


def _chosen(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Tests that need the node, tests that need a control plane, and options, from arguments for pytest."""
    named = [argument for argument in arguments if argument.startswith("tests/")]
    options = [argument for argument in arguments if argument not in named]
    deciding = [argument for argument in named if argument.startswith(DECIDED)]
    on_node = [argument for argument in named if argument not in deciding]
    return (on_node, deciding, options) if named else (list(TESTED), [DECIDED], options)


def _test_on_node(layout: Layout, version: str, arguments: Sequence[str]) -> int:
    ours = not lifecycle.is_running(layout)
    state = lifecycle.up(layout, version, owner=os.getpid())
    environment = {
        "GPUDRA_TEST_APISERVER": state.server,
        "GPUDRA_TEST_TOKEN": layout.token().read_text(),
        "GPUDRA_TEST_CA": str(layout.ca),
    }
    try:
        return _pytest(arguments, environment)
    finally:
        if ours and not os.environ.get("GPUDRA_CLUSTER_KEEP"):
            lifecycle.down(layout)


def _pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    ended_with_us = ("setpriv", "--pdeathsig", "TERM")
    command = [*ended_with_us, sys.executable, "-m", "pytest", "-p", "no:xdist", *arguments]
    repository = Path(__file__).parents[2]
    return subprocess.run(command, cwd=repository, env=os.environ | environment, check=False).returncode


def _down(layout: Layout, _: argparse.Namespace) -> None:
    lifecycle.down(layout)
    print("the cluster is gone")


def _status(layout: Layout, _: argparse.Namespace) -> int:
    for name, text in lifecycle.status(layout).items():
        print(f"{name:24} {text}")
    return 0 if lifecycle.is_running(layout) else 3


def _logs(layout: Layout, arguments: argparse.Namespace) -> int:
    follow = ["-F"] if arguments.follow else []
    return subprocess.run(["tail", "-n", "+1", *follow, str(layout.log(arguments.component))], check=False).returncode


def _guard(layout: Layout, arguments: argparse.Namespace) -> None:
    lifecycle.guard(layout, arguments.owner)


_VERBS = {"build": _build, "up": _up, "down": _down, "status": _status, "logs": _logs, "test": _test, "guard": _guard}

if __name__ == "__main__":
    sys.exit(main())
