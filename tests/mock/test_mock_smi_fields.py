"""What other people's scripts ask nvidia-smi for: every field that exporters query, long options, NVLink."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from native.mock import MockNode
from tests.support.mocknodes import Node

_EXPORTERS = """
timestamp driver_version count name gpu_name serial gpu_serial uuid gpu_uuid pci.bus_id gpu_bus_id pci.domain pci.bus
pci.device pci.device_id pci.sub_device_id pcie.link.gen.current pcie.link.gen.gpucurrent pcie.link.gen.max
pcie.link.gen.gpumax pcie.link.gen.hostmax pcie.link.width.current pcie.link.width.max index display_mode display_active
persistence_mode addressing_mode accounting.mode accounting.buffer_size driver_model.current driver_model.pending
vbios_version inforom.img inforom.image inforom.oem inforom.ecc inforom.pwr gom.current gom.pending gsp.mode.current
fan.speed pstate clocks_event_reasons.supported clocks_event_reasons.active clocks_throttle_reasons.active
clocks_event_reasons.gpu_idle clocks_throttle_reasons.hw_slowdown clocks_event_reasons.sw_power_cap memory.total
memory.reserved memory.used memory.free compute_mode compute_cap utilization.gpu utilization.memory utilization.encoder
utilization.decoder utilization.jpeg utilization.ofa encoder.stats.sessionCount ecc.mode.current ecc.mode.pending
ecc.errors.corrected.volatile.device_memory ecc.errors.corrected.volatile.dram ecc.errors.corrected.volatile.total
ecc.errors.uncorrected.volatile.total ecc.errors.corrected.aggregate.total ecc.errors.uncorrected.aggregate.total
retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending remapped_rows.correctable
remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure temperature.gpu temperature.gpu.tlimit
temperature.memory power.management power.draw power.draw.average power.draw.instant power.limit enforced.power.limit
power.default_limit power.min_limit power.max_limit clocks.current.graphics clocks.gr clocks.current.sm clocks.sm
clocks.current.memory clocks.mem clocks.current.video clocks.video clocks.applications.graphics clocks.max.graphics
clocks.max.sm clocks.max.memory mig.mode.current mig.mode.pending fabric.state fabric.status fabric.cliqueId
fabric.clusterUuid gpu_recovery_action c2c.mode protected_memory.total
"""
EXPORTERS = _EXPORTERS.split()


def smi(node: MockNode, *arguments: str) -> tuple[int, str]:
    command: list[str | Path] = [node.smi, *arguments]
    done = subprocess.run(command, env={"GPUDRA_MOCK_QUIET": "1"}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def ask(node: MockNode, *fields: str) -> list[str]:
    code, text = smi(node, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0")
    assert code == 0, text
    return text.strip().split(", ")


@pytest.mark.parametrize("name", ["dgx-h100", "t4", "gb10", "gb200"])
def test_every_field_that_exporters_query_has_a_value(name: str, node_of: Node) -> None:
    values = ask(node_of(name), *EXPORTERS)
    assert len(values) == len(EXPORTERS)
    assert all(values)


def test_what_the_long_listing_knows_is_the_same_here(node_of: Node) -> None:
    node = node_of("dgx-h100")
    long = smi(node, "-q", "-i", "0")[1]
    for field, label in (
        ("addressing_mode", "Addressing Mode"),
        ("fabric.state", "State"),
        ("fabric.clusterUuid", "ClusterUUID"),
        ("gpu_recovery_action", "GPU Recovery Action"),
        ("remapped_rows.correctable", "Correctable Error"),
    ):
        (value,) = ask(node, field)
        assert any(line.split(" : ")[-1] == value for line in long.splitlines() if line.strip().startswith(label)), (
            field
        )


PAGES = ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count", "retired_pages.pending")


def test_retired_pages_are_those_of_the_library(own_node: MockNode, node_of: Node) -> None:
    assert ask(own_node, *PAGES) == ["0", "0", "No"]
    for field, value in (("retired_single", 3), ("retired_double", 2), ("retired_pending", 1)):
        own_node.set_number(own_node.profile.gpus[0].address, field, value)
    assert ask(own_node, *PAGES) == ["3", "2", "Yes"]
    listing = map(str.strip, smi(own_node, "-q", "-x", "-i", "0")[1].splitlines())
    told = ("<retired_count>", "<pending_blacklist>", "<pending_retirement>")
    assert [line for line in listing if line.startswith(told)] == [
        "<retired_count>3</retired_count>",
        "<retired_count>2</retired_count>",
        "<pending_blacklist>Yes</pending_blacklist>",
        "<pending_retirement>Yes</pending_retirement>",
    ]
    assert ask(node_of("dgx-h100"), *PAGES) == ["[N/A]"] * 3


def test_clock_reasons_are_told_one_by_one_and_by_their_old_names(own_node: MockNode) -> None:
    own_node.set_number(own_node.profile.gpus[0].address, "throttle_reasons", 0x44)
    assert ask(
        own_node,
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
        "clocks_throttle_reasons.sw_power_cap",
        "clocks_event_reasons.hw_thermal_slowdown",
        "clocks_event_reasons.gpu_idle",
    ) == ["0x0000000000000044", "0x0000000000000044", "Active", "Active", "Not Active"]


def test_a_constant_with_a_unit_has_it_in_the_header(node_of: Node) -> None:
    code, text = smi(
        node_of("t4"), "--query-gpu=protected_memory.total,clocks_throttle_reasons.nonsense", "--format=csv"
    )
    assert (code, text) == (2, 'Field "clocks_throttle_reasons.nonsense" is not a valid field to query.\n\n')
    assert smi(node_of("t4"), "--query-gpu=protected_memory.total", "--format=csv")[1] == (
        "protected_memory.total [MiB]\n0 MiB\n"
    )


def test_links_are_listed_with_their_speed_and_those_that_are_down(node_of: Node) -> None:
    lines = smi(node_of("dgx-h100"), "nvlink", "-s", "-i", "1")[1].splitlines()
    assert lines[0].startswith("GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    assert lines[1:] == [f"\t Link {link}: 26.562 GB/s" for link in range(18)]
    assert smi(node_of("t4"), "nvlink", "--status") == (0, "")


def test_options_may_be_spelt_out(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "a30")
    assert smi(node, "--multi-instance-gpu=1", "--id=0")[0] == 0
    made = smi(node, "mig", "--create-gpu-instance", "14", "--default-compute-instance", "--id", "0")
    assert made[0] == 0, made[1]
    assert smi(node, "mig", "--list-gpu-instances") == smi(node, "mig", "-lgi")
    assert smi(node, "mig", "--list-gpu-instance-possible-placements") == smi(node, "mig", "-lgipp")
    number = str(node.instances(node.profile.gpus[0].address)[0].id)
    assert smi(node, "mig", "--destroy-compute-instance", "--gpu-instance-id", number)[0] == 0
    assert smi(node, "mig", "--destroy-gpu-instance", "-gi", number)[0] == 0
    assert node.instances(node.profile.gpus[0].address) == []
    assert smi(node, "topo", "--matrix") == smi(node, "topo", "-m")
