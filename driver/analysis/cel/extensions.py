"""The extensions that Kubernetes switches on: strings, lists, sets, regular expressions, quantities, versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from .. import quantity
from ..quantity import Quantity, QuantityError
from . import network, regex
from .errors import EvaluationError
from .operators import INT_MAX, INT_MIN, UINT_MAX
from .overloads import Overload, allocating, declare, elements, for_types, squared, traversal
from .values import UInt, compare, same, semver, size, tolerant_semver

_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "string", "bytes")


def _pattern_cost(args: list[object], _: object) -> int:
    return math.ceil((1 + size(args[0])) * 0.1) * math.ceil(size(args[1]) * 0.25)


def _contains_cost(args: list[object], _: object) -> int:
    return math.ceil(size(args[0]) * 0.1) * math.ceil(size(args[1]) * 0.1)


def _join_cost(_: list[object], result: object) -> int:
    return math.ceil(size(result) * 0.2)


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _offset(text: str, offset: int) -> bool:
    """Whether something can be found from there on."""
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    return offset < len(text)


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if part == "":
        return offset
    return text.find(part, offset) if _offset(text, offset) else -1


def _last_index_of(text: str, part: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(part)
    if part == "":
        return offset
    return text.rfind(part, 0, offset + len(part)) if _offset(text, offset) else -1


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    if not 0 <= stop <= len(text):
        raise EvaluationError(f"index out of range: {stop}")
    if start > stop:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {stop}")
    return text[start:stop]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text]
    if separator == "":
        whole = list(text)
        return whole if limit < 0 or len(whole) <= limit else [*whole[: limit - 1], "".join(whole[limit - 1 :])]
    return text.split(separator) if limit < 0 else text.split(separator, limit - 1)


def _ascii(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(each) if each.isascii() else each for each in text)


def _join(parts: list[object], separator: str = "") -> str:
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        raise EvaluationError("no such overload")
    return separator.join(texts)


def _strings() -> list[Overload]:
    return [
        declare("*contains(string, string) -> bool", lambda a, b: b in a, _contains_cost),
        declare("*startsWith(string, string) -> bool", lambda a, b: a.startswith(b), traversal(1)),
        declare("*endsWith(string, string) -> bool", lambda a, b: a.endswith(b), traversal(1)),
        declare("*matches(string, string) -> bool", regex.matches, _pattern_cost),
        declare("matches(string, string) -> bool", regex.matches, _pattern_cost),
        declare("*find(string, string) -> string", regex.find, _pattern_cost),
        declare("*findAll(string, string) -> list(string)", regex.find_all, _pattern_cost),
        declare("*findAll(string, string, int) -> list(string)", regex.find_all, _pattern_cost),
        declare("*charAt(string, int) -> string", _char_at),
        declare("*indexOf(string, string) -> int", _index_of, elements),
        declare("*indexOf(string, string, int) -> int", _index_of, elements),
        declare("*lastIndexOf(string, string) -> int", _last_index_of, elements),
        declare("*lastIndexOf(string, string, int) -> int", _last_index_of, elements),
        declare("*lowerAscii(string) -> string", _ascii(str.lower), traversal()),
        declare("*upperAscii(string) -> string", _ascii(str.upper), traversal()),
        declare("*trim(string) -> string", lambda text: text.strip(), traversal()),
        declare("*replace(string, string, string) -> string", lambda a, b, c: a.replace(b, c), traversal(factor=2)),
        declare(
            "*replace(string, string, string, int) -> string",
            lambda a, b, c, n: a.replace(b, c, n),
            traversal(factor=2),
        ),
        declare("*split(string, string) -> list(string)", _split, traversal(factor=2)),
        declare("*split(string, string, int) -> list(string)", _split, traversal(factor=2)),
        declare("*substring(string, int) -> string", _substring, traversal()),
        declare("*substring(string, int, int) -> string", _substring, traversal()),
        declare("*join(list(string)) -> string", _join, _join_cost),
        declare("*join(list(string), string) -> string", _join, _join_cost),
    ]


def _extreme(wanted: int, name: str) -> Callable[[list[object]], object]:
    def run(values: list[object]) -> object:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        best = values[0]
        for value in values[1:]:
            if compare(best, value) == wanted:
                best = value
        return best

    return run


def _total(values: list[object], zero: object) -> object:
    total = zero
    for value in values:
        if type(value) is not type(zero):
            raise EvaluationError("no such overload")
        total = type(zero)(total + value)  # type: ignore[call-arg, operator]  # numbers of one type, as looked at above
    if isinstance(total, int) and not INT_MIN <= total <= (UINT_MAX if isinstance(zero, UInt) else INT_MAX):
        raise EvaluationError("integer overflow")
    return total


def _sorted(values: list[object]) -> bool:
    return all(compare(a, b) != 1 for a, b in pairwise(values))


def _find(values: list[object], item: object) -> int:
    return next((index for index, value in enumerate(values) if same(value, item)), -1)


def _find_last(values: list[object], item: object) -> int:
    return next((index for index in reversed(range(len(values))) if same(values[index], item)), -1)


def _slice(values: list[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _distinct(values: list[object]) -> list[object]:
    kept: list[object] = []
    for value in values:
        if not any(same(value, each) for each in kept):
            kept.append(value)
    return kept


def _flatten(values: list[object], depth: int = 1) -> list[object]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[object] = []
    for value in values:
        flat += _flatten(list(value), depth - 1) if isinstance(value, (list, tuple)) and depth else [value]
    return flat


def _flatten_cost(args: list[object], _: object) -> int:
    depth = args[1] if len(args) > 1 and isinstance(args[1], int) else 1
    return max(0, depth) * size(args[0]) + 11


def _includes(target: object, item: object) -> bool:
    return _find(list(target), item) >= 0 if isinstance(target, (list, tuple)) else same(target, item)


def _subset(one: list[object], other: list[object]) -> bool:
    return all(_find(one, each) >= 0 for each in other)


def _product(factor: int) -> Callable[[list[object], object], int]:
    return lambda args, _: 1 + size(args[0]) * size(args[1]) * factor


def _lists() -> list[Overload]:
    return [
        *for_types("*isSorted(list(?)) -> bool", _COMPARABLE, _sorted, elements),
        *for_types("*min(list(?)) -> ?", _COMPARABLE, _extreme(1, "min"), elements),
        *for_types("*max(list(?)) -> ?", _COMPARABLE, _extreme(-1, "max"), elements),
        *for_types("*sort(list(?)) -> list(?)", _COMPARABLE, lambda v: sorted(v, key=cmp_to_key(compare)), squared),
        declare("*sum(list(int)) -> int", lambda values: _total(values, 0), elements),
        declare("*sum(list(uint)) -> uint", lambda values: _total(values, UInt(0)), elements),
        declare("*sum(list(double)) -> double", lambda values: _total(values, 0.0), elements),
        declare("*indexOf(list(A), A) -> int", _find, elements),
        declare("*lastIndexOf(list(A), A) -> int", _find_last, elements),
        declare("*slice(list(A), int, int) -> list(A)", _slice, allocating),
        declare("*distinct(list(A)) -> list(A)", _distinct, squared),
        declare("*reverse(list(A)) -> list(A)", lambda values: values[::-1], allocating),
        declare("*flatten(list(list(A))) -> list(A)", _flatten, _flatten_cost),
        declare("*flatten(list(dyn), int) -> list(dyn)", _flatten, _flatten_cost),
        declare("lists.range(int) -> list(int)", lambda count: list(range(count)), allocating),
        declare("sets.contains(list(A), list(A)) -> bool", _subset, _product(1)),
        declare("sets.equivalent(list(A), list(A)) -> bool", lambda a, b: _subset(a, b) and _subset(b, a), _product(2)),
        declare(
            "sets.intersects(list(A), list(A)) -> bool", lambda a, b: any(_find(a, x) >= 0 for x in b), _product(1)
        ),
    ]


def _to_quantity(text: str) -> Quantity:
    try:
        return quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(str(error)) from error


def _is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except QuantityError:
        return False
    return True


def _is_semver(text: str, tolerant: bool = False) -> bool:
    try:
        _to_semver(text, tolerant)
    except EvaluationError:
        return False
    return True


def _to_semver(text: str, tolerant: bool = False) -> object:
    return tolerant_semver(text) if tolerant else semver(text)


def _as_integer(value: Quantity) -> int:
    if not value.integer:
        raise EvaluationError("cannot convert value to integer")
    return value.nanos // quantity.NANO


def _order(one: int, other: int) -> int:
    return (one > other) - (one < other)


def _quantities() -> list[Overload]:
    it = "kubernetes.Quantity"
    return [
        declare(f"quantity(string) -> {it}", _to_quantity, traversal()),
        declare("isQuantity(string) -> bool", _is_quantity, traversal()),
        declare(f"sign({it}) -> int", lambda a: _order(a.nanos, 0)),
        declare(f"*isGreaterThan({it}, {it}) -> bool", lambda a, b: a.nanos > b.nanos),
        declare(f"*isLessThan({it}, {it}) -> bool", lambda a, b: a.nanos < b.nanos),
        declare(f"*compareTo({it}, {it}) -> int", lambda a, b: _order(a.nanos, b.nanos)),
        declare(f"*asApproximateFloat({it}) -> double", lambda a: a.nanos / quantity.NANO),
        declare(f"*asInteger({it}) -> int", _as_integer),
        declare(f"*isInteger({it}) -> bool", lambda a: a.integer),
        declare(f"*add({it}, {it}) -> {it}", quantity.add),
        declare(f"*add({it}, int) -> {it}", lambda a, b: quantity.add(a, quantity.whole(b, quantity.EXPONENT))),
        declare(f"*sub({it}, {it}) -> {it}", quantity.subtract),
        declare(f"*sub({it}, int) -> {it}", lambda a, b: quantity.subtract(a, quantity.whole(b, quantity.EXPONENT))),
    ]


def _versions() -> list[Overload]:
    it = "kubernetes.Semver"
    return [
        declare(f"semver(string) -> {it}", _to_semver, traversal()),
        declare(f"semver(string, bool) -> {it}", _to_semver, traversal()),
        declare("isSemver(string) -> bool", _is_semver, traversal()),
        declare("isSemver(string, bool) -> bool", _is_semver, traversal()),
        declare(f"*isGreaterThan({it}, {it}) -> bool", lambda a, b: a > b),
        declare(f"*isLessThan({it}, {it}) -> bool", lambda a, b: a < b),
        declare(f"*compareTo({it}, {it}) -> int", lambda a, b: (a > b) - (a < b)),
        declare(f"*major({it}) -> int", lambda a: a.major),
        declare(f"*minor({it}) -> int", lambda a: a.minor),
        declare(f"*patch({it}) -> int", lambda a: a.patch),
    ]


def _contains_ip(args: list[object], _: object) -> int:
    text = math.ceil(size(args[1]) * 0.1) if isinstance(args[1], str) else 0
    return math.ceil(2 * size(args[0]) * 0.1) + text


def _contains_cidr(args: list[object], result: object) -> int:
    return _contains_ip(args, result) + math.ceil(size(args[0]) * 0.1) + 1


def _networks() -> list[Overload]:
    one, net = "net.IP", "net.CIDR"
    return [
        declare("isIP(string) -> bool", network.is_ip, traversal()),
        declare(f"ip(string) -> {one}", network.ip, traversal()),
        declare("ip.isCanonical(string) -> bool", lambda text: str(network.ip(text)) == text, traversal(factor=2)),
        declare(f"*family({one}) -> int", lambda a: a.address.version),
        declare(f"*isUnspecified({one}) -> bool", lambda a: a.address.is_unspecified),
        declare(f"*isLoopback({one}) -> bool", lambda a: a.address.is_loopback),
        declare(f"*isLinkLocalMulticast({one}) -> bool", network.IP.is_link_local_multicast),
        declare(f"*isLinkLocalUnicast({one}) -> bool", lambda a: a.address.is_link_local),
        declare(f"*isGlobalUnicast({one}) -> bool", network.IP.is_global_unicast),
        declare(f"string({one}) -> string", str),
        declare("isCIDR(string) -> bool", network.is_cidr, traversal()),
        declare(f"cidr(string) -> {net}", network.cidr, traversal()),
        declare(f"*containsIP({net}, string) -> bool", lambda a, b: a.contains(network.ip(b).address), _contains_ip),
        declare(f"*containsIP({net}, {one}) -> bool", lambda a, b: a.contains(b.address), _contains_ip),
        declare(f"*containsCIDR({net}, string) -> bool", lambda a, b: a.covers(network.cidr(b)), _contains_cidr),
        declare(f"*containsCIDR({net}, {net}) -> bool", network.Cidr.covers, _contains_cidr),
        declare(f"*ip({net}) -> {one}", lambda a: network.IP(a.address)),
        declare(f"*prefixLength({net}) -> int", lambda a: a.bits),
        declare(f"*masked({net}) -> {net}", network.Cidr.masked),
        declare(f"string({net}) -> string", str),
    ]


def declarations(*, includes: bool) -> list[Overload]:
    """All of them; ``includes`` is there since 1.36."""
    more = [declare("*includes(dyn, dyn) -> bool", _includes, elements)] if includes else []
    return [*_strings(), *_lists(), *_quantities(), *_versions(), *_networks(), *more]
