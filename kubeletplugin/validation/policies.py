"""Rules of ``capacity.requestPolicy``: what share of a device may be asked for (KEP-5075)."""

from __future__ import annotations

from typing import Any

from kubeletplugin.api import JSON
from kubeletplugin.quantity import INT64_MAX, Quantity, parse_quantity
from kubeletplugin.validation.fields import Errors, check_list, forbidden, invalid, required

MAX_VALID_VALUES = 10


def check_capacity(field: str, capacity: JSON, *, shared: bool) -> Errors:
    """One capacity of a device; ``shared`` is ``allowMultipleAllocations``."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    path = f"{field}.requestPolicy"
    if not shared:
        return [forbidden(path, "allowMultipleAllocations must be true")]
    values, interval = policy.get("validValues") or [], policy.get("validRange")
    if values and interval is not None:
        return [
            forbidden(
                path,
                'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time',
            )
        ]
    default = _quantity(policy.get("default"))
    whole = parse_quantity(capacity.get("value", "0"))
    if values:
        if default is None:
            return [required(f"{path}.default", "required when validValues is defined")]
        return _check_values(f"{path}.validValues", [parse_quantity(value) for value in values], default, whole)
    if interval is not None:
        if default is None:
            return [required(f"{path}.default", "required when validRange is defined")]
        return _check_range(f"{path}.validRange", interval, default, whole)
    return []


def _quantity(value: Any) -> Quantity | None:
    return None if value is None else parse_quantity(value)


def _check_values(field: str, values: list[Quantity], default: Quantity, whole: Quantity) -> Errors:
    errors: Errors = [
        invalid(f"{field}[{index + 1}]", str(values[index + 1]), "values must be sorted in ascending order")
        for index in range(len(values) - 1)
        if values[index] > values[index + 1]
    ]

    def check(path: str, value: Quantity) -> Errors:
        return [invalid(path, str(value), f"option is larger than capacity value: {whole}")] if value > whole else []

    errors += check_list(
        field, values, MAX_VALID_VALUES, check, key=Quantity.rounded_up, shown=lambda value: str(value.rounded_up())
    )
    # A list that is too long is not looked into, so no default can be found in it.
    if len(values) > MAX_VALID_VALUES or default not in values:
        errors.append(invalid(field, str(default), "default value is not valid according to the requestPolicy"))
    return errors


def _check_range(field: str, interval: JSON, default: Quantity, whole: Quantity) -> Errors:
    low, high, step = (_quantity(interval.get(name)) for name in ("min", "max", "step"))
    if low is None:
        return [required(f"{field}.min", "required when validRange is defined")]
    errors: Errors = []
    if low > whole:
        errors.append(invalid(f"{field}.min", str(low), f"min is larger than capacity value: {whole}"))
    if default < low:
        errors.append(invalid(f"{field}.default", str(default), f"default is less than min: {low}"))
    if high is not None:
        errors += _check_max(field, low, high, default, whole)
    if step is not None:
        errors += _check_step(field, low, high, step, default, whole)
    return errors


def _check_max(field: str, low: Quantity, high: Quantity, default: Quantity, whole: Quantity) -> Errors:
    errors: Errors = []
    if low > high:
        errors.append(invalid(f"{field}.max", str(low), f"min is larger than max: {high}"))
    if high > whole:
        errors.append(invalid(f"{field}.max", str(high), f"max is larger than capacity value: {whole}"))
    if default > high:
        errors.append(invalid(f"{field}.default", str(default), f"default is more than max: {high}"))
    return errors


def _check_step(
    field: str, low: Quantity, high: Quantity | None, step: Quantity, default: Quantity, whole: Quantity
) -> Errors:
    path = f"{field}.step"
    if step.value <= 0:
        return [invalid(path, str(step), "must be greater than zero")]
    errors: Errors = []
    first = Quantity(low.value + step.value, low.form if low.value else step.form)
    if first > whole:
        errors.append(invalid(path, str(step), f"one step {first} is larger than capacity value: {whole}"))
    unsafe: Errors = []
    for name, bound in (("default", default), ("min", low), ("max", high), ("step", step)):
        if bound is None:
            continue
        if bound.value < 0:
            unsafe.append(invalid(f"{field}.{name}", str(bound), "must be greater than or equal to 0"))
        elif bound.value > INT64_MAX:
            unsafe.append(invalid(f"{field}.{name}", str(bound), f"must not be larger than {INT64_MAX}"))
    if unsafe:
        return errors + unsafe
    for value in (default, high):
        if value is not None and (value.rounded_up() - low.rounded_up()) % step.rounded_up():
            errors.append(invalid(path, str(value), f"value is not a multiple of a given step ({step}) from ({low})"))
    return errors
