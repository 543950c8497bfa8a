"""Turns a typed tree into nested Python functions that run on a frame and count their cost as cel-go counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .checker import Checker
from .environment import Environment
from .errors import CompileError, CostError, EvaluationError
from .overloads import Overload
from .tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from .values import EMPTY, NONE, DomainMap, Optional, TypeValue, UInt, equal, no_overload, size

_CONVERSIONS: Final = frozenset(("int", "uint", "double", "bool", "string", "bytes", "dyn", "type", "duration"))
_MISSING: Final = object()


class Frame:
    """One run: the device, the variables of folds, and the cost so far."""

    __slots__ = ("cost", "device", "limit", "variables")

    def __init__(self, device: dict[str, object], limit: int) -> None:
        self.device = device
        self.limit = limit
        self.cost = 0
        self.variables: dict[str, object] = {}

    def spend(self, cost: int) -> None:
        """Add to the cost.

        Raises:
            CostError: the limit is exceeded.
        """
        self.cost += cost
        if self.cost > self.limit:
            raise CostError("operation cancelled: actual cost limit exceeded")


Step = Callable[[Frame], object]


class _Failure:
    """An error as the value of an accumulator: a later element may still decide the result."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


class Planner:
    """Plans one expression that ``checker`` has typed."""

    def __init__(self, checker: Checker, environment: Environment) -> None:
        self._checker = checker
        self._environment = environment

    def plan(self, node: Node) -> Step:
        """The function that evaluates this node."""
        if isinstance(node, Literal):
            return _constant(UInt(node.value) if node.type == "uint" and isinstance(node.value, int) else node.value)
        if isinstance(node, Ident):
            return _ident(node.name)
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
        if node.test:
            return _presence(self.plan(node.operand), name)
        if node.optional:
            return _optional_get(self.plan(node.operand), _constant(name))
        field = _published(node)
        if field is not None:
            return _published_step(*field)
        return _field(self.plan(node.operand), name, _base_cost(node.operand))

    def _call(self, node: Call) -> Step:
        function = node.function
        if function in ("_&&_", "_||_"):
            return (_and if function == "_&&_" else _or)(self.plan(node.args[0]), self.plan(node.args[1]))
        if function == "_?_:_":
            condition, truthy, falsy = (self.plan(each) for each in node.args)
            return _conditional(condition, truthy, falsy, [_is_attribute(each) for each in node.args])
        if function == "@not_strictly_false":
            return _not_strictly_false(self.plan(node.args[0]))
        if function == "_[_]":
            return _index(self.plan(node.args[0]), self.plan(node.args[1]), _base_cost(node.args[0]))
        if function == "_[?_]":
            return _optional_get(self.plan(node.args[0]), self.plan(node.args[1]))
        name = self._checker.names.get(id(node), function)
        if node.target is not None and function in ("or", "orValue") and id(node) not in self._checker.names:
            return _or_else(self.plan(node.target), self.plan(node.args[0]), unwrap=function == "orValue")
        steps = [self.plan(each) for each in node.args]
        if node.target is not None and name == function:
            steps.insert(0, self.plan(node.target))
        if function in ("_==_", "_!=_"):
            return _equality(*steps, same=function == "_==_")
        if function == "@in" and (values := _primitives(node.args[1])) is not None:
            return _membership(steps[0], values)
        call = _dispatch(self._checker.chosen[id(node)], steps)
        return _folded(call, node) if _is_constant(node) else call

    def _list(self, node: ListNode) -> Step:
        steps = [(self.plan(each), index in node.optional) for index, each in enumerate(node.entries)]
        price = 0 if _is_constant(node) else 10

        def run(frame: Frame) -> object:
            made: list[object] = []
            for step, optional in steps:
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
        steps = [(self.plan(k), self.plan(v), i in node.optional) for i, (k, v) in enumerate(node.entries)]
        price = 0 if _is_constant(node) else 30

        def run(frame: Frame) -> object:
            made: dict[object, object] = {}
            for left, right, optional in steps:
                key, value = left(frame), right(frame)
                if not isinstance(key, (str, int)):
                    raise EvaluationError("unsupported key type")
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
            pairs = _pairs(whole(frame), bool(second))
            variables = frame.variables
            before = [(name, variables.get(name, _MISSING)) for name in (variable, second, accumulator)]
            value = _guarded(initial, frame)
            for first, other in pairs:
                variables[variable], variables[second], variables[accumulator] = first, other, value
                if _guarded(condition, frame) is False:
                    break
                value = _guarded(step, frame)
            _restore(variables, before[:2])
            variables[accumulator] = value
            try:
                return result(frame)
            finally:
                _restore(variables, before[2:])

        return run


def _restore(variables: dict[str, object], before: list[tuple[str, object]]) -> None:
    for name, value in before:
        if value is _MISSING:
            variables.pop(name, None)
        else:
            variables[name] = value


def _guarded(step: Step, frame: Frame) -> object:
    try:
        return step(frame)
    except CostError:
        raise
    except EvaluationError as error:
        return _Failure(error)


def _pairs(whole: object, second: bool) -> Iterable[tuple[object, object]]:
    if isinstance(whole, (list, tuple)):
        return enumerate(whole) if second else ((each, None) for each in whole)
    if isinstance(whole, dict):
        return list(whole.items())
    raise no_overload()


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


def _folded(call: Step, node: Node) -> Step:
    """A conversion of a constant, done before any run as upstream does it."""
    try:
        return _constant(call(Frame({}, 1_000_000)))
    except EvaluationError as error:
        raise CompileError(f"program instantiation failed: {error}", position=node.position) from error


