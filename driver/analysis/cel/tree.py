"""The syntax tree: what the parser makes, the checker types and the planner compiles."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Node:
    """Any expression; ``position`` is the offset of its operator or first character."""

    position: int


@dataclass(slots=True)
class Literal(Node):
    """A constant of a scalar type."""

    type: str
    value: object


@dataclass(slots=True)
class Ident(Node):
    """A variable, or the first part of a qualified name."""

    name: str


@dataclass(slots=True)
class Select(Node):
    """``operand.name``; ``test`` for ``has(operand.name)``; ``optional`` for ``operand.?name``."""

    operand: Node
    name: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True)
class Call(Node):
    """An operator or function; ``target`` is the receiver of a method."""

    function: str
    args: list[Node]
    target: Node | None = None


@dataclass(slots=True)
class ListNode(Node):
    """``[a, ?b]``; ``optional`` holds the indexes of the entries with a question mark."""

    entries: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True)
class MapNode(Node):
    """``{k: v}``."""

    entries: list[tuple[Node, Node]]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True)
class Fold(Node):
    """What the macros expand to: a loop with an accumulator. ``second`` is the second variable, if any."""

    range: Node
    variable: str
    second: str
    accumulator: str
    initial: Node
    condition: Node
    step: Node
    result: Node
    reads: list[str] = field(default_factory=list)


def qualified(node: Node) -> str:
    """``a.b.c`` where the node is made of plain selections, else nothing."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test and not node.optional:
        before = qualified(node.operand)
        return f"{before}.{node.name}" if before else ""
    return ""
