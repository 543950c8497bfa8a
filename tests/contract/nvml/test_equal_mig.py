"""The contract of the two backends on MIG: they read partitions alike, and change them alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native.mock import Failure, MockNode
from native.nvml import make_backend
from native.nvml.errors import NvmlError, NvmlReturn
from native.nvml.migtypes import MigState, Placement
from native.nvml.protocol import Nvml
from native.nvml.types import GpuSnapshot

MIG_C = Path(__file__).parents[3] / "native" / "csrc" / "nvml_mig.c"
FUNCTIONS = sorted(set(re.findall(r"CALL\(door, (nvml\w+)", MIG_C.read_text())) - {"nvmlDeviceGetUUID"})
CODES = (
    NvmlReturn.NOT_SUPPORTED,
    NvmlReturn.NO_PERMISSION,
    NvmlReturn.INVALID_ARGUMENT,
    NvmlReturn.NOT_FOUND,
    NvmlReturn.FUNCTION_NOT_FOUND,
    NvmlReturn.GPU_IS_LOST,
)
CAPABLE = ("a30", "dgx-a100", "a100-80", "dgx-h100", "h100-nvl", "h200", "b200", "gb200", "rtx-pro-6000")
BACKENDS = ("cffi", "pynvml")


def opened(node: MockNode, backend: str) -> Nvml:
    library = make_backend(node.library, backend)
    library.open()
    return library


def read(node: MockNode, address: str) -> GpuSnapshot:
    """One GPU by both backends; equal, or the test fails here."""
    found = []
    for backend in BACKENDS:
        library = opened(node, backend)
        found.append(library.snapshot((address,), mig=True).gpus[0])
        library.close()
    assert found[0] == found[1]
    return found[0]


def state(node: MockNode, address: str) -> MigState:
    mig = read(node, address).mig
    assert mig is not None
    return mig


def clear(library: Nvml, address: str) -> None:
    """No instance is left on the GPU."""
    mig = library.snapshot((address,)).gpus[0].mig
    for instance in (mig.instances if mig is not None else None) or ():
        for compute in instance.compute_instances:
            library.destroy_compute_instance(address, instance.id, compute.id)
        library.destroy_gpu_instance(address, instance.id)


@pytest.fixture
def with_mig(
    node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode]
) -> Iterator[Callable[[str], tuple[MockNode, str]]]:
    """A node of a profile and the address of its first GPU, which has MIG on and is empty."""
    made: list[tuple[MockNode, str, bool]] = []

    def make(profile: str) -> tuple[MockNode, str]:
        node = activate(node_of(profile))
        address = node.profile.gpus[0].address
        library = opened(node, "cffi")
        before = library.snapshot((address,)).gpus[0].mig_mode
        library.set_mig_mode(address, True)
        library.close()
        made.append((node, address, before is not None and before[0]))
        return node, address

    yield make
    for node, address, was_on in made:
        node.set_failures([])
        library = opened(node, "cffi")
        clear(library, address)
        library.set_mig_mode(address, was_on)
        library.close()


@pytest.fixture
def split(with_mig: Callable[[str], tuple[MockNode, str]]) -> tuple[MockNode, str]:
    """A H100 in four: a half with two devices, a 1g, a 1g without device, and a double 1g."""
    node, address = with_mig("dgx-h100")
    library = opened(node, "cffi")
    half = library.create_gpu_instance(address, 9, Placement(4, 4))
    for _ in range(2):
        library.create_compute_instance(address, half.id, 0)
    first = library.create_gpu_instance(address, 19, Placement(0, 1))
    library.create_compute_instance(address, first.id, 0)
    library.create_gpu_instance(address, 19, Placement(1, 1))
    double = library.create_gpu_instance(address, 15, Placement(2, 2))
    library.create_compute_instance(address, double.id, 0)
    library.close()
    return node, address


def test_there_are_functions_to_fail() -> None:
    assert len(FUNCTIONS) > 20


def test_profiles_are_read_alike_on_every_board(node: MockNode) -> None:
    for gpu in node.profile.gpus[:1]:
        found = read(node, gpu.address)
        assert (found.mig is None) == (found.mig_mode is None)


@pytest.mark.bug("B93")
@pytest.mark.parametrize("profile", CAPABLE)
def test_every_profile_has_a_name_an_id_and_placements(
    with_mig: Callable[[str], tuple[MockNode, str]], profile: str
) -> None:
    node, address = with_mig(profile)
    profiles = state(node, address).profiles
    assert profiles
    assert len({one.id for one in profiles}) == len(profiles)
    assert len({one.name for one in profiles}) == len(profiles)
    for one in profiles:
        assert one.placements
        assert re.fullmatch(r"\d+g\.\d+gb([+-][a-z.]+)?", one.name or "")
        assert one.memory_mib > 0


def test_partitions_are_read_alike_and_placed(split: tuple[MockNode, str]) -> None:
    node, address = split
    mig = state(node, address)
    assert mig.instances is not None
    assert mig.devices is not None
    assert sorted((one.profile_id, one.placement) for one in mig.instances) == [
        (9, Placement(4, 4)),
        (15, Placement(2, 2)),
        (19, Placement(0, 1)),
        (19, Placement(1, 1)),
    ]
    assert len(mig.devices) == 4
    by_instance = {uuid.uuid: uuid for instance in mig.instances for uuid in instance.compute_instances}
    assert {device.uuid for device in mig.devices} == set(by_instance)
    for device in mig.devices:
        assert device.placement is not None
        assert device.attributes is not None
        assert device.attributes.memory_mib > 0
        assert by_instance[device.uuid].gpu_instance == device.gpu_instance
        assert by_instance[device.uuid].id == device.compute_instance


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("profile", CAPABLE)
def test_a_board_is_filled_and_emptied(
    with_mig: Callable[[str], tuple[MockNode, str]], profile: str, backend: str
) -> None:
    node, address = with_mig(profile)
    empty = state(node, address)
    smallest = max(empty.profiles or (), key=lambda one: (one.instance_count, -one.id))
    library = opened(node, backend)
    made = [library.create_gpu_instance(address, smallest.id) for _ in range(smallest.instance_count)]
    assert library.remaining_capacity(address, smallest.id) == 0
    with pytest.raises(NvmlError) as caught:
        library.create_gpu_instance(address, smallest.id)
    assert caught.value.code == NvmlReturn.INSUFFICIENT_RESOURCES
    full = state(node, address)
    assert full.instances == tuple(sorted(made, key=lambda one: one.id))
    clear(library, address)
    library.close()
    assert state(node, address) == empty


def test_both_backends_get_the_same_from_the_same_changes(with_mig: Callable[[str], tuple[MockNode, str]]) -> None:
    node, address = with_mig("dgx-h100")
    results = []
    for backend in BACKENDS:
        library = opened(node, backend)
        made: list[Any] = [library.create_gpu_instance(address, profile) for profile in (9, 14, 19)]
        made += [library.compute_instance_profiles(address, made[0].id)]
        compute = library.create_compute_instance(address, made[0].id, made[3][0].id)
        made += [(compute.gpu_instance, compute.id, compute.profile_id, compute.placement, compute.uuid is not None)]
        made += [library.remaining_capacity(address, profile) for profile in (0, 9, 14, 19)]
        for change in (library.set_compute_mode, library.set_persistence_mode):
            try:
                made.append(change(address, False))
            except NvmlError as error:
                made.append((error.call, error.code, str(error)))
        for wrong in (99, made[0].id):
            with pytest.raises(NvmlError) as caught:
                library.destroy_gpu_instance(address, wrong)
            made.append((caught.value.call, caught.value.code, str(caught.value)))
        results.append(made)
        clear(library, address)
        library.close()
    assert results[0] == results[1]
    assert results[0][-1][1] == NvmlReturn.IN_USE


def test_switching_the_mode_says_what_is_active(
    node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode]
) -> None:
    node = activate(node_of("dgx-h100"))
    address = node.profile.gpus[3].address
    for backend in BACKENDS:
        library = opened(node, backend)
        assert library.set_mig_mode(address, True) == (True, True)
        assert library.set_mig_mode(address, False) == (False, False)
        library.close()


def changes(library: Nvml, address: str) -> list[object]:
    """What a backend says to every change of an H100 in four, undone again where it was done."""
    found: list[object] = []

    def note(ask: Callable[[], object]) -> Any:
        try:
            answer = ask()
        except NvmlError as error:
            found.append((type(error), error.call, error.code, str(error)))
            return None
        found.append(getattr(answer, "placement", answer))
        return answer

    made = note(lambda: library.create_gpu_instance(address, 19))
    if made is not None:
        note(lambda: library.compute_instance_profiles(address, made.id))
        compute = note(lambda: library.create_compute_instance(address, made.id, 0))
        if compute is not None:
            note(lambda: library.destroy_compute_instance(address, made.id, compute.id))
        note(lambda: library.destroy_gpu_instance(address, made.id))
    note(lambda: library.remaining_capacity(address, 19))
    note(lambda: library.set_mig_mode(address, True))
    return found


@pytest.mark.bug("B18")
@pytest.mark.bug("B26")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_may_fail_in_every_way_and_is_told_alike(split: tuple[MockNode, str], function: str) -> None:
    node, address = split
    half = state(node, address)
    for code in CODES:
        node.set_failures([Failure(function, int(code), address)])
        failing = read(node, address)
        assert failing.mig is not None or function == "nvmlDeviceGetMigMode"
        assert failing.mig is None or set(failing.mig.codes) <= {"profiles", "instances", "devices"}
        if "Destroy" not in function:
            answers = []
            for backend in BACKENDS:
                library = opened(node, backend)
                answers.append(changes(library, address))
                library.close()
                tidy(node, address, half)
                node.set_failures([Failure(function, int(code), address)])
            assert answers[0] == answers[1]
    node.set_failures([])
    assert state(node, address) == half


def tidy(node: MockNode, address: str, wanted: MigState) -> None:
    """Take away what a change that failed half-way may have left."""
    node.set_failures([])
    library = opened(node, "cffi")
    mig = library.snapshot((address,)).gpus[0].mig
    assert mig is not None
    keep = {instance.id for instance in wanted.instances or ()}
    for instance in mig.instances or ():
        if instance.id not in keep:
            for compute in instance.compute_instances:
                library.destroy_compute_instance(address, instance.id, compute.id)
            library.destroy_gpu_instance(address, instance.id)
    library.close()


@given(st.lists(st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(CODES)), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_any_set_of_failures_is_told_alike(split: tuple[MockNode, str], rules: list[tuple[str, NvmlReturn]]) -> None:
    node, address = split
    node.set_failures(Failure(function, int(code), address) for function, code in rules)
    read(node, address)
