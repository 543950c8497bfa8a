"""Quantities are exact, compare by number, and print as Kubernetes prints them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kubeletplugin.quantity import INT64_MAX, Form, Quantity, QuantityError, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("007", 7),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100m", Fraction(1, 10)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("2k", 2000),
        ("3M", 3 * 10**6),
        ("4G", 4 * 10**9),
        ("5T", 5 * 10**12),
        ("6P", 6 * 10**15),
        ("7E", 7 * 10**18),
        ("1Ki", 1024),
        ("80Gi", 80 * 1024**3),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("2Ei", 2 * 1024**6),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-3", Fraction(12, 1000)),
        ("1e+2", 100),
        ("1E", 10**18),
        (42, 42),
        (-3, -3),
    ],
)
def test_a_quantity_is_read_exactly(text: str | int, value: int | Fraction) -> None:
    assert parse_quantity(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "1x",
        "Gi",
        "1 Gi",
        " 1",
        "1gi",
        "1KI",
        "80 GB",
        "1Gi ",
        "--1",
        "1.2.3",
        "1e",
        "1e3.5",
        "e3",
        "1mm",
        "0x10",
        "1_000",
        "١",
        ".",
        "-",
        "1e99999999999",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("value", [True, None, 1.5, ["1"]])
def test_only_text_and_whole_numbers_are_quantities(value: object) -> None:
    with pytest.raises(QuantityError, match="text like 80Gi or a whole number"):
        parse_quantity(value)  # type: ignore[arg-type] # that is the point


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("1023Mi", "1023Mi"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("1000", "1k"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("100000", "100k"),
        ("123456", "123456"),
        ("1000000", "1M"),
        ("0.0001", "100u"),
        ("-1024Ki", "-1Mi"),
        ("-0.5", "-500m"),
        ("1e3", "1e3"),
        ("1000e0", "1e3"),
        ("10e2", "1e3"),
        ("1.5e3", "1500"),
        ("0.1n", "1n"),
        ("1.1n", "2n"),
        ("16Ei", str(INT64_MAX)),
        ("85899345920", "85899345920"),
    ],
)
def test_the_canonical_form_is_that_of_kubernetes(text: str, canonical: str) -> None:
    assert str(parse_quantity(text)) == canonical


def test_quantities_of_one_size_are_equal_whatever_they_look_like() -> None:
    same = {parse_quantity(text) for text in ("1Gi", "1024Mi", "1073741824", "1073741824000m")}

    assert len(same) == 1
    assert parse_quantity("1G") < parse_quantity("1Gi") <= parse_quantity("1024Mi")
    assert parse_quantity("1") != "1"


@pytest.mark.parametrize(
    ("text", "whole", "milli"), [("1500m", 2, 1500), ("-1500m", -2, -1500), ("1u", 1, 1), ("2", 2, 2000)]
)
def test_rounding_goes_away_from_zero(text: str, whole: int, milli: int) -> None:
    assert (parse_quantity(text).rounded_up(), parse_quantity(text).milli_rounded_up()) == (whole, milli)


numbers = st.builds(Fraction, st.integers(-(10**12), 10**12), st.sampled_from([1, 10, 1000, 10**6, 10**9]))


@given(numbers, st.sampled_from(Form))
def test_what_is_printed_is_read_back(value: Fraction, form: Form) -> None:
    assert parse_quantity(str(Quantity(value, form))) == Quantity(value)


@given(numbers, st.sampled_from(Form))
def test_the_canonical_form_is_its_own_canonical_form(value: Fraction, form: Form) -> None:
    canonical = str(Quantity(value, form))
    # A binary quantity without a suffix is read as a decimal one the next time, in Kubernetes as well.
    assume(form is not Form.BINARY or canonical.endswith("i"))

    assert str(parse_quantity(canonical)) == canonical


@given(numbers, numbers)
def test_quantities_are_ordered_like_numbers(left: Fraction, right: Fraction) -> None:
    assert (Quantity(left) < Quantity(right)) == (left < right)
    assert (Quantity(left) == Quantity(right)) == (left == right)
    assert left != right or hash(Quantity(left)) == hash(Quantity(right))


@given(st.text("0123456789.+-eEkKMGTPimnu ", max_size=8))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        quantity = parse_quantity(text)
    except QuantityError:
        return
    assume(quantity.form is not Form.DECIMAL or abs(quantity.value) < 10**21)
    assert parse_quantity(str(quantity)) == quantity
