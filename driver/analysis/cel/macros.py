"""The macros of CEL and its two-variable and optional extensions, expanded to folds as upstream expands them.

The expansion matters beyond its value: the runtime cost of an expression is the cost of what it expands to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .errors import CompileError
from .tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select

ACCUMULATOR: Final = "@result"
_SORTED: Final = "@__sortBy_input__"


def expand(name: str, target: Node | None, args: list[Node], position: int, source: str) -> Node | None:
    """What a call of this shape expands to, or None where it is no macro.

    Raises:
        CompileError: a macro with an argument that is no plain name.
    """
    if target is None:
        return _has(args, position, source) if (name, len(args)) == ("has", 1) else None
    if isinstance(target, Ident) and target.name == "cel" and (name, len(args)) == ("bind", 3):
        return _bind(args, position, source)
    maker = _MACROS.get((name, len(args)))
    return maker(target, args, position, source) if maker else None


def _has(args: list[Node], position: int, source: str) -> Node:
    field = args[0]
    if not isinstance(field, Select) or field.optional:
        raise CompileError("invalid argument to has() macro", source, position)
    return Select(field.position, field.operand, field.name, test=True)


def _variable(node: Node, source: str) -> str:
    if not isinstance(node, Ident):
        raise CompileError("argument must be a simple name", source, node.position)
    if node.name == ACCUMULATOR:
        raise CompileError("iteration variable overwrites accumulator variable", source, node.position)
    return node.name


def _accu(position: int) -> Ident:
    return Ident(position, ACCUMULATOR)


def _true(position: int) -> Literal:
    return Literal(position, "bool", True)


def _all(names: int) -> Callable[..., Node]:
    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        condition = Call(at, "@not_strictly_false", [_accu(at)])
        step = Call(at, "_&&_", [_accu(at), args[names]])
        return _fold(target, args[:names], at, source, (_true(at), condition, step, _accu(at)))

    return make


def _exists(names: int) -> Callable[..., Node]:
    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        condition = Call(at, "@not_strictly_false", [Call(at, "!_", [_accu(at)])])
        step = Call(at, "_||_", [_accu(at), args[names]])
        return _fold(target, args[:names], at, source, (Literal(at, "bool", False), condition, step, _accu(at)))

    return make


def _exists_one(names: int) -> Callable[..., Node]:
    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        more = Call(at, "_+_", [_accu(at), Literal(at, "int", 1)])
        step = Call(at, "_?_:_", [args[names], more, _accu(at)])
        result = Call(at, "_==_", [_accu(at), Literal(at, "int", 1)])
        return _fold(target, args[:names], at, source, (Literal(at, "int", 0), _true(at), step, result))

    return make


def _listing(names: int, filtered: bool) -> Callable[..., Node]:
    """``map`` and ``transformList``, with or without a filter before the transformation."""

    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        step: Node = Call(at, "_+_", [_accu(at), ListNode(at, [args[-1]])])
        if filtered:
            step = Call(at, "_?_:_", [args[names], step, _accu(at)])
        return _fold(target, args[:names], at, source, (ListNode(at, []), _true(at), step, _accu(at)))

    return make


def _filter(target: Node, args: list[Node], at: int, source: str) -> Node:
    more = Call(at, "_+_", [_accu(at), ListNode(at, [args[0]])])
    step = Call(at, "_?_:_", [args[1], more, _accu(at)])
    return _fold(target, args[:1], at, source, (ListNode(at, []), _true(at), step, _accu(at)))


def _mapping(filtered: bool, entry: bool) -> Callable[..., Node]:
    """``transformMap`` and ``transformMapEntry``."""

    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        put = [_accu(at), args[-1]] if entry else [_accu(at), args[0], args[-1]]
        step: Node = Call(at, "cel.@mapInsert", put)
        if filtered:
            step = Call(at, "_?_:_", [args[2], step, _accu(at)])
        return _fold(target, args[:2], at, source, (MapNode(at, []), _true(at), step, _accu(at)))

    return make


def _fold(target: Node, names: list[Node], at: int, source: str, parts: tuple[Node, Node, Node, Node]) -> Node:
    variables = [_variable(node, source) for node in names]
    if len(variables) == 2 and variables[0] == variables[1]:
        raise CompileError(f"duplicate variable name: {variables[0]}", source, names[1].position)
    second = variables[1] if len(variables) == 2 else ""
    return Fold(at, target, variables[0], second, ACCUMULATOR, *parts)


def _bind(args: list[Node], at: int, source: str) -> Node:
    return _let(_variable(args[0], source), args[1], args[2], at)


def _let(name: str, value: Node, result: Node, at: int) -> Node:
    """A fold over nothing whose accumulator is the variable: how upstream binds a name."""
    return Fold(at, ListNode(at, []), "#unused", "", name, value, Literal(at, "bool", False), Ident(at, name), result)


def _sort_by(target: Node, args: list[Node], at: int, source: str) -> Node:
    if isinstance(target, (Literal, MapNode)):
        raise CompileError("sortBy can only be applied to a list or to what gives one", source, target.position)
    keys = _listing(1, filtered=False)(Ident(at, _SORTED), args, at, source)
    return _let(_SORTED, target, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, _SORTED)), at)


def _optional(flat: bool) -> Callable[..., Node]:
    def make(target: Node, args: list[Node], at: int, source: str) -> Node:
        name = _variable(args[0], source)
        inner = _let(name, Call(at, "value", [], target), args[1], at)
        some = inner if flat else Call(at, "optional.of", [inner])
        return Call(at, "_?_:_", [Call(at, "hasValue", [], target), some, Call(at, "optional.none", [])])

    return make


_MACROS: Final[dict[tuple[str, int], Callable[..., Node]]] = {
    ("all", 2): _all(1),
    ("all", 3): _all(2),
    ("exists", 2): _exists(1),
    ("exists", 3): _exists(2),
    ("exists_one", 2): _exists_one(1),
    ("existsOne", 2): _exists_one(1),
    ("exists_one", 3): _exists_one(2),
    ("existsOne", 3): _exists_one(2),
    ("map", 2): _listing(1, filtered=False),
    ("map", 3): _listing(1, filtered=True),
    ("filter", 2): _filter,
    ("transformList", 3): _listing(2, filtered=False),
    ("transformList", 4): _listing(2, filtered=True),
    ("transformMap", 3): _mapping(filtered=False, entry=False),
    ("transformMap", 4): _mapping(filtered=True, entry=False),
    ("transformMapEntry", 3): _mapping(filtered=False, entry=True),
    ("transformMapEntry", 4): _mapping(filtered=True, entry=True),
    ("sortBy", 2): _sort_by,
    ("optMap", 2): _optional(flat=False),
    ("optFlatMap", 2): _optional(flat=True),
}
