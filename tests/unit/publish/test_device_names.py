"""Names of devices: what publish makes, Prepare reads, and nothing else is read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model import PciAddress, Placement
from driver.names import DeviceName, partition_name

ADDRESSES = st.builds(
    PciAddress, st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7)
)


@pytest.mark.bug("B93")
@given(
    ADDRESSES,
    st.text(max_size=60),
    st.integers(0, 9999),
    st.integers(0, 255),
    st.none() | st.builds(Placement, st.integers(0, 255), st.just(1)),
)
def test_a_partitions_name_is_a_label_and_says_where_it_is(
    address: PciAddress, profile: str, profile_id: int, start: int, compute: Placement | None
) -> None:
    gpu = f"gpu-{address.label}"
    name = partition_name(gpu, profile, profile_id, start, compute)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 63
    read = DeviceName.parse(name)
    assert read == DeviceName(address, "mig", profile_id, start, None if compute is None else compute.start)
    assert read.gpu == gpu


@given(ADDRESSES)
def test_whole_gpus_and_those_for_passthrough_are_told_apart(address: PciAddress) -> None:
    gpu = f"gpu-{address.label}"
    assert DeviceName.parse(gpu) == DeviceName(address, "gpu")
    assert DeviceName.parse(f"{gpu}-vfio") == DeviceName(address, "vfio")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu-0",
        "gpu-0-mig-1g5gb-19-0",
        "gpu-0000-1b-00-0-mig",
        "gpu-0000-1b-00-0-mig-19-0",
        "gpu-0000-1b-00-0-mig--19-0",
        "gpu-0000-1b-00-0-mig-1g-10gb-19-0-c",
        "gpu-0000-1b-00-0-mig-1g-10gb-19",
        "gpu-0000-1B-00-0",
        "gpu-0000-1b-20-0",
        "gpu-0000-1b-00-8",
        "gpu-0000-1b-00-0\n",
        "gpu-0000-1b-00-0-mig-1g-10gb-19-0/../x",
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert DeviceName.parse(name) is None


def test_profiles_that_differ_in_a_sign_have_different_names() -> None:
    names = {
        partition_name("gpu-0000-1b-00-0", profile, number, 0)
        for profile, number in (("1g.24gb+me", 21), ("1g.24gb-me", 67), ("1g.24gb+me.all", 65), ("1g.24gb", 14))
    }
    assert len(names) == 4
