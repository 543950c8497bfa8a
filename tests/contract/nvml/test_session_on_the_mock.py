"""The session on a mock DGX H100 whose driver and GPUs misbehave while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from native.driverroot import driver_binaries, driver_libraries, find_binary, find_library
from native.mock import Failure, MockNode
from native.nvml import NvmlSession
from native.nvml.errors import LibraryUnavailableError, NvmlReturn


@pytest.fixture(params=["cffi", "pynvml"])
def session(dgx: MockNode, request: pytest.FixtureRequest) -> Iterator[NvmlSession]:
    with NvmlSession(lambda: find_library(dgx.root), request.param, call_timeout=0.5) as session:
        yield session
        dgx.set_failures([])


def addresses(node: MockNode) -> list[str]:
    return [gpu.address for gpu in node.profile.gpus]


def test_the_library_is_found_below_the_mocks_root_and_announces_itself(dgx: MockNode, session: NvmlSession) -> None:
    assert len(session.snapshot(addresses(dgx)).gpus) == 8
    assert session.library is not None
    assert session.library.mock is True
    assert session.library.path == str(dgx.library.resolve())


def test_a_driver_that_is_unloaded_and_loaded_again_is_followed(dgx: MockNode, session: NvmlSession) -> None:
    before = session.snapshot(addresses(dgx))
    dgx.set_driver_loaded(False)
    with pytest.raises(LibraryUnavailableError):
        session.snapshot(addresses(dgx))
    dgx.set_driver_loaded(True)
    assert session.snapshot(addresses(dgx)) == before


@pytest.mark.bug("B14")
def test_a_gpu_whose_call_never_returns_is_left_out_until_it_does(dgx: MockNode, session: NvmlSession) -> None:
    healthy = session.snapshot(addresses(dgx))
    victim = addresses(dgx)[2]
    dgx.set_failures([Failure("nvmlDeviceGetMemoryInfo_v2", address=victim, delay_ms=-1)])
    snapshot = session.snapshot(addresses(dgx), deadline=30)
    assert snapshot.gpus[2].codes == {"handle": NvmlReturn.TIMEOUT}
    assert snapshot.gpus[:2] + snapshot.gpus[3:] == healthy.gpus[:2] + healthy.gpus[3:]
    assert session.wedged[0].call == "nvmlDeviceGetMemoryInfo_v2"


@pytest.mark.bug("B13")
def test_a_gpu_that_is_lost_and_comes_back_is_told_each_time(dgx: MockNode, session: NvmlSession) -> None:
    healthy = session.snapshot(addresses(dgx))
    dgx.set_gpu_state(addresses(dgx)[5], "lost")
    assert session.snapshot(addresses(dgx)).gpus[5].codes == {"handle": NvmlReturn.GPU_IS_LOST}
    dgx.set_gpu_state(addresses(dgx)[5], "ok")
    assert session.snapshot(addresses(dgx)) == healthy


def test_the_mocks_root_gives_containers_libraries_under_their_soname(dgx: MockNode) -> None:
    libraries = dict(driver_libraries(dgx.root, dgx.profile.driver_version))
    assert any(path.endswith("/libnvidia-ml.so.1") for path in libraries.values())
    assert all((dgx.root / path.lstrip("/")).is_file() for path in libraries)
    assert find_binary(dgx.root) == dgx.smi
    assert ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi") in driver_binaries(dgx.root)
