"""Sorting, first and last elements, ranges: what is defined, what is an error, and what is left to chance upstream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import (
    CompileError,
    CostError,
    EvaluationError,
    UnsupportedError,
    compile_derived,
    compile_selector,
)
from driver.analysis.cel.extensions import _sort_by

DEVICE: dict[str, object] = {"driver": "d.io", "attributes": {}, "capacity": {}, "allowMultipleAllocations": False}


def value(expression: str) -> object:
    return compile_derived(expression, 37).run(DEVICE)[0]


@given(st.lists(st.tuples(st.integers(-3, 3), st.text(max_size=2)), max_size=12))
def test_short_lists_are_sorted_stably(pairs: list[tuple[int, str]]) -> None:
    keys: list[object] = [key for key, _ in pairs]
    assert _sort_by(list(pairs), keys) == sorted(pairs, key=lambda pair: pair[0])


@given(st.lists(st.integers(), min_size=13, max_size=30, unique=True))
def test_long_lists_are_sorted_where_no_keys_are_equal(numbers: list[int]) -> None:
    assert _sort_by(list(numbers), list(numbers)) == sorted(numbers)


def test_a_long_list_with_equal_keys_has_no_order_that_could_be_told() -> None:
    with pytest.raises(UnsupportedError, match="left to chance"):
        _sort_by(list(range(13)), [0] * 13)
    assert _sort_by([0] * 13, [0] * 13) == [0] * 13


@pytest.mark.parametrize("keys", [[None], [[1]], [1, "a"], [1, 1.0], [True, 1]])
def test_what_cannot_be_compared_is_not_sorted(keys: list[object]) -> None:
    with pytest.raises(EvaluationError, match="list elements must"):
        _sort_by(keys, keys)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("[3, 1, 2].sortBy(x, -x)", [3, 2, 1]),
        ("['bb', 'a'].sortBy(x, x.size())", ["a", "bb"]),
        ("[3, 1, 2].sort().first().value()", 1),
        ("[3, 1, 2].last().value()", 2),
        ("optional.unwrap([optional.of(1), optional.none()])", [1]),
        ("[duration('1s'), duration('2s')].sum().getSeconds()", 3),
        ("lists.range(3)", [0, 1, 2]),
    ],
)
def test_lists_are_sorted_and_taken_apart(expression: str, found: object) -> None:
    assert value(expression) == found


@pytest.mark.parametrize("expression", ["'ab'.sortBy(x, x)", "{'a': 1}.sortBy(x, x)", "[1].sortBy(1, 1)"])
def test_only_lists_are_sorted_by_a_key(expression: str) -> None:
    with pytest.raises(CompileError):
        compile_selector(f"{expression} == [1]", 37)


@pytest.mark.parametrize(("release", "kind"), [(36, CostError), (37, EvaluationError)])
def test_a_range_that_would_fill_the_memory_is_not_made(release: int, kind: type[EvaluationError]) -> None:
    with pytest.raises(kind):
        compile_selector("lists.range(9000000000000000000).size() > 0", release).matches(DEVICE)


def test_a_negative_range_is_empty_until_1_36_and_an_error_since() -> None:
    assert compile_selector("lists.range(-1).size() == 0", 36).matches(DEVICE)
    with pytest.raises(EvaluationError, match="size must be non-negative, got -1"):
        compile_selector("lists.range(-1).size() == 0", 37).matches(DEVICE)


@pytest.mark.parametrize(
    ("expression", "before", "since"),
    [
        ("dyn(1).orValue(2) == 1", True, "no such overload"),
        ("'abc'.indexOf('', 5) == 3", False, True),
        ("'abc'.lastIndexOf('', 7) == 7", True, False),
        ("'abc'.indexOf('', -1) == -1", True, "index out of range: -1"),
    ],
)
def test_what_1_37_changed_is_as_it_was_before_in_older_releases(
    expression: str, before: bool, since: bool | str
) -> None:
    assert compile_selector(expression, 36).matches(DEVICE) is before
    if isinstance(since, bool):
        assert compile_selector(expression, 37).matches(DEVICE) is since
        return
    with pytest.raises(EvaluationError, match=since):
        compile_selector(expression, 37).matches(DEVICE)


def test_authorizer_functions_compile_where_a_type_is_open_and_never_run() -> None:
    assert compile_selector("dyn(1).path('/').check('get').allowed() || true", 37).matches(DEVICE)
    with pytest.raises(EvaluationError, match="no such overload"):
        compile_selector("dyn(1).path('/').check('get').allowed()", 37).matches(DEVICE)
    with pytest.raises(CompileError, match="undeclared reference to 'authorizer'"):
        compile_selector("authorizer.path('/').check('get').allowed()", 37)
