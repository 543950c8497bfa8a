"""Values take the form that the API server accepts, whatever the driver says."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.publish.values import bus_id, clip, quantity, semver

SEMVER = re.compile(
    r"\A(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?\Z",
    re.ASCII,
)
"""The server's own rule (resource.k8s.io/v1 validation)."""


@pytest.mark.bug("B05")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.159.04", "580.159.4"),
        ("535.54", "535.54.0"),
        ("570", "570.0.0"),
        ("550.90.07-grid", "550.90.7-grid"),
        ("12.4.131.1", "12.4.131+1"),
        ("6.19.14.31400000", "6.19.14+31400000"),
        ("580.105.08", "580.105.8"),
        ("570.86.15", "570.86.15"),
        ("v1.2.3", "1.2.3"),
        (" 580.105.08\n", "580.105.8"),
        ("1.2.3-rc.01+build.05", "1.2.3-rc.1+build.05"),
        ("550.90.07-grid edition/2", "550.90.7-grid-edition-2"),
        ("550.90-", "550.90.0"),
        ("0.0.0", "0.0.0"),
        ("18446744073709551615.0", "18446744073709551615.0.0"),
        ("", None),
        (None, None),
        ("N/A", None),
        ("r570.86", None),
        ("570..86", None),
        ("٥.٤.٣", None),
        ("18446744073709551616.0", None),
        ("1." + "9" * 5000, None),
        ("1.2.3-" + "a" * 80, None),
    ],
)
def test_a_version_becomes_a_strict_semantic_one_or_nothing(text: str | None, expected: str | None) -> None:
    assert semver(text) == expected


_VERSIONS = st.from_regex(r"\A[vV]?[0-9]{1,4}(\.[0-9]{1,4}){0,4}(-[0-9A-Za-z.+_ -]{0,12})?\Z", fullmatch=True)


@pytest.mark.bug("B05")
@given(_VERSIONS | st.text(max_size=40))
def test_whatever_comes_out_is_valid_and_stays_what_it_is(text: str) -> None:
    version = semver(text)

    assert version is None or (SEMVER.match(version) and len(version) <= 64)
    assert semver(version) == version


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=3), st.integers(0, 3))
def test_leading_zeros_never_change_the_numbers(numbers: list[int], zeros: int) -> None:
    text = ".".join("0" * zeros + str(number) for number in numbers)

    assert semver(text) == ".".join(str(number) for number in [*numbers, 0, 0][:3])


@pytest.mark.bug("B06")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 65, "a" * 64),
        ("a" * 63 + "€", "a" * 63),
        ("a" * 61 + "€", "a" * 61 + "€"),
        ("a" * 63 + " b", "a" * 63),
        ("NVIDIA GeForce RTX™ 5090 – 測試 ", "NVIDIA GeForce RTX™ 5090 – 測試"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_a_string_is_cut_at_a_character(text: str, expected: str) -> None:
    assert clip(text) == expected


@pytest.mark.bug("B06")
@given(st.text(max_size=100))
def test_a_cut_string_fits_is_a_prefix_and_loses_no_more_than_it_must(text: str) -> None:
    cut = clip(text)

    size = len(cut.encode())
    assert size <= 64
    assert text.strip().startswith(cut)
    if len(text.strip().encode()) <= 64:
        assert cut == text.strip()
    else:
        rest = text.strip()[len(cut) :]
        blanks = len(rest) - len(rest.lstrip())
        assert size + len(rest[: blanks + 1].encode()) > 64


@pytest.mark.bug("B04")
def test_a_string_that_is_not_unicode_does_not_break_the_cut() -> None:
    assert clip("GPU\udcf8") == "GPU?"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (81559 * 2**20, "81559Mi"),
        (80 * 2**30, "80Gi"),
        (1024, "1Ki"),
        (1000, "1k"),
        (1500, "1500"),
        (10**9, "1G"),
        (2**70, "1024Ei"),
        (0, "0"),
        (1, "1"),
    ],
)
def test_a_size_has_the_canonical_form_of_a_quantity(value: int, text: str) -> None:
    assert quantity(value) == text


_FACTORS = {"": 1} | {
    letter + suffix: base ** (power + 1)
    for base, suffix, letters in ((1024, "i", "KMGTPE"), (1000, "", "kMGTPE"))
    for power, letter in enumerate(letters)
}


@given(st.integers(0, 2**63 - 1))
def test_a_quantity_means_the_number_it_was_made_of(value: int) -> None:
    number, suffix = re.fullmatch(r"([0-9]+)([A-Za-z]*)", quantity(value)).groups()  # type: ignore[union-attr]  # it always matches

    assert Decimal(number) * _FACTORS[suffix] == value


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a capacity cannot be negative"):
        quantity(-1)


@pytest.mark.bug("B20")
@pytest.mark.parametrize(
    ("address", "expected"),
    [("0000:3b:00.0", "0000:3b:00.0"), ("000f:01:00.0", "000f:01:00.0"), ("10000:01:00.0", None)],
)
def test_only_domains_of_four_digits_are_bus_ids(address: str, expected: str | None) -> None:
    assert bus_id(address) == expected
