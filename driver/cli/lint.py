"""``gpudra lint``: what in documents or in a cluster will mislead the scheduler or an autoscaler."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from driver.cli.documents import (
    add_document_arguments,
    add_mig_argument,
    is_named,
    published,
    read_documents,
    validators,
)
from driver.cli.node import add_name_arguments, add_node_arguments, node_name
from driver.cli.progress import Progress

if TYPE_CHECKING:
    from driver.analysis.documents import Collection
    from driver.analysis.lint import Report, Rule

_DESCRIPTION = """\
Look for what the API server accepts and what still makes decisions go wrong: slices that an autoscaler cannot copy,
selectors that fail on some device, claims that no new node can ever meet. docs/lint.md explains each rule.

Exit code 0: nothing as bad as --fail-on says; 1: something is; 2: a document could not be read, or nothing could be
asked.
"""

_EXAMPLES = """\
examples:
  gpudra lint deploy/ claims.yaml                           files and folders
  kubectl get resourceslices,deviceclasses -o json | gpudra lint -
                                                            what kubectl gives
  gpudra lint --cluster --fail-on error                     what the current cluster has, for CI
  gpudra lint --node deviceclasses.yaml                     what this machine would publish, with these classes
  gpudra lint --mock-profile dgx-h100 -o sarif              a machine that is not here, as SARIF
  gpudra lint --list                                        the rules
"""

_DEFAULT_THRESHOLD = "warning"
_NEVER = "never"
_SHOWN = 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "lint",
        help="what will mislead the scheduler or an autoscaler",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_document_arguments(parser, what="slices, classes, claims, pods, nodes, DaemonSets")
    parser.add_argument("-o", "--output", choices=("text", "json", "sarif"), default="text", help="default: text")
    parser.add_argument(
        "--select", action="append", default=[], metavar="RULE", help="only these (A06, A1, node-local)"
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="RULE", help="all but these")
    parser.add_argument(
        "--fail-on",
        choices=("note", "warning", "error", _NEVER),
        default=_DEFAULT_THRESHOLD,
        help=f"the least severity that makes the exit code 1 (default: {_DEFAULT_THRESHOLD})",
    )
    parser.add_argument("--brief", action="store_true", help="text without why and remedy")
    parser.add_argument("--all", action="store_true", help=f"text with more than {_SHOWN} findings of a rule")
    parser.add_argument("--list", action="store_true", help="print the rules and exit")
    parser.add_argument("--group-label", metavar="KEY", help="node label that tells node groups apart")
    parser.add_argument(
        "--k8s", type=_release, default=37, metavar="1.NN", help="release whose CEL counts (default: 1.37)"
    )
    parser.add_argument("--node", action="store_true", help="look at what the agent would publish on this machine")
    add_mig_argument(parser)
    add_name_arguments(parser)
    add_node_arguments(parser)
    parser.set_defaults(run=run)


def _release(text: str) -> int:
    major, _, minor = text.partition(".")
    if major != "1" or not minor.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no release of Kubernetes such as 1.36")
    return int(minor)


def run(args: argparse.Namespace) -> int:
    """Print the report; 0, 1 or 2 as the description says."""
    from driver.analysis.lint import RULES, Options, Severity, UnknownRuleError, chosen, lint
    from driver.analysis.shape import AttributeKinds
    from driver.cli.main import UsageError
    from driver.publish.kinds import attribute_kinds

    try:
        rules = chosen(_names(args.select), _names(args.ignore))
    except UnknownRuleError as error:
        raise UsageError(str(error)) from error
    if args.list:
        _list(RULES)
        return 0
    progress = Progress()
    options = Options(
        kinds=AttributeKinds(attribute_kinds(args.driver_name)),
        release=args.k8s,
        group_label=args.group_label,
        validators=validators(),
        progress=progress,
    )
    report = lint(_documents(args, progress), options, rules=rules)
    _print(report, args)
    if report.problems:
        return 2
    threshold = None if args.fail_on == _NEVER else Severity(args.fail_on)
    return int(report.failed(threshold))


def _names(given: list[str]) -> list[str]:
    return [name for part in given for name in part.split(",") if name]


def _documents(args: argparse.Namespace, progress: Progress) -> Collection:
    from driver.cli.main import UsageError

    here = args.node or args.mock_profile
    if not here and not is_named(args):
        raise UsageError("nothing to look at: name files, or --cluster, --node or --mock-profile")
    found = read_documents(args, progress)
    return found + _published(args) if here else found


def _published(args: argparse.Namespace) -> Collection:
    from driver.analysis.document_text import Value
    from driver.analysis.documents import collect

    name = node_name(args)
    return collect([Value(body) for body in published(args, name)], f"node {name}")


def _print(report: Report, args: argparse.Namespace) -> None:
    from importlib import metadata

    from driver.analysis.lint import as_json, sarif, text

    if args.output == "text":
        for line in text(report, explain=not args.brief, limit=None if args.all else _SHOWN):
            print(line)
        return
    document = as_json(report) if args.output == "json" else sarif(report, version=metadata.version("gpudra"))
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _list(rules: tuple[Rule, ...]) -> None:
    for rule in rules:
        print(f"{rule.id}  {rule.severity.value:<8}{rule.name:<28}{rule.title}")
