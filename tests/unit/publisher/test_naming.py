"""Names of slices sort like their positions, for every size of pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.publisher.naming import decode_index, encode_index, generate_name, index_length


@pytest.mark.parametrize(
    ("index", "length", "text"), [(0, 5, "00000"), (26, 5, "0001a"), (100_000, 5, "186a0"), (0x100000, 6, "100000")]
)
def test_an_index_is_hexadecimal_and_padded(index: int, length: int, text: str) -> None:
    assert encode_index(index, length) == text
    assert decode_index(f"{text}-driver-node-x", length) == index


@pytest.mark.parametrize(("count", "length"), [(0, 5), (1, 5), (0x100000, 5), (0x100001, 6), (0x1000001, 7)])
def test_the_length_follows_the_size_of_the_pool(count: int, length: int) -> None:
    assert index_length(count) == length


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00000",
        "0000-driver",
        "000000-driver",
        "0000g-driver",
        "+0001-driver",
        "0x001-driver",
        "-00001",
        " 0001-x",
        "٠٠٠٠٠-x",
    ],
)
def test_a_name_of_another_scheme_has_no_index(name: str) -> None:
    assert decode_index(name, 5) is None


def test_a_generated_name_says_position_driver_and_node() -> None:
    assert generate_name(26, 5, "gpu.example.com", "node-a") == "0001a-gpu.example.com-node-a-"


@given(st.integers(1, 1 << 24), st.data())
def test_an_index_is_read_as_it_was_written(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    length = index_length(count)

    assert decode_index(generate_name(index, length, "d", "n") + "abcde", length) == index


@given(st.integers(2, 1 << 24), st.data())
def test_names_sort_like_positions(count: int, data: st.DataObject) -> None:
    first, second = sorted(data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True)))
    length = index_length(count)

    assert generate_name(first, length, "d", "n") < generate_name(second, length, "d", "n")
