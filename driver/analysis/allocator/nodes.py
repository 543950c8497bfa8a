"""Which nodes a slice or device belongs to: node names, all nodes, and node selectors with their operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .fields import Document, DocumentError, Reader

_REQUIREMENT: Final = frozenset(("key", "operator", "values"))


@dataclass(frozen=True, slots=True)
class Node:
    """What of a Node counts here."""

    name: str
    labels: Mapping[str, str]
    declared: frozenset[str]


def node(value: Document) -> Node:
    """Read a Node document.

    Raises:
        DocumentError: it cannot be read.
    """
    whole = Reader(value, "Node", [])
    metadata = whole.need("metadata")
    labels = metadata.sub("labels")
    status = whole.sub("status")
    declared = (status.texts("declaredFeatures") if status else None) or ()
    found = {key: str(label) for key, label in labels.raw.items()} if labels else {}
    return Node(metadata.text("name"), found, frozenset(declared))


Test = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms of which one must match; ``error`` is what is wrong with it, which ends an attempt that looks at it."""

    document: Mapping[str, Any]
    terms: tuple[Test, ...]
    count: int
    error: str = ""

    def matches(self, where: Node) -> bool:
        """Whether the node is selected.

        Raises:
            SelectorError: the selector is not valid.
        """
        if self.error:
            raise SelectorError(self.error)
        return any(term(where) for term in self.terms)


class SelectorError(ValueError):
    """A node selector that upstream cannot parse."""


def selector(reader: Reader | None) -> NodeSelector | None:
    """Read a NodeSelector."""
    if reader is None:
        return None
    terms: list[Test] = []
    problems: list[str] = []
    count = 0
    for term in reader.each("nodeSelectorTerms"):
        count += 1
        tests = [_label(each, problems) for each in term.each("matchExpressions")]
        tests += [_field(each, problems) for each in term.each("matchFields")]
        if tests:
            terms.append(_all(tests))
    return NodeSelector(reader.raw, tuple(terms), count, "; ".join(problems))


def _all(tests: list[Test]) -> Test:
    return lambda where: all(test(where) for test in tests)


def _parts(reader: Reader) -> tuple[str, str, tuple[str, ...]]:
    reader.known(_REQUIREMENT)
    return reader.text("key"), reader.text("operator"), reader.texts("values") or ()


def _label(reader: Reader, problems: list[str]) -> Test:
    key, operator, values = _parts(reader)
    wants_values = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False, "Gt": True, "Lt": True}
    if operator not in wants_values:
        problems.append(f"{reader.path}.operator: unsupported value {operator!r}")
    elif wants_values[operator] != bool(values) or (operator in ("Gt", "Lt") and len(values) != 1):
        problems.append(f"{reader.path}.values: wrong number of values for {operator}")
    elif operator in ("Gt", "Lt") and _integer(values[0]) is None:
        problems.append(f"{reader.path}.values: for {operator} the value must be an integer")
    tests: dict[str, Test] = {
        "In": lambda where: where.labels.get(key) in values,
        "NotIn": lambda where: key not in where.labels or where.labels[key] not in values,
        "Exists": lambda where: key in where.labels,
        "DoesNotExist": lambda where: key not in where.labels,
        "Gt": lambda where: _compares(where.labels.get(key), values[0], 1),
        "Lt": lambda where: _compares(where.labels.get(key), values[0], -1),
    }
    return tests.get(operator, lambda _: False)


def _integer(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def _compares(label: str | None, bound: str, sign: int) -> bool:
    value, limit = _integer(label) if label is not None else None, _integer(bound)
    return value is not None and limit is not None and (value > limit) - (value < limit) == sign


def _field(reader: Reader, problems: list[str]) -> Test:
    key, operator, values = _parts(reader)
    if operator not in ("In", "NotIn"):
        problems.append(f"{reader.path}.operator: unsupported value {operator!r}")
    elif len(values) != 1:
        problems.append(f"{reader.path}.values: must have one element")
    value = values[0] if values else ""

    def name(where: Node) -> str:
        return where.name if key == "metadata.name" else ""

    if operator == "NotIn":
        return lambda where: not where.name or name(where) != value
    return lambda where: not where.name or name(where) == value


def node_matches(where: Node, name: str, all_nodes: bool, chosen: NodeSelector | None) -> bool:
    """Whether a slice or device with this node selection is there for the node.

    Raises:
        SelectorError: the selector is not valid.
    """
    if name:
        return where.name == name
    if all_nodes:
        return True
    return chosen is not None and chosen.matches(where)


__all__ = ["DocumentError", "Node", "NodeSelector", "SelectorError", "node", "node_matches", "selector"]
