"""Turns a typed tree into nested Python functions that run on a frame and count their cost as cel-go counts it."""

from __future__ import annotations

from typing import Final

from . import steps
from .checker import NULL_VALUE, PATTERNS, Checker
from .errors import CompileError, EvaluationError, UnsupportedError
from .frame import MISSING, Frame, Step, guarded
from .times import Duration, Timestamp
from .tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from .values import Optional, TypeValue, UInt, no_overload

_KEYS: Final = (str, int, float, type(None), Duration, Timestamp)
_CONVERSIONS: Final = frozenset(
    ("int", "uint", "double", "bool", "string", "bytes", "dyn", "type", "duration", "timestamp")
)


class Planner:
    """Plans one expression that ``checker`` has typed."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker

    def plan(self, node: Node) -> Step:
        """The function that evaluates this node."""
        if isinstance(node, Literal):
            return steps.constant(
                UInt(node.value) if node.type == "uint" and isinstance(node.value, int) else node.value
            )
        if isinstance(node, Ident):
            return steps.identifier(node.name)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListNode):
            return self._list(node)
        if isinstance(node, MapNode):
            return self._map(node)
        assert isinstance(node, Fold)
        return self._fold(node)

    def _select(self, node: Select) -> Step:
        name = node.name
        if id(node) in self._checker.names:
            name = self._checker.names[id(node)]
            return steps.constant(0 if name == NULL_VALUE else TypeValue(name))
        if node.test:
            return steps.presence(self.plan(node.operand), name)
        if node.optional:
            return steps.optional_get(self.plan(node.operand), steps.constant(name))
        field = _published(node)
        if field is not None:
            return steps.published(*field)
        return steps.field(self.plan(node.operand), name, _base_cost(node.operand))

    def _call(self, node: Call) -> Step:
        function = node.function
        if function in ("_&&_", "_||_"):
            return steps.logic(self.plan(node.args[0]), self.plan(node.args[1]), decides=function == "_||_")
        if function == "_?_:_":
            condition, truthy, falsy = (self.plan(each) for each in node.args)
            return steps.conditional(condition, truthy, falsy, [_is_attribute(each) for each in node.args])
        if function == "@not_strictly_false":
            return steps.not_strictly_false(self.plan(node.args[0]))
        if function == "_[_]":
            return steps.index(self.plan(node.args[0]), self.plan(node.args[1]), _base_cost(node.args[0]))
        if function == "_[?_]":
            return steps.optional_get(self.plan(node.args[0]), self.plan(node.args[1]))
        name = self._checker.names.get(id(node), function)
        if node.target is not None and function in ("or", "orValue") and id(node) not in self._checker.names:
            left, right = self.plan(node.target), self.plan(node.args[0])
            strict = self._checker.release >= 37
            return steps.or_else(left, right, unwrap=function == "orValue", strict=strict)
        parts = [self.plan(each) for each in node.args]
        if node.target is not None and name == function:
            parts.insert(0, self.plan(node.target))
        if function in ("_==_", "_!=_"):
            return steps.equality(*parts, same=function == "_==_")
        if function == "@in" and (values := _primitives(node.args[1])) is not None:
            return steps.membership(parts[0], values) if values else steps.constant(False)
        hasty = name in PATTERNS and isinstance(node.args[node.target is None], Literal)  # compiled with the program
        call = steps.dispatch(self._checker.chosen[id(node)], parts, hasty=hasty)
        return _folded(call, node, self._checker.source) if _is_constant(node) else call

    def _list(self, node: ListNode) -> Step:
        parts = [(self.plan(each), index in node.optional) for index, each in enumerate(node.entries)]
        price = 0 if _is_constant(node) else 10

        def run(frame: Frame) -> object:
            made: list[object] = []
            for step, optional in parts:
                value = step(frame)
                if not optional:
                    made.append(value)
                elif not isinstance(value, Optional):
                    raise no_overload()
                elif value.present:
                    made.append(value.value)
            frame.cost += price
            return made

        return run

    def _map(self, node: MapNode) -> Step:
        parts = [(self.plan(k), self.plan(v), i in node.optional) for i, (k, v) in enumerate(node.entries)]
        price = 0 if _is_constant(node) else 30

        def run(frame: Frame) -> object:
            made: dict[object, object] = {}
            for left, right, optional in parts:
                key, value = left(frame), right(frame)
                if not isinstance(key, _KEYS):
                    raise EvaluationError("unsupported key type")
                if isinstance(key, Timestamp) and key.offset:
                    raise UnsupportedError("a timestamp with a zone as the key of a map is not supported")
                if key in made:
                    raise EvaluationError(f"Failed with repeated key: {key}")
                if not optional:
                    made[key] = value
                elif isinstance(value, Optional) and value.present:
                    made[key] = value.value
            frame.cost += price
            return made

        return run

    def _fold(self, node: Fold) -> Step:
        whole, initial = self.plan(node.range), self.plan(node.initial)
        condition, step, result = self.plan(node.condition), self.plan(node.step), self.plan(node.result)
        variable, second, accumulator = node.variable, node.second, node.accumulator

        def run(frame: Frame) -> object:
            pairs = steps.pairs(whole(frame), bool(second))
            variables = frame.variables
            before = [(name, variables.get(name, MISSING)) for name in (variable, second, accumulator)]
            value = guarded(initial, frame)
            for first, other in pairs:
                variables[variable], variables[second], variables[accumulator] = first, other, value
                if guarded(condition, frame) is False:
                    break
                value = guarded(step, frame)
            steps.restore(variables, before[:2])
            variables[accumulator] = value
            try:
                return result(frame)
            finally:
                steps.restore(variables, before[2:])

        return run


def _is_constant(node: Node) -> bool:
    """Whether upstream folds the node before a run, which then costs nothing."""
    if isinstance(node, ListNode):
        return not node.optional and all(map(_is_constant, node.entries))
    if isinstance(node, MapNode):
        return not node.optional and all(_is_constant(key) and _is_constant(value) for key, value in node.entries)
    if isinstance(node, Call) and node.function in _CONVERSIONS and node.target is None and len(node.args) == 1:
        return _is_constant(node.args[0])
    return isinstance(node, Literal)


def _primitives(node: Node) -> list[object] | None:
    """The values of a list of constants that upstream turns into a set, or None."""
    if not (isinstance(node, ListNode) and _is_constant(node)):
        return None
    plain = [each.value for each in node.entries if isinstance(each, Literal) and each.type not in ("bytes", "null")]
    return plain if len(plain) == len(node.entries) else None


def _is_attribute(node: Node) -> bool:
    """Whether upstream resolves the node as one attribute: a name with selections and indexes."""
    if isinstance(node, Select):
        return not node.test
    return isinstance(node, Ident) or (isinstance(node, Call) and node.function in ("_[_]", "_[?_]"))


def _base_cost(operand: Node) -> int:
    """A selection costs one; on a value that is no attribute the attribute made of it costs one more."""
    conditional = isinstance(operand, Call) and operand.function == "_?_:_"
    return 1 if conditional or _is_attribute(operand) else 2


def _folded(call: Step, node: Node, source: str) -> Step:
    """A conversion of a constant, done before any run as upstream does it."""
    try:
        return steps.constant(call(Frame({}, 1_000_000)))
    except EvaluationError as error:
        raise CompileError(f"program instantiation failed: {error}", source, node.position) from error


def _published(node: Select) -> tuple[str, str, str] | None:
    """The parts of ``device.attributes["domain"].name``, the shape nearly every selector has."""
    index = node.operand
    if not (isinstance(index, Call) and index.function == "_[_]" and isinstance(index.args[1], Literal)):
        return None
    whole, domain = index.args[0], index.args[1].value
    if not (isinstance(whole, Select) and not whole.test and not whole.optional and isinstance(domain, str)):
        return None
    if whole.name in ("attributes", "capacity") and isinstance(whole.operand, Ident) and whole.operand.name == "device":
        return whole.name, domain, node.name
    return None
