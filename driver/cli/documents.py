"""Where the verbs of the analysis get their documents from: files, standard input, a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from driver.analysis.documents import Collection, Progress, load, read_text
from driver.cli.node import read_node
from driver.model import MigSupport

JSON: TypeAlias = dict[str, Any]
STDIN = "-"


def add_document_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """The flags that name files and a cluster."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help=f"{what}: YAML or JSON, folders too; - is standard input"
    )
    group = parser.add_argument_group("a cluster")
    group.add_argument("--cluster", action="store_true", help="read what a cluster has now (get and list suffice)")
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="default: the pod's own account, $KUBECONFIG, ~/.kube/config"
    )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")


def read_documents(args: argparse.Namespace, progress: Progress) -> Collection:
    """Read what ``add_document_arguments`` names.

    Raises:
        UsageError: no cluster can be asked.
    """
    found = load((Path(name) for name in args.files if name != STDIN), progress=progress)
    if STDIN in args.files:
        found += read_text(sys.stdin.read(), "stdin", progress=progress)
    if args.cluster or args.kubeconfig or args.context:
        from driver.cli.cluster import connect, read_cluster

        found += read_cluster(connect(args.kubeconfig, args.context), progress=progress)
    return found


def add_mig_argument(parser: argparse.ArgumentParser) -> None:
    """The agent's setting, for what it would publish."""
    choices = [support.value for support in MigSupport]
    text = "what is done with MIG (default: static); dynamic: as where the API server keeps counters"
    parser.add_argument("--mig", choices=choices, default=MigSupport.STATIC.value, help=text)


def published(args: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """The slices that the agent would publish, without taints; what is withheld is told on standard error.

    Raises:
        UsageError: a name that cannot be, or a machine that cannot be read.
    """
    from driver.cli.main import UsageError
    from driver.publish import build_pool, pool_name, slice_objects

    try:
        pool_name(name, args.driver_name)  # a wrong name is told before the node is read
    except ValueError as error:
        raise UsageError(str(error)) from error
    mig = MigSupport(args.mig)
    counters = mig is MigSupport.DYNAMIC
    inventory = read_node(args, mig=counters)
    pool = build_pool(inventory, node_name=name, driver_name=args.driver_name, mig=mig, counters=counters)
    for withheld in pool.withheld:
        print(f"not published: {withheld.device}: {withheld.reason}", file=sys.stderr)
    return list(slice_objects(pool, node_name=name, driver_name=args.driver_name))


def is_named(args: argparse.Namespace) -> bool:
    """Whether any document was asked for."""
    return bool(args.files or args.cluster or args.kubeconfig or args.context)


def validators() -> dict[str, Callable[[JSON], Iterable[tuple[str, str]]]]:
    """Kind -> the API server's rules."""
    from kubeletplugin.validation import validate_claim, validate_slice

    def slices(body: JSON) -> list[tuple[str, str]]:
        return [(error.field, error.body) for error in validate_slice(_without_nulls(body["spec"]))]

    def claims(body: JSON) -> list[tuple[str, str]]:
        return [(error.field, error.body) for error in validate_claim(_without_nulls(body["spec"]))]

    def claim_templates(body: JSON) -> list[tuple[str, str]]:
        return [(f"spec.{field}", message) for field, message in claims(body["spec"])]

    return {"ResourceSlice": slices, "ResourceClaim": claims, "ResourceClaimTemplate": claim_templates}


def _without_nulls(value: Any) -> Any:
    """As the API server reads it: a field that is null (``value:`` in YAML) is not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
