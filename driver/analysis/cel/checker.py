"""Types an expression: finds what upstream's compiler would refuse, and which functions are meant."""

from __future__ import annotations

from typing import Final

from . import formatting, regex
from .environment import Environment
from .errors import CompileError
from .overloads import Overload
from .tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select, qualified
from .types import BOOL, DEVICE, DYN, STRING, WILD, Substitution, Type, list_of, map_of, optional_of

_LOGIC: Final = frozenset(("_&&_", "_||_"))
_PLAIN_TYPES: Final = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type")
_TYPE_NAMES: Final = frozenset(
    (*_PLAIN_TYPES, "optional_type", "net.IP", "net.CIDR", "google.protobuf.Duration", "google.protobuf.Timestamp")
)
"""Types that have a name in expressions; those of Kubernetes' own values have none."""
NULL_VALUE: Final = "google.protobuf.NullValue.NULL_VALUE"
"""The one constant of an enum that upstream knows: the number 0."""
PATTERNS: Final = frozenset(("matches", "find", "findAll"))


class Checker:
    """Types one expression; ``chosen`` holds the overloads a call may mean, ``names`` the full names of functions."""

    def __init__(self, source: str, environment: Environment) -> None:
        self.source = source
        self.release = environment.release
        self._environment = environment
        self._types = Substitution()
        self._scopes: list[dict[str, Type]] = [{"device": DEVICE}]
        self._literals: list[list[tuple[Node, Type]]] = []
        self._formats: list[Call] = []
        self._formatting = 0
        self._known: dict[int, Type] = {}
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
        for call in self._formats:
            self._formatted(call)
        return type_

    def _formatted(self, call: Call) -> None:
        """A constant format takes as many values as it has clauses, each of a type that its clause writes."""
        text, args = call.target, call.args[0]
        assert isinstance(text, Literal)
        assert isinstance(args, ListNode)
        wrong, why = formatting.problem(str(text.value), args, lambda node: self._types.settled(self._known[id(node)]))
        if why:
            raise self._error(wrong or call, why)

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
        found = self._known[id(node)] = self._typed(node)
        return found

    def _typed(self, node: Node) -> Type:
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
        if node.name in _TYPE_NAMES:
            return Type("type")
        raise self._error(node, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Type:
        if qualified(node) in (*_TYPE_NAMES, NULL_VALUE) and not node.test:
            self.names[id(node)] = qualified(node)
            return Type("int" if qualified(node) == NULL_VALUE else "type")
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
        member = node.target is not None and name == node.function
        self._formatting += node.function == "format"
        args = [self._type(each) for each in node.args]
        if node.target is not None and member:
            args.insert(0, self._type(node.target))
        self._formatting -= node.function == "format"
        constant = isinstance(node.target, Literal) and node.target.type == "string"
        if name == "format" and constant and len(node.args) == 1 and isinstance(node.args[0], ListNode):
            self._formats.append(node)
        self.names[id(node)] = name
        self._literal_pattern(node, name)
        return self._resolve(node, name, member, args)

    def _function_name(self, node: Call) -> str:
        if node.target is None:
            return node.function
        before = qualified(node.target)
        whole = f"{before}.{node.function}" if before else ""
        return whole if whole in self._environment.functions else node.function

    def _resolve(self, node: Call, name: str, member: bool, args: list[Type]) -> Type:
        candidates = [each for each in self._environment.functions.get(name, ()) if each.member == member]
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
            element = self._joined(element, this)
        if entries and not self._formatting:
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
            key = self._joined(key, keys[-1][1])
            value = self._joined(value, values[-1][1])
        if not self._formatting:
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

    def _joined(self, before: Type | None, this: Type) -> Type:
        """The element type so far; whether all are of one type is looked at when all types are known."""
        if before is None or not self._types.all_assignable([this], [before]):
            return this if before is None else DYN
        open_ = self._types.settled(this).name in WILD and self._types.settled(before).name not in WILD
        return this if open_ else before

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
        """Constant patterns are tried at once; of ``matches(text, pattern)`` upstream tries the text as well."""
        if name not in PATTERNS or not node.args or (name != "matches" and node.target is None):
            return
        for each in {0, len(node.args) - 1} if name == "matches" else {0}:
            pattern = node.args[each]
            if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
                continue
            try:
                regex.compiled(pattern.value)
            except regex.PatternError as error:
                raise self._error(pattern, f"invalid {name} argument: {error}") from error


def _plain(type_: Type) -> Type:
    """The type with its parameters named anew, so that ``fresh`` renames them."""
    if type_.is_parameter:
        return Type("P" + type_.name.replace("#", "_"))
    return Type(type_.name, tuple(map(_plain, type_.of)))
