"""The operators and conversions of CEL's standard library."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from . import times
from .errors import EvaluationError
from .gotext import general
from .overloads import Overload, declare, for_types, one, smaller, traversal
from .times import Duration
from .values import UNORDERED, Optional, TypeValue, UInt, compare, equal, no_overload, same, size, type_name

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
_ORDERED: Final = ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp")
_CROSS: Final = ("int, double", "int, uint", "uint, double", "uint, int", "double, int", "double, uint")


def _int(number: int) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise EvaluationError("integer overflow")
    return number


def _uint(number: int) -> UInt:
    if not 0 <= number <= UINT_MAX:
        raise EvaluationError("unsigned integer overflow")
    return UInt(number)


def _quotient(one_: int, other: int) -> int:
    if other == 0:
        raise EvaluationError("division by zero")
    quotient = abs(one_) // abs(other)
    return quotient if (one_ < 0) == (other < 0) else -quotient


def _rest(one_: int, other: int) -> int:
    if other == 0:
        raise EvaluationError("modulus by zero")
    return int(math.copysign(1, one_)) * (abs(one_) % abs(other))


def _float_quotient(one_: float, other: float) -> float:
    if other != 0:
        return one_ / other
    return math.nan if one_ == 0 or math.isnan(one_) else math.copysign(math.inf, one_) * math.copysign(1, other)


def _negative(value: float | Duration) -> float | Duration:
    """Also of a duration, which has a negative although no signature says so: only a run can meet one."""
    return times.span(-value.nanos) if isinstance(value, Duration) else -value


def _texts(args: list[object], _: object) -> int:
    return math.ceil((size(args[0]) + size(args[1])) * 0.1)


def _arithmetic() -> list[Overload]:
    found = []
    plain: list[tuple[str, Callable[[int, int], int]]] = [
        ("_+_", lambda a, b: a + b),
        ("_-_", lambda a, b: a - b),
        ("_*_", lambda a, b: a * b),
        ("_/_", _quotient),
        ("_%_", _rest),
    ]
    for name, run in plain:
        found.append(declare(f"{name}(int, int) -> int", lambda a, b, run=run: _int(run(int(a), int(b)))))
        found.append(declare(f"{name}(uint, uint) -> uint", lambda a, b, run=run: _uint(run(int(a), int(b)))))
    floats: list[tuple[str, Callable[[float, float], float]]] = [
        ("_+_", lambda a, b: a + b),
        ("_-_", lambda a, b: a - b),
        ("_*_", lambda a, b: a * b),
        ("_/_", _float_quotient),
    ]
    found += [declare(f"{name}(double, double) -> double", run) for name, run in floats]
    found += [
        declare("_+_(string, string) -> string", lambda a, b: a + b, _texts),
        declare("_+_(bytes, bytes) -> bytes", lambda a, b: a + b, _texts),
        declare("_+_(list(A), list(A)) -> list(A)", lambda a, b: [*a, *b]),
        declare("-_(int) -> int", lambda a: _int(-a)),
        replace(
            declare("-_(double) -> double", _negative),
            guards=((frozenset((float, Duration)), None),),
        ),
        declare("!_(bool) -> bool", lambda a: not a),
    ]
    return found


def _comparisons() -> list[Overload]:
    found = []
    tests: list[tuple[str, Callable[[int], bool]]] = [
        ("_<_", lambda order: order == -1),
        ("_<=_", lambda order: order in (-1, 0)),
        ("_>_", lambda order: order == 1),
        ("_>=_", lambda order: order in (0, 1)),
    ]
    for name, test in tests:

        def run(a: object, b: object, test: Callable[[int], bool] = test) -> bool:
            order = compare(a, b)
            if order == UNORDERED:
                raise EvaluationError("NaN values cannot be ordered")
            return test(order)

        for kind in _ORDERED:
            cost = smaller if kind in ("string", "bytes") else one
            found.append(declare(f"{name}({kind}, {kind}) -> bool", run, cost))
        found += for_types(f"{name}(?) -> bool", _CROSS, run)
    found.append(declare("_==_(A, A) -> bool", equal, smaller))
    found.append(declare("_!=_(A, A) -> bool", lambda a, b: not equal(a, b), smaller))
    return found


def contains(item: object, whole: object) -> bool:
    """The operator ``in``."""
    if isinstance(whole, dict):
        found: object = None
        try:
            found = whole.get(item, whole)
        except TypeError:
            raise no_overload() from None
        return found is not whole and (not isinstance(item, bool) or any(key is item for key in whole))
    if not isinstance(whole, (list, tuple)):
        raise no_overload()
    return any(same(item, each) for each in whole)


def _list_size(args: list[object], _: object) -> int:
    return size(args[1])


def _size(value: object) -> int:
    return len(value)  # type: ignore[arg-type]  # the guards let only things with a length in


def _to_int(value: object) -> int:
    if isinstance(value, str):
        text = value
        if not text.isascii() or "_" in text or text != text.strip():
            raise EvaluationError(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        try:
            return _in_range(int(text, 10), text)
        except ValueError:
            raise EvaluationError(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    if isinstance(value, float) and not (math.isfinite(value) and INT_MIN < value < INT_MAX):
        raise EvaluationError("integer overflow")
    return _int(int(value))  # type: ignore[call-overload]  # the guards let only numbers in


def _in_range(number: int, text: str) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise EvaluationError(f'strconv.ParseInt: parsing "{text}": value out of range')
    return number


def _to_uint(value: object) -> UInt:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()):
            raise EvaluationError(f'strconv.ParseUint: parsing "{value}": invalid syntax')
        return _uint(int(value))
    if isinstance(value, float) and not (math.isfinite(value) and 0 <= value < UINT_MAX):
        raise EvaluationError("unsigned integer overflow")
    return _uint(int(value))  # type: ignore[call-overload]  # the guards let only numbers in


_FLOAT: Final = re.compile(r"nan|[+-]?(inf|infinity|0x[0-9a-f_.]+p[+-]?[0-9]+|[0-9_.]+(e[+-]?[0-9_]+)?)", re.IGNORECASE)


def _to_double(value: object) -> float:
    if not isinstance(value, str):
        return float(value)  # type: ignore[arg-type]  # the guards let only numbers and texts in
    number = _parsed(value)
    if number is None:
        raise EvaluationError(f'strconv.ParseFloat: parsing "{value}": invalid syntax or value out of range')
    return number


def _parsed(text: str) -> float | None:
    """As Go's ParseFloat; None where that fails."""
    if not _FLOAT.fullmatch(text) or not text.isascii():
        return None
    try:
        number = float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):  # of what the pattern takes, or out of range
        return None
    return number if math.isfinite(number) or "n" in text.lower() else None


