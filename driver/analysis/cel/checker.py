"""Types an expression: finds what upstream's compiler would refuse, and which functions are meant."""

from __future__ import annotations

from typing import Final

from . import regex
from .environment import Environment
from .errors import CompileError, UnsupportedError
from .overloads import Overload
from .tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from .types import BOOL, DEVICE, DYN, STRING, WILD, Substitution, Type, list_of, map_of, optional_of

_LOGIC: Final = frozenset(("_&&_", "_||_"))
_TYPE_NAMES: Final = frozenset(
    ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver", "google.protobuf.Duration")
)
_PATTERNS: Final = frozenset(("matches", "find", "findAll"))


def qualified(node: Node) -> str:
    """``a.b.c`` where the node is made of plain selections, else nothing."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test and not node.optional:
        before = qualified(node.operand)
        return f"{before}.{node.name}" if before else ""
    return ""


class Checker:
    """Types one expression; ``chosen`` holds the overloads a call may mean, ``names`` the full names of functions."""

    def __init__(self, source: str, environment: Environment) -> None:
        self.source = source
        self._environment = environment
        self._types = Substitution()
        self._scopes: list[dict[str, Type]] = [{"device": DEVICE}]
        self._literals: list[list[tuple[Node, Type]]] = []
        self.chosen: dict[int, list[Overload]] = {}
        self.names: dict[int, str] = {}

    def check(self, tree: Node) -> Type:
        """The type of the whole expression.

        Raises:
            CompileError: upstream would not compile it.
            UnsupportedError: it uses what upstream has and this evaluator has not.
        """
        type_ = self._types.settled(self._type(tree))
        for entries in self._literals:
            self._homogeneous(entries)
        return type_

    def _homogeneous(self, entries: list[tuple[Node, Type]]) -> None:
        """The elements of a literal have one type; one that is known only to a run is another (ASTValidators)."""
        first = self._types.settled(entries[0][1])
        for node, type_ in entries[1:]:
            this = self._types.settled(type_)
            if this != first:
                raise self._error(node, f"expected type '{first}' but found '{this}'")

    def _error(self, node: Node, message: str) -> CompileError:
        return CompileError(message, self.source, node.position)

    def _type(self, node: Node) -> Type:
        if isinstance(node, Literal):
            return Type(node.type)
        if isinstance(node, Ident):
            return self._ident(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListNode):
            return self._list(node)
        if isinstance(node, MapNode):
            return self._map(node)
        if isinstance(node, Fold):
            return self._fold(node)
        raise self._error(node, "unexpected expression")

    def _ident(self, node: Ident) -> Type:
        for scope in reversed(self._scopes):
            if node.name in scope:
                return scope[node.name]
        if node.name in ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"):
            return Type("type")
        raise self._error(node, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Type:
        if qualified(node) in _TYPE_NAMES:
            self.names[id(node)] = qualified(node)
            return Type("type")
        operand = self._types.settled(self._type(node.operand), leave=True)
        optional = operand.name == "optional"
        if optional:
            operand = self._types.settled(operand.of[0], leave=True)
        field = self._field(node, operand)
        if node.test:
            return BOOL
        return optional_of(field) if optional or node.optional else field

    def _field(self, node: Select, operand: Type) -> Type:
        if operand.name == "map":
            if not self._types.all_assignable([operand.of[0]], [STRING]):
                raise self._error(node, f"type '{operand}' does not support field selection")
            return operand.of[1]
        if operand == DEVICE:
            field = self._environment.fields.get(node.name)
            if field is None:
                raise self._error(node, f"undefined field '{node.name}'")
            return field
        if operand.name in WILD or operand.is_parameter:
            return DYN
        raise self._error(node, f"type '{operand}' does not support field selection")

    def _call(self, node: Call) -> Type:
        if node.function in _LOGIC or node.function == "_?_:_":
            return self._logic(node)
        if node.function in ("_[_]", "_[?_]"):
            return self._index(node)
        name = self._function_name(node)
        if node.target is not None and node.function in ("or", "orValue") and name == node.function:
            return self._or(node)
        args = [self._type(each) for each in node.args]
        if node.target is not None and name == node.function:
            args.insert(0, self._type(node.target))
        member = node.target is not None and name == node.function
        self.names[id(node)] = name
        self._literal_pattern(node, name)
        return self._resolve(node, name, member, args)

    def _function_name(self, node: Call) -> str:
        if node.target is None:
            return node.function
        before = qualified(node.target)
        whole = f"{before}.{node.function}" if before else ""
        if whole in self._environment.unsupported:
            raise UnsupportedError(f"the function {whole} is not supported", self.source, node.position)
        return whole if whole in self._environment.functions else node.function

    def _resolve(self, node: Call, name: str, member: bool, args: list[Type]) -> Type:
        candidates = [each for each in self._environment.functions.get(name, ()) if each.member == member]
        if name in self._environment.unsupported:
            raise UnsupportedError(f"the function {name} is not supported", self.source, node.position)
        if not candidates and name not in self._environment.functions:
            raise self._error(node, f"undeclared reference to '{name}' (in container '')")
        found: list[Overload] = []
        result: Type | None = None
        for overload in candidates:
            *params, this = self._types.fresh([*overload.params, overload.result])
            if not self._types.all_assignable(args, params):
                continue
            found.append(overload)
            this = self._types.settled(this, leave=True)
            result = this if result is None or self._same(result, this) else DYN
        if result is None:
            shown = ", ".join(str(self._types.settled(each)) for each in args)
            raise self._error(node, f"found no matching overload for '{name}' applied to '({shown})'")
        self.chosen[id(node)] = found
        return result

    def _same(self, one: Type, other: Type) -> bool:
        return self._types.settled(one) == self._types.settled(other)

    def _logic(self, node: Call) -> Type:
        args = [self._type(each) for each in node.args]
        wanted = [BOOL] if node.function == "_?_:_" else [BOOL] * len(args)
        if not self._types.all_assignable(args[: len(wanted)], wanted):
            shown = ", ".join(str(self._types.settled(each)) for each in args)
            raise self._error(node, f"found no matching overload for '{node.function}' applied to '({shown})'")
        if node.function != "_?_:_":
            return BOOL
        parameter = self._types.unknown()
        if not self._types.all_assignable(args[1:], [parameter, parameter]):
            shown = ", ".join(str(self._types.settled(each)) for each in args)
            raise self._error(node, f"found no matching overload for '_?_:_' applied to '({shown})'")
        return self._types.settled(parameter, leave=True)

    def _index(self, node: Call) -> Type:
        args = [self._type(each) for each in node.args]
        first, second = self._types.unknown(), self._types.unknown()
        optional = node.function == "_[?_]"
        ways = [
            ([list_of(first), Type("int")], first, optional),
            ([map_of(first, second), first], second, optional),
            ([optional_of(list_of(first)), Type("int")], first, True),
            ([optional_of(map_of(first, second)), first], second, True),
        ]
        results = []
        for params, result, wrapped in ways:
            *fresh, this = self._types.fresh([*(_plain(each) for each in params), _plain(result)])
            if self._types.all_assignable(args, fresh):
                this = self._types.settled(this, leave=True)
                results.append(optional_of(this) if wrapped else this)
        if not results:
            shown = ", ".join(str(self._types.settled(each)) for each in args)
            raise self._error(node, f"found no matching overload for '{node.function}' applied to '({shown})'")
        return results[0] if all(self._same(results[0], each) for each in results) else DYN

    def _or(self, node: Call) -> Type:
        assert node.target is not None
        args = [self._type(node.target), *(self._type(each) for each in node.args)]
        value = self._types.unknown()
        wanted = [optional_of(value), value if node.function == "orValue" else optional_of(value)]
        if not self._types.all_assignable(args, wanted):
            shown = ", ".join(str(self._types.settled(each)) for each in args)
            raise self._error(node, f"found no matching overload for '{node.function}' applied to '({shown})'")
        return self._types.settled(wanted[1], leave=True)

    def _list(self, node: ListNode) -> Type:
        element: Type | None = None
        entries: list[tuple[Node, Type]] = []
        for index, entry in enumerate(node.entries):
            this = self._entry(entry, index in node.optional)
            entries.append((entry, this))
            element = self._joined(entry, element, this)
        if entries:
            self._literals.append(entries)
        return list_of(element or self._types.unknown())

    def _map(self, node: MapNode) -> Type:
        key: Type | None = None
        value: Type | None = None
        keys: list[tuple[Node, Type]] = []
        values: list[tuple[Node, Type]] = []
        for index, (left, right) in enumerate(node.entries):
            keys.append((left, self._type(left)))
            values.append((right, self._entry(right, index in node.optional)))
            key = self._joined(left, key, keys[-1][1])
            value = self._joined(right, value, values[-1][1])
        self._literals += [each for each in (keys, values) if each]
        return map_of(key or self._types.unknown(), value or self._types.unknown())

    def _entry(self, node: Node, optional: bool) -> Type:
        found = self._types.settled(self._type(node), leave=True)
        if not optional:
            return found
        if found.name == "optional":
            return found.of[0]
        if found.name in WILD:
            return DYN
        raise self._error(node, f"expected type 'optional_type(dyn)' but found '{found}'")

    def _joined(self, node: Node, before: Type | None, this: Type) -> Type:
        """The element type so far; lists and maps hold one type here (HomogeneousAggregateLiterals)."""
        if before is None or self._types.all_assignable([this], [before]):
            if (
                before is not None
                and self._types.settled(before).name not in WILD
                and self._types.settled(this).name in WILD
            ):
                return this
            return before or this
        shown = self._types.settled(before), self._types.settled(this)
        raise self._error(node, f"expected type '{shown[0]}' but found '{shown[1]}'")

    def _fold(self, node: Fold) -> Type:
        whole = self._types.settled(self._type(node.range), leave=True)
        accumulator = self._type(node.initial)
        first, second = self._iteration(node, whole)
        self._scopes.append({node.accumulator: accumulator})
        self._scopes.append({node.variable: first} | ({node.second: second} if node.second else {}))
        if not self._types.all_assignable([self._type(node.condition)], [BOOL]):
            raise self._error(node, "expected type 'bool'")
        step = self._type(node.step)
        if not self._types.all_assignable([step], [accumulator]):
            shown = self._types.settled(accumulator), self._types.settled(step)
            raise self._error(node, f"expected type '{shown[0]}' but found '{shown[1]}'")
        self._scopes.pop()
        result = self._type(node.result)
        self._scopes.pop()
        return self._types.settled(result, leave=True)

    def _iteration(self, node: Fold, whole: Type) -> tuple[Type, Type]:
        if whole.name == "list":
            return (Type("int"), whole.of[0]) if node.second else (whole.of[0], DYN)
        if whole.name == "map":
            return whole.of[0], whole.of[1]
        if whole.name == "dyn" or whole.name == "error" or whole.is_parameter:
            return DYN, DYN
        raise self._error(
            node, f"expression of type '{whole}' cannot be range of a comprehension (must be list, map, or dynamic)"
        )

    def _literal_pattern(self, node: Call, name: str) -> None:
        if name not in _PATTERNS or not node.args or not isinstance(node.args[-1], Literal):
            return
        pattern = node.args[-1]
        if isinstance(pattern.value, str) and (name == "matches" or node.target is not None):
            try:
                regex.compiled(pattern.value)
            except regex.PatternError as error:
                raise self._error(pattern, f"invalid matches argument: {error}") from error


def _plain(type_: Type) -> Type:
    """The type with its parameters named anew, so that ``fresh`` renames them."""
    if type_.is_parameter:
        return Type("P" + type_.name.replace("#", "_"))
    return Type(type_.name, tuple(map(_plain, type_.of)))
