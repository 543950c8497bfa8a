"""The extensions of cel-go that Kubernetes switches on: strings, regular expressions, lists, sets, optionals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from . import formatting, regex, times
from .errors import CostError, EvaluationError, UnsupportedError
from .operators import INT_MAX, INT_MIN, UINT_MAX
from .overloads import Overload, allocating, declare, elements, for_types, one, squared, traversal
from .times import Duration, Timestamp
from .values import NONE, UNORDERED, Optional, UInt, compare, same, size

_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_COMPARED: Final = frozenset((int, UInt, float, bool, Duration, Timestamp, str, bytes))
_STABLE: Final = 12
"""Up to so many elements Go's sort leaves equal ones in their order; what it does with more is its own affair."""
_MOST: Final = 1_000_000
"""Elements of ``lists.range``: the limit of 1.37, and what costs more than any selector may."""


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


def _index_of(clamped: bool) -> Callable[..., int]:
    def run(text: str, part: str, offset: int = 0) -> int:
        if part == "":
            return _nothing_at(text, offset, clamped)
        return text.find(part, offset) if _offset(text, offset) else -1

    return run


def _last_index_of(clamped: bool) -> Callable[..., int]:
    def run(text: str, part: str, offset: int | None = None) -> int:
        if offset is None:
            return text.rfind(part)
        if part == "":
            return _nothing_at(text, offset, clamped)
        return text.rfind(part, 0, offset + len(part)) if _offset(text, offset) else -1

    return run


def _nothing_at(text: str, offset: int, clamped: bool) -> int:
    """Where the empty text is found from an offset on; since 1.37 that is a place in the text."""
    if not clamped:
        return offset
    _offset(text, offset)
    return min(offset, len(text))


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


_QUOTED: Final = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
                  "\\": r"\\", '"': r"\""}  # fmt: skip


def _quote(text: str) -> str:
    return '"' + "".join(_QUOTED.get(each, each) for each in text) + '"'