def _to_string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return general(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
    return str(value)


_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def _to_bool(value: object) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE or isinstance(value, bool):
        return bool(value) if isinstance(value, bool) else False
    raise EvaluationError(f'strconv.ParseBool: parsing "{value}": invalid syntax')


def _conversions() -> list[Overload]:
    found = []
    found += for_types("int(?) -> int", ("int", "uint", "double", "string"), _to_int)
    found += for_types("uint(?) -> uint", ("int", "uint", "double", "string"), _to_uint)
    found += for_types("double(?) -> double", ("int", "uint", "double", "string"), _to_double)
    found += for_types("string(?) -> string", ("bool", "int", "uint", "double", "string"), _to_string)
    found += [
        declare("string(bytes) -> string", _to_string, traversal()),
        declare("bytes(string) -> bytes", lambda text: text.encode(), traversal()),
        declare("bytes(bytes) -> bytes", lambda data: data),
        declare("bool(bool) -> bool", _to_bool),
        declare("bool(string) -> bool", _to_bool),
        declare("dyn(A) -> dyn", lambda value: value),
        declare("type(A) -> type", lambda value: TypeValue(type_name(value))),
    ]
    return found


def _not_strictly_false(value: object) -> bool:
    return value is not False


def _insert(whole: dict[object, object], *put: object) -> dict[object, object]:
    pairs = put[0].items() if len(put) == 1 and isinstance(put[0], dict) else [put]
    merged = dict(whole)
    for key, value in pairs:
        if key in merged:
            raise EvaluationError(f"insert failed: key {key} already exists")
        merged[key] = value
    return merged


def _value(value: Optional) -> object:
    if not value.present:
        raise EvaluationError("optional.none() dereference")
    return value.value


def _non_zero(value: object) -> Optional:
    zero = value is None or value is False or (isinstance(value, (int, float, str, bytes, list, dict)) and not value)
    zero = zero or value == Duration(0) or value == times.ZERO
    return Optional() if zero else Optional(value, True)


def declarations() -> list[Overload]:
    """All of them: the same in every release."""
    return [
        *_arithmetic(),
        *_comparisons(),
        *_conversions(),
        *for_types("size(?) -> int", ("string", "bytes", "list(A)", "map(A, B)"), _size),
        *for_types("*size(?) -> int", ("string", "bytes", "list(A)", "map(A, B)"), _size),
        declare("@in(A, list(A)) -> bool", contains, _list_size),
        declare("@in(A, map(A, B)) -> bool", contains),
        declare("@not_strictly_false(bool) -> bool", _not_strictly_false),
        declare("cel.@mapInsert(map(A, B), A, B) -> map(A, B)", _insert),
        declare("cel.@mapInsert(map(A, B), map(A, B)) -> map(A, B)", _insert),
        declare("optional.of(A) -> optional(A)", lambda value: Optional(value, True)),
        declare("optional.ofNonZeroValue(A) -> optional(A)", _non_zero),
        declare("optional.none() -> optional(A)", Optional),
        declare("*value(optional(A)) -> A", _value),
        declare("*hasValue(optional(A)) -> bool", lambda value: value.present),
    ]
