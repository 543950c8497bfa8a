"""Kubernetes quantities: read as apimachinery reads them, written as it writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.quantity import (
    BINARY,
    DECIMAL,
    EXPONENT,
    MAX_INT64,
    NANO,
    Quantity,
    QuantityError,
    add,
    milli,
    parse,
    read,
    subtract,
    whole,
)


@pytest.mark.parametrize(
    ("text", "nanos", "written"),
    [
        ("0", 0, "0"),
        ("1", NANO, "1"),
        ("+1", NANO, "1"),
        ("-1", -NANO, "-1"),
        ("1.5", 1_500_000_000, "1500m"),
        ("1500m", 1_500_000_000, "1500m"),
        (".5", 500_000_000, "500m"),
        ("1.", NANO, "1"),
        ("1Ki", 1024 * NANO, "1Ki"),
        ("1.5Gi", 1536 * 2**20 * NANO, "1536Mi"),
        ("0.5Gi", 512 * 2**20 * NANO, "512Mi"),
        ("1000k", 10**6 * NANO, "1M"),
        ("12e6", 12 * 10**6 * NANO, "12e6"),
        ("1E3", 1000 * NANO, "1e3"),
        ("1E", 10**18 * NANO, "1E"),
        ("0.1n", 1, "1n"),
        ("1.0000000001", NANO + 1, "1000000001n"),
        ("100Ki", 100 * 1024 * NANO, "100Ki"),
        ("1023", 1023 * NANO, "1023"),
        ("0.5Ki", 512 * NANO, "512"),
        ("9223372036854775808Ki", MAX_INT64 * NANO, "9223372036854775807"),
        ("007", 7 * NANO, "7"),
    ],
)
def test_a_quantity_is_read_and_written_canonically(text: str, nanos: int, written: str) -> None:
    found = parse(text)
    assert found.nanos == nanos
    assert str(Quantity(found.nanos, found.notation)) == written


@pytest.mark.parametrize("text", ["", " ", "x", "1x", "1KiB", "--1", "1..2", "e3", "1e", "Gi", "1 Gi", "1e3Ki", "0x10"])
def test_what_is_no_quantity_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(QuantityError, match="quantity"):
        parse(text)


@pytest.mark.parametrize(("value", "nanos"), [("2", 2 * NANO), (2, 2 * NANO), (0.5, NANO // 2), (" 2 ", 2 * NANO)])
def test_json_numbers_are_quantities_too(value: object, nanos: int) -> None:
    assert read(value).nanos == nanos


@pytest.mark.parametrize("value", [None, True, [], {}])
def test_other_json_values_are_not(value: object) -> None:
    with pytest.raises(QuantityError):
        read(value)


@pytest.mark.parametrize(
    ("text", "integer"),
    [("7", True), ("1k", True), ("8Gi", True), ("1500m", False), ("1000m", False), ("1.5Gi", False), ("9Ei", False)],
)
def test_only_what_upstream_keeps_as_int64_counts_as_an_integer(text: str, integer: bool) -> None:
    assert parse(text).integer is integer


@pytest.mark.parametrize(("text", "value"), [("1500m", 2), ("1n", 1), ("-1500m", -2), ("3", 3), ("0", 0), ("-1n", -1)])
def test_the_whole_number_is_rounded_away_from_zero(text: str, value: int) -> None:
    assert parse(text).value() == value


@pytest.mark.parametrize(("text", "thousandths"), [("1", 1000), ("250m", 250), ("1u", None), ("100E", None)])
def test_thousandths_are_given_only_where_they_are_exact(text: str, thousandths: int | None) -> None:
    assert milli(parse(text)) == thousandths


def test_sums_are_written_as_their_first_part_or_as_the_second_beside_zero() -> None:
    assert str(add(parse("1Gi"), parse("1024Mi"))) == "2Gi"
    assert str(subtract(parse("2Gi"), parse("1Gi"))) == "1Gi"
    assert add(whole(0), parse("1Gi")).notation == BINARY
    assert add(parse("1"), parse("1Gi")).notation == DECIMAL
    assert add(parse("1e3"), parse("1")).notation == EXPONENT


def test_equal_values_are_equal_in_every_notation_but_not_the_same() -> None:
    assert parse("1Gi") == parse("1024Mi")
    assert hash(parse("1Gi")) == hash(parse("1024Mi"))
    assert not parse("1Ki").same_as(parse("1024"))
    assert parse("5").same_as(parse("5"))


@given(st.integers(-(10**18), 10**18), st.sampled_from([BINARY, DECIMAL, EXPONENT]))
def test_what_is_written_is_read_back(number: int, notation: str) -> None:
    assert parse(str(whole(number, notation))).nanos == number * NANO


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_adding_and_taking_away_again_changes_nothing(one: int, other: int) -> None:
    assert subtract(add(whole(one), whole(other)), whole(other)) == whole(one)