def _branch(step: Step) -> Step:
    """An attribute as a branch of a conditional: upstream resolves it without the cost of a name."""

    def run(frame: Frame) -> object:
        value = step(frame)
        frame.cost -= 1
        return value

    return run


def _constant(value: object) -> Step:
    return lambda _: value


def _ident(name: str) -> Step:
    def run(frame: Frame) -> object:
        value = frame.variables.get(name, _MISSING)
        if value is _MISSING and name != "device":
            return TypeValue(name)
        frame.cost += 1
        if value is _MISSING:
            return frame.device
        if type(value) is _Failure:
            raise value.error
        return value

    return run


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


def _published_step(kind: str, domain: str, name: str) -> Step:
    def run(frame: Frame) -> object:
        if "device" in frame.variables:
            return _get(_get(_get(frame.variables["device"], kind), domain), name)
        frame.cost += 4
        value = frame.device[kind].get(domain, EMPTY).get(name, _MISSING)  # type: ignore[attr-defined]  # maps of maps
        if value is _MISSING:
            raise EvaluationError(f"no such key: {name}")
        return value

    return run


def _get(whole: object, key: object) -> object:
    if isinstance(whole, Optional):
        return _get_optional(whole, key)
    if isinstance(whole, dict):
        if isinstance(key, (list, dict, float)) and not isinstance(key, float):
            raise no_overload()
        value = whole.get(key, _MISSING)
        if value is not _MISSING and (not isinstance(key, bool) or any(each is key for each in whole)):
            return value
        if isinstance(whole, DomainMap):
            return EMPTY
        raise EvaluationError(f"no such key: {key}")
    if isinstance(whole, (list, tuple)) and isinstance(key, (int, float)) and not isinstance(key, bool):
        if key != int(key) or not 0 <= key < len(whole):
            raise EvaluationError(f"index out of bounds: {key}")
        return whole[int(key)]
    raise no_overload()


def _get_optional(whole: object, key: object) -> Optional:
    if isinstance(whole, Optional):
        return _get_optional(whole.value, key) if whole.present else NONE
    try:
        return Optional(_get(whole, key), True)
    except EvaluationError as error:
        if str(error).startswith(("no such key", "index out of bounds")):
            return NONE
        raise


def _field(operand: Step, name: str, price: int) -> Step:
    def run(frame: Frame) -> object:
        whole = operand(frame)
        frame.cost += price
        return _get(whole, name)

    return run


def _index(operand: Step, index: Step, price: int) -> Step:
    def run(frame: Frame) -> object:
        whole, key = operand(frame), index(frame)
        frame.cost += price
        return _get(whole, key)

    return run


def _optional_get(operand: Step, key: Step) -> Step:
    def run(frame: Frame) -> object:
        found = _get_optional(operand(frame), key(frame))
        frame.cost += found.present
        return found

    return run


def _presence(operand: Step, name: str) -> Step:
    def run(frame: Frame) -> object:
        whole = operand(frame)
        if isinstance(whole, Optional):
            return _get_optional(whole, name).present
        if isinstance(whole, dict):
            return isinstance(whole, DomainMap) or name in whole
        raise no_overload()

    return run


def _and(left: Step, right: Step) -> Step:
    def run(frame: Frame) -> object:
        one = _guarded(left, frame)
        if one is False:
            return False
        other = right(frame)
        if other is False:
            return False
        return _both(one, other)

    return run


def _or(left: Step, right: Step) -> Step:
    def run(frame: Frame) -> object:
        one = _guarded(left, frame)
        if one is True:
            return True
        other = right(frame)
        if other is True:
            return True
        return _both(one, other)

    return run


def _both(one: object, other: object) -> bool:
    """The result where neither side decided: both must be booleans of the one kind that does not decide."""
    if isinstance(one, _Failure):
        raise one.error
    if not isinstance(one, bool) or not isinstance(other, bool):
        raise no_overload()
    return one


def _conditional(condition: Step, truthy: Step, falsy: Step, attributes: list[bool]) -> Step:
    if attributes[1]:
        truthy = _branch(truthy)
    if attributes[2]:
        falsy = _branch(falsy)

    def run(frame: Frame) -> object:
        decided = condition(frame)
        if not isinstance(decided, bool):
            raise no_overload()
        return truthy(frame) if decided else falsy(frame)

    return run


def _not_strictly_false(operand: Step) -> Step:
    def run(frame: Frame) -> object:
        value = _guarded(operand, frame)
        frame.spend(1)
        return value is not False

    return run


def _or_else(left: Step, right: Step, *, unwrap: bool) -> Step:
    def run(frame: Frame) -> object:
        value = left(frame)
        if not isinstance(value, Optional):
            raise no_overload()
        if not value.present:
            return right(frame)
        return value.value if unwrap else value

    return run


def _equality(left: Step, right: Step, *, same: bool) -> Step:
    def run(frame: Frame) -> object:
        try:
            one, other = left(frame), right(frame)
        except EvaluationError:
            frame.cost += 1
            raise
        smaller = min(size(one), size(other))
        frame.cost += 1 if smaller <= 10 and smaller else -(-smaller // 10)
        return equal(one, other) is same

    return run


def _membership(item: Step, values: list[object]) -> Step:
    def run(frame: Frame) -> object:
        value = item(frame)
        return any(equal(value, each) for each in values)

    return run


def _dispatch(overloads: list[Overload], steps: list[Step]) -> Step:
    def run(frame: Frame) -> object:
        try:
            args = [step(frame) for step in steps]
        except EvaluationError:
            frame.cost += 1
            raise
        for overload in overloads:
            if overload.accepts(args):
                try:
                    result = overload.run(*args)
                except EvaluationError:
                    frame.cost += 1
                    raise
                frame.spend(overload.cost(args, result))
                return result
        raise no_overload()

    return run
