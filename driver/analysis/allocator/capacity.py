"""Consumable capacity: what a request takes of a shareable device, rounded by its policy, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..quantity import BINARY, MAX_INT64, NANO, Quantity, milli, wrapped
from .features import Rules
from .model import Capacity, Policy

_MILLI: Final = NANO // 1000


class CapacityError(ValueError):
    """A request that cannot be computed with; it ends the whole attempt (since 1.37)."""


def consumed(
    requested: Mapping[str, Quantity] | None, capacity: Mapping[str, Capacity], rules: Rules
) -> dict[str, Quantity]:
    """What one share takes of each capacity.

    Raises:
        CapacityError: beyond int64, or negative.
    """
    found = {}
    for name in sorted(capacity):
        try:
            amount = _amount((requested or {}).get(name), capacity[name], rules)
        except CapacityError as error:
            raise CapacityError(f'capacity "{name}": {error}') from error
        if rules.strict_capacity and amount.nanos < 0:
            raise CapacityError(f'capacity "{name}": capacity value is negative')
        found[name] = amount
    return found


def fits(
    requested: Mapping[str, Quantity] | None,
    capacity: Mapping[str, Capacity],
    used: Mapping[str, int],
    allocating: Mapping[str, int],
    rules: Rules,
) -> bool:
    """Whether one more share fits beside what is ``used`` and ``allocating``, both in billionths.

    Raises:
        CapacityError: see ``consumed``.
    """
    if requested and not requested.keys() <= capacity.keys():
        return False
    if not capacity:
        return True
    for name, amount in consumed(requested, capacity, rules).items():
        whole = capacity[name]
        if _violates(amount, whole.policy, rules):
            return False
        if used.get(name, 0) + allocating.get(name, 0) + amount.nanos > whole.value.nanos:
            return False
    return True


def _amount(requested: Quantity | None, capacity: Capacity, rules: Rules) -> Quantity:
    policy = capacity.policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.has_range and policy.minimum is not None:
        return _up_to_step(requested, policy, policy.minimum, rules)
    if policy.values is not None:
        return next((each for each in policy.values if requested.nanos <= each.nanos), requested)
    return requested


def _up_to_step(requested: Quantity, policy: Policy, minimum: Quantity, rules: Rules) -> Quantity:
    if requested.nanos < minimum.nanos:
        return minimum
    if policy.step is None:
        return requested
    if _in_milli(policy, rules):
        return _milli_steps(requested, minimum, policy.step)
    if rules.strict_capacity and requested.nanos > MAX_INT64 * NANO:
        raise _beyond(f"request {requested} exceeds MaxInt64")
    step, least = policy.step.value(), minimum.value()
    added = wrapped(requested.value() - least)
    count, rest = _divided(added, step)
    count += rest != 0
    if rules.strict_capacity and least >= 0 and count > _divided(MAX_INT64 - least, step)[0]:
        raise _beyond(f"rounding request {requested} up to the next step passes MaxInt64")
    number = wrapped(least + step * count)
    return Quantity(number * NANO, policy.step.notation if rules.strict_capacity else BINARY)


def _milli_steps(requested: Quantity, minimum: Quantity, step: Quantity) -> Quantity:
    wanted = milli(requested)
    if wanted is None:
        raise _beyond(f"request {requested} is not a representable milli value")
    least, each = milli(minimum) or 0, milli(step) or 1
    count, rest = _divided(wanted - least, each)
    count += rest != 0
    if count > _divided(MAX_INT64 - least, each)[0]:
        raise _beyond(f"rounding request {requested} up to the next step passes the milli-value range")
    return Quantity((least + each * count) * _MILLI, step.notation)


def _beyond(what: str) -> CapacityError:
    return CapacityError(f"capacity request cannot be represented in the device's range arithmetic: {what}")


def _divided(number: int, by: int) -> tuple[int, int]:
    """Quotient and rest, rounded towards zero as Go does.

    Raises:
        ZeroDivisionError: a step of zero, on which upstream panics; validation forbids it.
    """
    quotient = abs(number) // abs(by)
    quotient = quotient if (number < 0) == (by < 0) else -quotient
    return quotient, number - quotient * by


def _in_milli(policy: Policy, rules: Rules) -> bool:
    if not rules.features.fractional_capacity_range or rules.release < 37:
        return False
    bounds = (policy.minimum, policy.maximum, policy.step)
    if any(each is not None and milli(each) is None for each in bounds):
        return False
    return policy.step is None or (milli(policy.step) or 0) >= 1


def _violates(amount: Quantity, policy: Policy | None, rules: Rules) -> bool:
    if policy is None or (policy.default is not None and amount.same_as(policy.default)):
        return False
    if policy.has_range:
        return _outside(amount, policy, rules)
    if policy.values:
        return all(amount.nanos != each.nanos for each in policy.values)
    return False


def _outside(amount: Quantity, policy: Policy, rules: Rules) -> bool:
    if policy.maximum is not None and amount.nanos > policy.maximum.nanos:
        return True
    if policy.step is None or policy.minimum is None:
        return False
    if _in_milli(policy, rules):
        thousandths = milli(amount)
        if thousandths is None:
            return True
        return _divided(thousandths - (milli(policy.minimum) or 0), milli(policy.step) or 1)[1] != 0
    return _divided(wrapped(amount.value() - policy.minimum.value()), policy.step.value())[1] != 0
