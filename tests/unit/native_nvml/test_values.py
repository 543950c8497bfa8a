"""What NVML wrote, as typed values."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.nvml import values
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.values import Fields, PciInfo, clean_text, pci_address

PLACE = PciInfo(b"0000000F:01:00.0", 0xF, 1, 0, 0x290110DE, 0x199910DE)


@pytest.mark.bug("B04")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"NVIDIA L4\0\0\0junk", "NVIDIA L4"),
        (b"A" * 96, "A" * 96),
        ("NVIDIA GeForce RTX™ 5090 – 測試 \0".encode(), "NVIDIA GeForce RTX™ 5090 – 測試"),
        (b"\xf8\x95\x8d\x8f\0", "\ufffd\ufffd\ufffd\ufffd"),
        (b"NVIDIA\x1b[31m A\n100\0", "NVIDIA[31m A100"),
        (b"   \0", None),
        (b"\0NVIDIA", None),
        (b"", None),
    ],
)
def test_text_from_the_library_is_cut_decoded_and_stripped(raw: bytes, text: str | None) -> None:
    assert clean_text(raw) == text


@given(st.binary(max_size=200))
def test_any_bytes_become_printable_text_or_none(raw: bytes) -> None:
    text = clean_text(raw)
    assert text is None or (text.isprintable() and text == text.strip() and text != "")
    assert clean_text(raw + b"\0" + raw) == text
    if text is not None:
        assert clean_text(text.encode()) == text


@pytest.mark.bug("B20")
@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        (b"00000000:3B:00.0", "0000:3b:00.0"),
        (b"0000:3b:00.0\0", "0000:3b:00.0"),
        (b"0000000F:01:00.0", "000f:01:00.0"),
        (b"00010000:01:00.0", "10000:01:00.0"),
        (b"03F8CFDD:00:00.0", "3f8cfdd:00:00.0"),
    ],
)
def test_every_spelling_of_a_bus_id_becomes_the_kernels(bus_id: bytes, address: str) -> None:
    assert pci_address(PciInfo(bus_id, 0, 0, 0, 0, 0)) == address


def test_older_structs_without_a_bus_id_give_their_address_by_numbers() -> None:
    assert pci_address(PciInfo(b"\0" * 32, 0x10000, 0xE1, 0x1F, 0, 0)) == "10000:e1:1f.0"


@pytest.mark.parametrize("numbers", [(0, 0, 0), (0, 0x100, 0), (0, 1, 0x20), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)])
def test_numbers_that_are_no_address_give_none(numbers: tuple[int, int, int]) -> None:
    assert pci_address(PciInfo(b"FFFFFFFF:FF:FF.0", *numbers, 0, 0)) is None


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))
def test_bus_id_and_numbers_give_the_same_address(domain: int, bus: int, device: int) -> None:
    printed = f"{domain:08X}:{bus:02X}:{device:02X}.0".encode()
    by_text = pci_address(PciInfo(printed, 0, 0, 0, 0, 0))
    assert by_text is not None
    if domain or bus or device:
        assert pci_address(PciInfo(b"", domain, bus, device, 0, 0)) == by_text


def test_a_field_has_a_value_or_a_code_never_both() -> None:
    fields = Fields()
    fields.take("brand", NvmlReturn.SUCCESS, 14)
    fields.take("minor_number", NvmlReturn.NOT_SUPPORTED, 0)
    fields.take_text("serial", NvmlReturn.SUCCESS, b"\0")
    fields.take_text("name", NvmlReturn.UNKNOWN, b"left over from another GPU")
    fields.take_pci(NvmlReturn.SUCCESS, PLACE, None)
    gpu = fields.gpu()
    assert (gpu.brand, gpu.minor_number, gpu.serial, gpu.name, gpu.address) == (14, None, None, None, "000f:01:00.0")
    assert gpu.codes == {"minor_number": 3, "serial": 21, "name": 999}


def test_a_gpu_that_was_looked_up_by_address_keeps_that_address() -> None:
    fields = Fields()
    fields.take_pci(NvmlReturn.GPU_IS_LOST, PLACE, "0000:1b:00.0")
    gpu = fields.gpu()
    assert gpu.address == "0000:1b:00.0"
    assert gpu.codes == {"pci_device_id": 15, "pci_subsystem_id": 15}


def test_a_gpu_reached_by_index_that_will_not_say_its_address_has_none() -> None:
    fields = Fields()
    fields.take_pci(NvmlReturn.GPU_IS_LOST, PLACE, None)
    assert fields.gpu().address is None
    assert fields.gpu().codes["address"] == NvmlReturn.GPU_IS_LOST


def test_an_empty_bus_id_that_was_called_a_success_is_no_data() -> None:
    fields = Fields()
    fields.take_pci(NvmlReturn.SUCCESS, PciInfo(b"", 0, 0, 0, 1, 2), None)
    assert fields.gpu().address is None
    assert fields.gpu().codes == {"address": NvmlReturn.NO_DATA}


def test_what_a_link_would_not_say_is_none() -> None:
    failed = NvmlReturn.NOT_SUPPORTED
    assert values.nvlink(True, (failed, 6), (failed, PLACE), (failed, 2)) == (True, None, None, None)
    assert values.nvlink(True, (0, 6), (0, PLACE), (0, 2)) == (True, 6, "000f:01:00.0", 2)


def test_fabric_state_is_the_low_byte_only() -> None:
    cluster = uuid.UUID("deadbeef-0102-0304-0506-0708090a0b0c")
    fabric = values.fabric_info(0xFFFFFF03, 0, cluster.bytes, 32766, 0x1555)
    assert (fabric.state, fabric.clique_id, fabric.cluster_uuid) == (3, 32766, str(cluster))


@pytest.mark.parametrize("code", [9, 12, 18])
def test_codes_of_the_library_itself_become_a_state_of_the_node_with_a_remedy(code: int) -> None:
    error = values.failure("nvmlInitWithFlags", code, library="/lib/libnvidia-ml.so.1")
    assert isinstance(error, LibraryUnavailableError)
    assert "/lib/libnvidia-ml.so.1" in str(error)
    assert f"({code})" in str(error)
    assert str(error).count(":") >= 2


@pytest.mark.bug("B26")
@given(st.integers(1, 1100).filter(lambda code: code not in (9, 12, 18)))
def test_a_failure_says_call_code_and_device(code: int) -> None:
    error = values.failure("nvmlDeviceGetUUID", code, "0000:1b:00.0")
    assert type(error) is NvmlError
    for part in ("nvmlDeviceGetUUID", str(code), "0000:1b:00.0"):
        assert part in str(error)
