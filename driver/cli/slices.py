"""``gpudra slices``: the ResourceSlices that the agent would publish for a node."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from driver.cli.node import add_name_arguments, add_node_arguments, node_name, read_node

if TYPE_CHECKING:
    from driver.inventory.filters import Policy

_DESCRIPTION = """\
Print the ResourceSlices that the agent would publish for this node, without a cluster: what schedulers and
autoscalers will read, what claims can select on, what the API server would check. Each attribute is explained in
docs/attributes.md.

GPUs that would not be published are named on standard error, with the reason.
"""

_EXAMPLES = """\
examples:
  gpudra slices                                          this node, as YAML
  gpudra slices --mock-profile dgx-a100 -o json          a DGX A100 that is not here, as a list of objects
  gpudra slices --mock-profile h200 --mig dynamic        with every partition that can be made, and its counters
  gpudra slices --node-name node-a | kubectl create --dry-run=server -f -
                                                         let a real API server judge them
"""


_OFFER = {
    "--allow-devices": "'model=NVIDIA A100*'",
    "--deny-devices": "index=0,index=3",
    "--passthrough-devices": "0000:1b:00.0",
    "--shares": """'{"index=7": 4}'""",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "slices",
        help="the ResourceSlices that would be published",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument(
        "--mig",
        choices=("off", "static", "dynamic"),
        default="static",
        help="as the agent's flag; dynamic shows what is published where the API server keeps counters (default: "
        "static)",
    )
    parser.add_argument(
        "--device-order", choices=("pack", "spread"), default="pack", help="as the agent's flag (default: pack)"
    )
    for flag, example in _OFFER.items():
        parser.add_argument(flag, default="", metavar="GPUS", help=f"as the agent's flag, for example {example}")
    add_name_arguments(parser)
    add_node_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the objects."""
    from driver.cli.main import UsageError
    from driver.inventory.filters import offered
    from driver.model import MigSupport
    from driver.publish import DeviceOrder, build_pool, pool_name, slice_objects

    name = node_name(args)
    try:
        pool_name(name, args.driver_name)  # a wrong name is told before the node is read
    except ValueError as error:
        raise UsageError(str(error)) from error
    dump = _yaml if args.output == "yaml" else _json
    mig = MigSupport(args.mig)
    dynamic = mig is MigSupport.DYNAMIC
    policy = _policy(args)
    done = offered(read_node(args, mig=dynamic), policy)
    pool = build_pool(
        done.inventory,
        node_name=name,
        driver_name=args.driver_name,
        mig=mig,
        order=DeviceOrder(args.device_order),
        counters=dynamic,
    )
    text = dump(slice_objects(pool, node_name=name, driver_name=args.driver_name))
    for problem in done.withheld:
        print(f"not published: {problem.subject}: {problem.message}", file=sys.stderr)
    for withheld in pool.withheld:
        print(f"not published: {withheld.device}: {withheld.reason}", file=sys.stderr)
    print(text, end="")
    return 0


def _policy(args: argparse.Namespace) -> Policy:
    from driver.cli.main import UsageError
    from driver.inventory.filters import Policy, parse_selectors, parse_shares

    try:
        return Policy(
            parse_selectors(args.allow_devices),
            parse_selectors(args.deny_devices),
            shares=parse_shares(args.shares),
            passthrough=parse_selectors(args.passthrough_devices),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _json(objects: Sequence[dict[str, Any]]) -> str:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return json.dumps(listed, indent=2, ensure_ascii=False) + "\n"


def _yaml(objects: Sequence[dict[str, Any]]) -> str:
    try:
        import yaml
    except ImportError as error:
        from driver.cli.main import UsageError

        raise UsageError("PyYAML is not installed: install gpudra[cli], or ask for -o json") from error
    return str(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120))