def _strings(release: int) -> list[Overload]:
    new = release >= 37
    index, last = _index_of(new), _last_index_of(new)
    begins = traversal(1 if new else 0)
    return [
        declare("*contains(string, string) -> bool", lambda a, b: b in a, _contains_cost),
        declare("*startsWith(string, string) -> bool", lambda a, b: a.startswith(b), begins),
        declare("*endsWith(string, string) -> bool", lambda a, b: a.endswith(b), begins),
        declare("*matches(string, string) -> bool", regex.matches, _pattern_cost),
        declare("matches(string, string) -> bool", regex.matches, _pattern_cost if new else one),
        declare("*find(string, string) -> string", regex.find, _pattern_cost),
        declare("*findAll(string, string) -> list(string)", regex.find_all, _pattern_cost),
        declare("*findAll(string, string, int) -> list(string)", regex.find_all, _pattern_cost),
        declare("*charAt(string, int) -> string", _char_at),
        declare("*indexOf(string, string) -> int", index, elements, elements),
        declare("*indexOf(string, string, int) -> int", index, elements),
        declare("*lastIndexOf(string, string) -> int", last, elements, elements),
        declare("*lastIndexOf(string, string, int) -> int", last, elements),
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
        declare("*format(string, list(dyn)) -> string", formatting.run, traversal()),
        declare("strings.quote(string) -> string", _quote, traversal()),
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


def _total(zero: float) -> Callable[[list[object]], object]:
    def run(values: list[object]) -> object:
        total = zero
        for value in values:
            if not isinstance(value, (int, float)) or type(value) is not type(zero):
                raise EvaluationError("no such overload")
            total = type(zero)(total + value)
            if isinstance(total, int) and not INT_MIN <= total <= (UINT_MAX if isinstance(zero, UInt) else INT_MAX):
                raise EvaluationError("integer overflow")
        return total

    return run


def _whole_span(values: list[object]) -> object:
    total = Duration(0)
    for value in values:
        if not isinstance(value, Duration):
            raise EvaluationError("no such overload")
        total = times.span(total.nanos + value.nanos)
    return total


def _sort(values: list[object]) -> list[object]:
    return _sort_by(values, values)


def _sort_by(values: list[object], keys: list[object]) -> list[object]:
    """The values in the order of their keys, as Go's unstable sort leaves them."""
    if not values:
        return values
    if type(keys[0]) not in _COMPARED:
        raise EvaluationError("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise EvaluationError("list elements must have the same type")
    if len(keys) <= _STABLE:
        return [values[index] for index in _inserted(keys)]
    pairs = sorted(zip(keys, values, strict=True), key=cmp_to_key(_by_key))
    for (key, value), (after, other) in pairwise(pairs):
        order = compare(key, after)
        if order == UNORDERED or (order == 0 and repr(value) != repr(other)):
            raise UnsupportedError("the order in which a long list with equal keys is sorted is left to chance")
    return [value for _, value in pairs]


def _by_key(one: tuple[object, object], other: tuple[object, object]) -> int:
    return compare(one[0], other[0])


def _inserted(keys: list[object]) -> list[int]:
    order = list(range(len(keys)))
    for end in range(1, len(keys)):
        at = end
        while at and compare(keys[order[at]], keys[order[at - 1]]) == -1:
            order[at - 1], order[at] = order[at], order[at - 1]
            at -= 1
    return order


def _range(limited: bool) -> Callable[[int], list[int]]:
    def run(count: int) -> list[int]:
        if limited and count < 0:
            raise EvaluationError(f"lists.range: size must be non-negative, got {count}")
        if limited and count > _MOST:
            raise EvaluationError(f"lists.range: size {count} exceeds maximum allowed ({_MOST})")
        if count > _MOST:
            raise CostError("operation cancelled: actual cost limit exceeded")
        return list(range(count))

    return run


def _unwrapped(values: list[object]) -> list[object]:
    for value in values:
        if not isinstance(value, Optional):
            raise EvaluationError("no such overload")
    return [value.value for value in values if isinstance(value, Optional) and value.present]


def _at(index: int) -> Callable[[list[object]], Optional]:
    return lambda values: Optional(values[index], True) if values else NONE


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


def _lists(release: int) -> list[Overload]:
    flatten = declare("*flatten(list(list(A))) -> list(A)", _flatten, _flatten_cost)
    return [
        *for_types("*isSorted(list(?)) -> bool", _COMPARABLE, _sorted, elements, elements),
        *for_types("*min(list(?)) -> ?", _COMPARABLE, _extreme(1, "min"), elements, elements),
        *for_types("*max(list(?)) -> ?", _COMPARABLE, _extreme(-1, "max"), elements, elements),
        *for_types("*sort(list(?)) -> list(?)", _COMPARABLE, _sort, squared()),
        *for_types("*@sortByAssociatedKeys(list(A), list(?)) -> list(A)", _COMPARABLE, _sort_by, squared(1)),
        declare("*sum(list(int)) -> int", _total(0), elements, elements),
        declare("*sum(list(uint)) -> uint", _total(UInt(0)), elements, elements),
        declare("*sum(list(double)) -> double", _total(0.0), elements, elements),
        declare("*sum(list(duration)) -> duration", _whole_span, elements, elements),
        declare("*indexOf(list(A), A) -> int", _find, elements, elements),
        declare("*lastIndexOf(list(A), A) -> int", _find_last, elements, elements),
        declare("*slice(list(A), int, int) -> list(A)", _slice, allocating),
        declare("*distinct(list(A)) -> list(A)", _distinct, squared()),
        declare("*reverse(list(A)) -> list(A)", lambda values: values[::-1], allocating),
        replace(flatten, guards=((frozenset((list, tuple)), None),)),  # upstream's takes flat lists too
        declare("*flatten(list(dyn), int) -> list(dyn)", _flatten, _flatten_cost),
        declare("lists.range(int) -> list(int)", _range(release >= 37), allocating),
        *_sets(),
        *_optionals(),
        *_including(release),
    ]


def _including(release: int) -> list[Overload]:
    """``includes`` is DRA's own in 1.36 and costs nothing special there."""
    cost = elements if release >= 37 else one
    return [declare("*includes(dyn, dyn) -> bool", _includes, cost)] if release >= 36 else []


def _sets() -> list[Overload]:
    return [
        declare("sets.contains(list(A), list(A)) -> bool", _subset, _product(1)),
        declare("sets.equivalent(list(A), list(A)) -> bool", lambda a, b: _subset(a, b) and _subset(b, a), _product(2)),
        declare(
            "sets.intersects(list(A), list(A)) -> bool", lambda a, b: any(_find(a, x) >= 0 for x in b), _product(1)
        ),
    ]


def _optionals() -> list[Overload]:
    return [
        declare("*first(list(A)) -> optional(A)", _at(0)),
        declare("*last(list(A)) -> optional(A)", _at(-1)),
        declare("optional.unwrap(list(optional(A))) -> list(A)", _unwrapped),
        declare("*unwrapOpt(list(optional(A))) -> list(A)", _unwrapped),
    ]


def declarations(release: int) -> list[Overload]:
    """All of them as Kubernetes 1.<release> has them."""
    return [*_strings(release), *_lists(release)]
