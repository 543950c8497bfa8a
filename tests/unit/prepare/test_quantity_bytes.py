"""Amounts of memory are read as Kubernetes reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare.quantity import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1Ki", 1024),
        ("1.5Gi", 1610612736),
        ("10G", 10**10),
        ("1e9", 10**9),
        ("2E9", 2 * 10**9),
        ("1E", 10**18),
        ("1500m", 2),
        ("1n", 1),
        ("5.", 5),
        ("0.5", 1),
    ],
)
def test_a_quantity_is_a_number_of_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1", "1 Gi", "1gi", "1GiB", "1e", "٣", "1\n", "0x10", "1e-3", "8Ei", "9e99"]
)
def test_what_is_no_memory_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_bytes(text)


@given(st.integers(0, 2**53))
def test_whole_numbers_stay_what_they_are(size: int) -> None:
    assert parse_bytes(str(size)) == size
    assert parse_bytes(f"{size}m") == -(-size // 1000)
