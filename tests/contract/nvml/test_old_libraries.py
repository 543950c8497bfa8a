"""Libraries of older drivers, which truly lack functions: both backends do without them, and alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from native.mock import MockNode
from native.nvml import make_backend
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import Placement
from native.nvml.types import GpuSnapshot

CSRC = Path(__file__).parents[3] / "native" / "csrc"
BACKENDS = ("cffi", "pynvml")


def edited(line: str) -> Callable[[str], str]:
    """The profile with this line in place of its list of absent functions."""
    return lambda text: text.replace("  abi: R580\n", f"  {line}  # edited\n")


def readings(node: MockNode) -> list[object]:
    """A node with one GPU in parts, by both backends; equal, or the test fails here."""
    addresses = [gpu.address for gpu in node.profile.gpus]
    library = make_backend(node.library, "cffi")
    library.open()
    library.set_mig_mode(addresses[1], True)
    instance = library.create_gpu_instance(addresses[1], 9, Placement(0, 4))
    library.create_compute_instance(addresses[1], instance.id, 2)
    library.close()
    found = []
    for backend in BACKENDS:
        library = make_backend(node.library, backend)
        library.open()
        found.append([library.snapshot(addresses, mig=True), library.health(addresses), library.topology(addresses)])
        library.close()
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("branch", ["R575", "R580", "R610"])
def test_every_driver_branch_is_read_alike(derived: Callable[[Callable[[str], str]], MockNode], branch: str) -> None:
    snapshot, _, _ = readings(derived(edited(f"abi: {branch}")))
    gpus: tuple[GpuSnapshot, ...] = snapshot.gpus  # type: ignore[attr-defined]  # the first is a snapshot
    assert all(gpu.uuid is not None and gpu.memory_total is not None and gpu.fabric is not None for gpu in gpus)
    whole = gpus[0].codes.get("addressing_mode", NvmlReturn.SUCCESS)
    assert whole == (NvmlReturn.FUNCTION_NOT_FOUND if branch == "R575" else NvmlReturn.SUCCESS)
    mig = gpus[1].mig
    assert mig is not None
    assert mig.codes == {}
    assert [one.name for one in mig.profiles or ()][:1] == ["1g.10gb"]
    assert len(mig.devices or ()) == 1


def test_a_library_without_mig_is_read_alike(derived: Callable[[Callable[[str], str]], MockNode]) -> None:
    names = set(re.findall(r"CALL\(door, (nvml\w+)", (CSRC / "nvml_mig.c").read_text())) | {"nvmlDeviceGetMigMode"}
    node = derived(edited(f"absent: [{', '.join(sorted(names - {'nvmlDeviceGetUUID'}))}]"))
    addresses = [gpu.address for gpu in node.profile.gpus]
    found = []
    for backend in BACKENDS:
        library = make_backend(node.library, backend)
        library.open()
        found.append(library.snapshot(addresses, mig=True))
        library.close()
    assert found[0] == found[1]
    assert [gpu.mig for gpu in found[0].gpus] == [None] * 8
    assert found[0].gpus[0].codes["mig_mode"] == NvmlReturn.FUNCTION_NOT_FOUND
