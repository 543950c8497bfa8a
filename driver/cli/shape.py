"""``gpudra shape``: what a new node of this kind would publish, as a document, as slices, and compared."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.cli.documents import (
    add_document_arguments,
    add_mig_argument,
    is_named,
    published,
    read_documents,
)
from driver.cli.node import add_name_arguments, add_node_arguments, node_name
from driver.cli.progress import Progress

if TYPE_CHECKING:
    from driver.analysis.documents import Collection
    from driver.analysis.shape import AttributeKinds, Emitted, Shape

_DESCRIPTION = """\
An autoscaler that adds a node has to imagine what it will publish. A shape says it: the devices of all drivers with
what is the same on every node of the kind, which of them share a NUMA node or a PCIe root, and which attributes are
new on each node; without taints and allocations. docs/shape.md describes the document.
"""

_EXPORT = """\
examples:
  gpudra shape export                                       this machine
  gpudra shape export nic-slices.yaml --node                this machine with what another driver publishes on it
  gpudra shape export --cluster --of node-a                 a node of a cluster, all drivers
  gpudra shape export --mock-profile dgx-h100 --format karpenter
                                                            templates and bindings for a cloud provider of Karpenter
formats: shape (the document), slices (ResourceSlices with $(NODE)), cluster-api (annotations), karpenter, kwok
(DRAConfig), configmap, hash
"""

_INSTANTIATE = """\
examples:
  gpudra shape instantiate h100.json --as node-new | kubectl create -f -
  gpudra shape export --mock-profile gb200 | gpudra shape instantiate - --as fake-0 --node-uid "$UID"
"""

_DIFF = """\
examples:
  gpudra shape diff before.json after.json                  two shapes, or files with the slices of one node each
  gpudra shape diff --cluster --of node-a --of node-b       two nodes of a cluster
  gpudra shape diff --cluster --of node-a                   a node and the others of its group
