"""The tables of words agree with the vendored nvml.h: every value it names, under the number it has there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from driver.inventory import words

HEADER = (Path(__file__).parents[3] / "native/csrc/vendor/nvml.h").read_text()


def named(pattern: str) -> dict[str, int]:
    """Names that the header gives to numbers, for a pattern with two groups."""
    return {name: int(value, 0) for name, value in re.findall(pattern, HEADER, re.MULTILINE)}


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.mark.parametrize(
    ("table", "pattern", "left_out"),
    [
        (words.BRANDS, r"^\s*NVML_BRAND_(\w+)\s*=\s*(\d+)", {"UNKNOWN", "COUNT"}),
        (words.ADDRESSING_MODES, r"^\s*NVML_DEVICE_ADDRESSING_MODE_(\w+)\s*=\s*(\d+)", set()),
        (words.COMPUTE_MODES, r"^\s*NVML_COMPUTEMODE_(\w+)\s*=\s*(\d+)", set()),
        (words.NVLINK_VERSIONS, r"^\s*NVML_NVLINK_VERSION_(\w+)\s*=\s*(\d+)", {"INVALID"}),
        (words.VIRTUALIZATION_MODES, r"^\s*NVML_GPU_VIRTUALIZATION_MODE_(\w+)\s*=\s*(\d+)", set()),
    ],
    ids=["brand", "addressing mode", "compute mode", "nvlink version", "virtualization mode"],
)
def test_a_table_has_every_value_of_its_enumeration_under_its_own_name(
    table: Mapping[int, str], pattern: str, left_out: set[str]
) -> None:
    header = {name: value for name, value in named(pattern).items() if name not in left_out}

    assert sorted(header.values()) == sorted(table)
    for name, value in header.items():
        assert letters(name).endswith(letters(table[value])), (name, table[value])


def test_architectures_are_those_of_the_header_and_accelerators_that_are_no_gpus_have_no_word() -> None:
    header = named(r"^#define NVML_DEVICE_ARCH_(\w+)\s+(\d+)\b")
    accelerators = {value for name, value in header.items() if name.startswith(("DLA", "NPU"))}

    assert set(words.ARCHITECTURES) == set(header.values()) - accelerators
    for name, value in header.items():
        if value not in accelerators:
            assert letters(words.ARCHITECTURES[value]).startswith(letters(name))


def test_far_ends_of_links_are_those_of_the_header() -> None:
    header = named(r"^\s*NVML_NVLINK_DEVICE_TYPE_(\w+)\s*=\s*(0x[0-9A-Fa-f]+|\d+)")

    assert {value: name.lower() for name, value in header.items() if name != "UNKNOWN"} == {
        value: "ibmnpu" if word == "npu" else word for value, word in words.NVLINK_REMOTES.items()
    }


def test_the_state_of_a_finished_registration_is_the_headers() -> None:
    assert named(r"^#define NVML_GPU_FABRIC_STATE_(COMPLETED)\s+(\d)")["COMPLETED"] == words.FABRIC_COMPLETED


@pytest.mark.parametrize("unknown", [None, 4294967295, -1, 1000])
def test_what_no_table_has_is_none(unknown: int | None) -> None:
    assert words.word(words.BRANDS, unknown) is None
