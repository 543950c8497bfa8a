"""The steps of a run: each function here makes one that evaluates its parts, does its work and adds its cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .errors import CostError, EvaluationError
from .formats import Format
from .frame import MISSING, Failure, Frame, Step, guarded
from .network import IP, Cidr
from .overloads import Overload
from .urls import Url
from .values import EMPTY, NONE, DomainMap, Optional, TypeValue, equal, no_overload, same, size

_SINGLE: Final = (IP, Cidr, Url, Format)
"""Compared at the cost of one, whatever their size."""


def restore(variables: dict[str, object], before: list[tuple[str, object]]) -> None:
    """Give variables their former values back."""
    for name, value in before:
        if value is MISSING:
            variables.pop(name, None)
        else:
            variables[name] = value


def pairs(whole: object, second: bool) -> Iterable[tuple[object, object]]:
    """What a fold goes through: elements, keys, or index or key and value where it has two variables.

    Raises:
        EvaluationError: nothing to go through.
    """
    if isinstance(whole, (list, tuple)):
        return enumerate(whole) if second else ((each, None) for each in whole)
    if isinstance(whole, dict):
        return list(whole.items())
    raise no_overload()


def branch(step: Step) -> Step:
    """An attribute as a branch of a conditional: upstream resolves it without the cost of a name."""

    def run(frame: Frame) -> object:
        value = step(frame)
        frame.cost -= 1
        return value

    return run


def constant(value: object) -> Step:
    """A constant costs nothing."""
    return lambda _: value


def identifier(name: str) -> Step:
    """A variable of a fold, the device, or else a type."""

    def run(frame: Frame) -> object:
        value = frame.variables.get(name, MISSING)
        if value is MISSING and name != "device":
            return TypeValue(name)
        frame.cost += 1
        if value is MISSING:
            return frame.device
        if type(value) is Failure:
            raise value.error
        return value

    return run


def published(kind: str, domain: str, name: str) -> Step:
    """``device.attributes["domain"].name`` in one step, the shape that nearly every selector has."""

    def run(frame: Frame) -> object:
        if "device" in frame.variables:
            return _get(_get(_get(frame.variables["device"], kind), domain), name)
        frame.cost += 4
        value = frame.device[kind].get(domain, EMPTY).get(name, MISSING)  # type: ignore[attr-defined]  # maps of maps
        if value is MISSING:
            raise EvaluationError(f"no such key: {name}")
        return value

    return run


def _get(whole: object, key: object) -> object:
    if isinstance(whole, Optional):
        return _get_optional(whole, key)
    if isinstance(whole, dict):
        if isinstance(key, (list, dict, float)) and not isinstance(key, float):
            raise no_overload()
        value = whole.get(key, MISSING)
        if value is not MISSING and (not isinstance(key, bool) or any(each is key for each in whole)):
            return value
        if isinstance(whole, DomainMap):
            return EMPTY
        raise EvaluationError(f"no such key: {key}")
    if isinstance(whole, (list, tuple)) and isinstance(key, (int, float)) and not isinstance(key, bool):
        if key != int(key) or not 0 <= key < len(whole):
            raise EvaluationError(f"index out of bounds: {key}")
        return whole[int(key)]
    if isinstance(whole, str):
        raise EvaluationError(f"no such key: {key}")
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


def field(operand: Step, name: str, price: int) -> Step:
    """``operand.name``."""

    def run(frame: Frame) -> object:
        whole = operand(frame)
        frame.cost += price
        return _get(whole, name)

    return run


def index(operand: Step, index: Step, price: int) -> Step:
    """``operand[index]``."""

    def run(frame: Frame) -> object:
        whole, key = operand(frame), index(frame)
        frame.cost += price
        return _get(whole, key)

    return run


def optional_get(operand: Step, key: Step) -> Step:
    """``operand.?key`` and ``operand[?key]``; an absent one costs nothing."""

    def run(frame: Frame) -> object:
        found = _get_optional(operand(frame), key(frame))
        frame.cost += found.present
        return found

    return run


def presence(operand: Step, name: str) -> Step:
    """``has(operand.name)``."""

    def run(frame: Frame) -> object:
        whole = operand(frame)
        if isinstance(whole, Optional):
            return _get_optional(whole, name).present
        if isinstance(whole, dict):
            return isinstance(whole, DomainMap) or name in whole
        raise no_overload()

    return run


def logic(left: Step, right: Step, *, decides: bool) -> Step:
    """``&&``, where false decides, and ``||``, where true does: on either side, even beside an error."""

    def run(frame: Frame) -> object:
        one = guarded(left, frame)
        if one is decides:
            return decides
        other = right(frame)
        return decides if other is decides else _both(one, other)

    return run


def _both(one: object, other: object) -> bool:
    """The result where neither side decided: both must be booleans of the one kind that does not decide."""
    if isinstance(one, Failure):
        raise one.error
    if not isinstance(one, bool) or not isinstance(other, bool):
        raise no_overload()
    return one


def conditional(condition: Step, truthy: Step, falsy: Step, attributes: list[bool]) -> Step:
    """``condition ? truthy : falsy``; ``attributes`` says which of the three upstream resolves as attributes."""
    if attributes[1]:
        truthy = branch(truthy)
    if attributes[2]:
        falsy = branch(falsy)

    def run(frame: Frame) -> object:
        decided = condition(frame)
        if not isinstance(decided, bool):
            raise no_overload()
        return truthy(frame) if decided else falsy(frame)

    return run


def not_strictly_false(operand: Step) -> Step:
    """Whether a fold goes on: an error is no reason to stop."""

    def run(frame: Frame) -> object:
        value = guarded(operand, frame)
        frame.spend(1)
        return value is not False

    return run


def or_else(left: Step, right: Step, *, unwrap: bool, strict: bool) -> Step:
    """``optional.or(...)`` and, unwrapped, ``optional.orValue(...)``; ``strict``: a value that is none is an error."""

    def run(frame: Frame) -> object:
        value = left(frame)
        if not isinstance(value, Optional):
            if strict:
                raise no_overload()
            return value
        if not value.present:
            return right(frame)
        return value.value if unwrap else value

    return run


def equality(left: Step, right: Step, *, same: bool) -> Step:
    """``==`` or, where not ``same``, ``!=``."""

    def run(frame: Frame) -> object:
        one, other = guarded(left, frame), guarded(right, frame)
        smaller = 1 if isinstance(one, _SINGLE) else min(size(one), size(other))
        frame.cost += 1 if smaller <= 10 and smaller else -(-smaller // 10)
        for each in (one, other):
            if isinstance(each, Failure):
                raise each.error
        return equal(one, other) is same

    return run


def membership(item: Step, values: list[object]) -> Step:
    """``in`` a list of constants, which upstream has made a set of."""

    def run(frame: Frame) -> object:
        value = item(frame)
        return any(same(value, each) for each in values)

    return run


def dispatch(overloads: list[Overload], steps: list[Step], *, hasty: bool = False) -> Step:
    """A function: the first overload that accepts the values; ``hasty`` stops at the first argument that fails.

    A call whose arguments were all worked out costs what it costs whether it comes to anything or not.
    """
    costs = [each.cost if len(overloads) == 1 else each.unsure for each in overloads]

    def run(frame: Frame) -> object:
        args, failure = _arguments(steps, frame, hasty or len(steps) > 2)
        if failure is None:
            for overload, cost in zip(overloads, costs, strict=True):
                if overload.accepts(args):
                    try:
                        result = overload.run(*args)
                    except EvaluationError:
                        frame.spend(cost(args, None))
                        raise
                    frame.spend(cost(args, result))
                    return result
        if len(args) == len(steps):
            frame.spend(costs[0](args, None))
        raise failure or no_overload()

    return run


def _arguments(steps: list[Step], frame: Frame, hasty: bool) -> tuple[list[object], EvaluationError | None]:
    """The arguments of a call, and the first failure among them, which stands for the value.

    Upstream works out the second of two even where the first failed, and nothing behind a failure otherwise.
    """
    args: list[object] = []
    failure: EvaluationError | None = None
    for step in steps:
        try:
            args.append(step(frame))
        except CostError:
            raise
        except EvaluationError as error:
            failure = failure or error
            args.append(error)
            if hasty:
                break
    return args, failure