Exit code 0: the same shape; 1: they differ (in software alone: 0, unless --software); 2: a document could not be read.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb and its parts."""
    form = argparse.RawDescriptionHelpFormatter
    verb = subparsers.add_parser(
        "shape", help="what a new node of this kind would publish", description=_DESCRIPTION, formatter_class=form
    )
    parts = verb.add_subparsers(dest="part", metavar="PART", required=True)
    export = parts.add_parser("export", help="make a shape", epilog=_EXPORT, formatter_class=form)
    add_document_arguments(export, what="slices")
    export.add_argument("--node", action="store_true", help="add what the agent would publish on this machine")
    export.add_argument("--of", metavar="NODE", help="the node that is meant, where slices of several were given")
    export.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of nodes of this kind")
    export.add_argument("--format", choices=tuple(_FORMATS), default="shape", help="default: shape")
    export.add_argument("--namespace", default="gpudra-system", help="of the ConfigMap (default: gpudra-system)")
    add_mig_argument(export)
    add_name_arguments(export)
    add_node_arguments(export)
    export.set_defaults(run=_run_export)
    instantiate = parts.add_parser(
        "instantiate", help="slices for an imaginary node", epilog=_INSTANTIATE, formatter_class=form
    )
    instantiate.add_argument("shape", metavar="FILE", help="a shape; - is standard input")
    instantiate.add_argument("--as", dest="name", required=True, metavar="NODE", help="name of the imaginary node")
    instantiate.add_argument("--node-uid", metavar="UID", help="UID of its Node object, for the owner reference")
    instantiate.add_argument("-o", "--output", choices=("yaml", "json"), default="json", help="default: json")
    instantiate.add_argument("--driver-name", default="gpu.nvidia.com", help=argparse.SUPPRESS)
    instantiate.set_defaults(run=_run_instantiate)
    diff = parts.add_parser(
        "diff", help="compare two nodes, or a node and its group", epilog=_DIFF, formatter_class=form
    )
    add_document_arguments(diff, what="two shapes or slices of a node each, or one file with slices of several nodes")
    diff.add_argument("--of", action="append", default=[], metavar="NODE", help="one or two nodes of the documents")
    diff.add_argument("--group-label", metavar="KEY", help="node label that tells node groups apart")
    diff.add_argument("--software", action="store_true", help="differences of versions and modes count too")
    diff.add_argument("--driver-name", default="gpu.nvidia.com", metavar="NAME", help="name of the DRA driver")
    diff.set_defaults(run=_run_diff)


def _kinds(args: argparse.Namespace) -> AttributeKinds:
    from driver.analysis.shape import AttributeKinds
    from driver.publish.kinds import attribute_kinds

    return AttributeKinds(attribute_kinds(args.driver_name))


def _run_export(args: argparse.Namespace) -> int:
    from driver.analysis.shape import ShapeError, export
    from driver.cli.main import UsageError

    here = args.node or args.mock_profile or not is_named(args)
    found = read_documents(args, Progress())
    _tell(found)
    slices = [document.body for document in found.slices]
    node = args.of
    if here:
        node = node or node_name(args)
        slices += published(args, node)
    try:
        shape = export(slices, _kinds(args), node_name=node, labels=_labels(args, found, node), strict=True)
    except ShapeError as error:
        raise UsageError(str(error)) from error
    if not shape.pools:
        raise UsageError(f"no slices of {f'node {node}' if node else 'any node'} were given")
    emitted = _FORMATS[args.format](shape, args, found)
    for dropped in shape.dropped:
        print(f"dropped: {dropped.path}: {dropped.why}", file=sys.stderr)
    for warning in emitted.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    content = emitted.content
    print(content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False))
    return 2 if found.problems else 0


def _tell(found: Collection) -> None:
    for problem in found.problems:
        print(f"unreadable: {problem}", file=sys.stderr)


_LABELS = ("node.kubernetes.io/instance-type",)


def _labels(args: argparse.Namespace, found: Collection, node: str | None) -> dict[str, str]:
    from driver.cli.main import UsageError

    labels = {}
    for document in found.of("Node"):
        if document.body["metadata"].get("name") == node:
            carried = document.body["metadata"].get("labels") or {}
            labels = {key: carried[key] for key in _LABELS if key in carried}
    for text in args.label:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--label {text!r} is not KEY=VALUE")
        labels[key] = value
    return labels


def _cluster_api(shape: Shape, _args: argparse.Namespace, found: Collection) -> Emitted:
    from driver.analysis.lint.expressions import Evaluator, selectors
    from driver.analysis.shape import cluster_api

    evaluator = Evaluator(37)
    classes = {document.name: document.body for document in found.classes}

    def failure(name: str, device: dict[str, Any]) -> str | None:
        expressions = tuple(entry.expression for entry in selectors(classes[name].get("spec") or {}, "spec"))
        failed = evaluator.failure(expressions, shape.drivers[0], device)
        return failed[1] if failed else None

    return cluster_api(shape, classes=list(classes), failure=failure)


def _simple(name: str) -> Any:
    def emit(shape: Shape, args: argparse.Namespace, _found: Collection) -> Emitted:
        from driver.analysis import shape as forms

        if name == "shape":
            return forms.Emitted(shape.document)
        if name == "hash":
            return forms.Emitted(shape.hash)
        if name == "configmap":
            return forms.Emitted(forms.config_map(shape, namespace=args.namespace))
        return {"slices": forms.plain_slices, "karpenter": forms.karpenter, "kwok": forms.kwok}[name](shape)

    return emit


_FORMATS: dict[str, Any] = {
    name: _simple(name) for name in ("shape", "slices", "karpenter", "kwok", "configmap", "hash")
} | {"cluster-api": _cluster_api}


def _run_instantiate(args: argparse.Namespace) -> int:
    from driver.analysis.shape import ShapeError, instantiate, read
    from driver.cli.main import UsageError

    try:
        text = sys.stdin.read() if args.shape == "-" else Path(args.shape).read_text(encoding="utf-8")
        document = json.loads(text)
        shape = read(document if isinstance(document, dict) else {}, _kinds(args))
    except (OSError, ValueError, ShapeError) as error:
        raise UsageError(f"{args.shape}: {error}") from error
    objects = instantiate(shape, args.name, node_uid=args.node_uid)
    if args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2, ensure_ascii=False))
        return 0
    try:
        import yaml
    except ImportError as error:
        raise UsageError("PyYAML is not installed: install gpudra[cli], or ask for -o json") from error
    print(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120), end="")
    return 0


def _run_diff(args: argparse.Namespace) -> int:
    from driver.analysis.shape import differences

    kinds = _kinds(args)
    counted = 0
    pairs, unreadable = _pairs(args, kinds)
    for left, right, names in pairs:
        found = [entry for entry in differences(left, right, kinds) if args.software or not entry.software]
        counted += bool(found)
        if not found:
            print(f"{names[0]} and {names[1]}: the same shape, {left.hash}")
            continue
        print(f"{names[0]} and {names[1]} differ:")
        for entry in found:
            print(f"  {entry}")
    return 2 if unreadable else int(counted > 0)


def _pairs(args: argparse.Namespace, kinds: AttributeKinds) -> tuple[list[tuple[Shape, Shape, tuple[str, str]]], bool]:
    """What is to be compared, with names for people, and whether a document could not be read."""
    from driver.analysis.lint.model import Context, Options
    from driver.analysis.shape import ShapeError, export
    from driver.cli.main import UsageError

    if len(args.files) == 2 and not args.cluster and not args.of:
        (one, bad), (other, worse) = (_shape_of(name, kinds) for name in args.files)
        return [(one, other, (args.files[0], args.files[1]))], bad or worse
    progress = Progress()
    found = read_documents(args, progress)
    _tell(found)
    context = Context(found, Options(kinds=kinds, group_label=args.group_label))
    if len(args.of) == 1:
        groups = [names for names in context.groups.values() if args.of[0] in names]
        others = [name for names in groups[:1] for name in names if name != args.of[0]]
    else:
        others = args.of[1:] or sorted(context.node_slices)[1:]
    first = args.of[0] if args.of else next(iter(sorted(context.node_slices)), "")
    names = [first, *others]
    missing = [name for name in names if name not in context.node_slices]
    if len(names) < 2 or missing:
        what = f"no slices of node {missing[0]}" if missing else f"nothing to compare {first or 'it'} with"
        raise UsageError(f"{what}: give two shapes, or slices (and nodes with their labels) of a group")
    try:
        made = {}
        for number, name in enumerate(names):
            progress("shapes of nodes", number)
            made[name] = export(context.node_slices[name], kinds, node_name=name)
    except ShapeError as error:
        raise UsageError(str(error)) from error
    return [(made[first], made[name], (first, name)) for name in others], bool(found.problems)


def _shape_of(name: str, kinds: AttributeKinds) -> tuple[Shape, bool]:
    """Of a file that holds a shape, or the slices of one node; and whether something in it could not be read."""
    from driver.analysis.documents import load
    from driver.analysis.shape import KIND, ShapeError, export, read
    from driver.cli.main import UsageError

    found = load([Path(name)])
    _tell(found)
    written = found.of(KIND)
    try:
        shape = read(written[0].body, kinds) if written else export([d.body for d in found.slices], kinds, strict=True)
    except ShapeError as error:
        raise UsageError(f"{name}: {error}") from error
    if not shape.pools:
        raise UsageError(f"{name}: holds neither a shape nor slices of a node")
    return shape, bool(found.problems)
