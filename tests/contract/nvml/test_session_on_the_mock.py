"""The session on a mock DGX H100 whose driver and GPUs misbehave while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native.driverroot import driver_binaries, driver_libraries, find_binary, find_library
from native.mock import Failure, MockNode
from native.nvml import EventWatcher, NvmlSession, make_backend
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.eventtypes import NvmlEvent
from native.nvml.protocol import Nvml


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


@pytest.fixture(params=["cffi", "pynvml"])
def watched(
    dgx: MockNode, request: pytest.FixtureRequest
) -> Iterator[tuple[NvmlSession, EventWatcher, list[NvmlEvent]]]:
    """A session and a watcher for events beside it."""
    heard: list[NvmlEvent] = []
    watcher = EventWatcher(lambda: find_library(dgx.root), heard.append, backend=request.param, retry_after=0.1)
    with NvmlSession(lambda: find_library(dgx.root), request.param, renew_after=0.1) as session:
        session.accompany(watcher)
        watcher.watch(addresses(dgx))
        watcher.start()
        until(lambda: len(watcher.state.registered) == 8)
        yield session, watcher, heard
        dgx.set_failures([])
        assert watcher.close(20)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what another thread brings about."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come about"
        pause.wait(0.01)


@pytest.mark.bug("B11")
@pytest.mark.parametrize("first", ["nvml", "sysfs"])
def test_a_gpu_that_was_plugged_in_again_is_known_after_the_next_snapshot(
    dgx: MockNode, watched: tuple[NvmlSession, EventWatcher, list[NvmlEvent]], first: str
) -> None:
    session, watcher, heard = watched
    healthy = session.snapshot(addresses(dgx))
    victim = addresses(dgx)[4]
    dgx.unplug(victim, first=first)
    gone = session.snapshot(addresses(dgx))
    assert gone.gpus[4].codes["handle"] in (NvmlReturn.GPU_IS_LOST, NvmlReturn.NOT_FOUND)
    assert [gpu.uuid for gpu in gone.gpus[:4] + gone.gpus[5:]] == [
        gpu.uuid for gpu in healthy.gpus if gpu.address != victim
    ]
    dgx.plug(victim, first="sysfs" if first == "nvml" else "nvml")
    until(lambda: session.snapshot(addresses(dgx)) == healthy)
    until(lambda: victim in watcher.state.registered and watcher.state.problem is None)
    dgx.xid(victim, 79)
    until(lambda: bool(heard))
    assert (heard[0].address, heard[0].xid, heard[0].gpu_instance) == (victim, 79, None)


def test_a_gpu_that_stays_away_does_not_make_nvml_start_again_each_time(dgx: MockNode) -> None:
    opened: list[object] = []

    def make(path: Path) -> Nvml:
        opened.append(make_backend(path))
        return opened[-1]  # type: ignore[return-value]  # just made

    dgx.set_failures([Failure("nvmlDeviceGetHandleByPciBusId_v2", int(NvmlReturn.NOT_FOUND), addresses(dgx)[0])])
    with NvmlSession(lambda: find_library(dgx.root), make=make, renew_after=3600.0) as session:
        for _ in range(5):
            assert session.snapshot(addresses(dgx)).gpus[0].codes == {"handle": NvmlReturn.NOT_FOUND}
        assert len(opened) == 2
        dgx.set_failures([Failure("nvmlDeviceGetHandleByPciBusId_v2", int(NvmlReturn.NOT_FOUND), addresses(dgx)[1])])
        session.snapshot(addresses(dgx))
        assert len(opened) == 3


def test_a_driver_that_is_reloaded_is_followed_by_session_and_watcher(
    dgx: MockNode, watched: tuple[NvmlSession, EventWatcher, list[NvmlEvent]]
) -> None:
    session, watcher, heard = watched
    healthy = session.snapshot(addresses(dgx))
    dgx.reload_driver()

    def answered() -> bool:
        try:
            return session.snapshot(addresses(dgx)) == healthy
        except LibraryUnavailableError:
            return False

    until(answered)
    until(lambda: watcher.state.problem is None and len(watcher.state.registered) == 8)
    dgx.xid(addresses(dgx)[0], 31)
    until(lambda: bool(heard))
    assert heard[-1].xid == 31


@pytest.mark.bug("B110")
def test_events_of_the_others_are_heard_while_one_gpu_is_lost(
    dgx: MockNode, watched: tuple[NvmlSession, EventWatcher, list[NvmlEvent]]
) -> None:
    _, watcher, heard = watched
    dgx.set_gpu_state(addresses(dgx)[3], "lost")
    until(lambda: len(watcher.state.registered) == 7)
    dgx.xid(addresses(dgx)[0], 48)
    until(lambda: any(event.xid == 48 for event in heard))
    dgx.set_gpu_state(addresses(dgx)[3], "ok")
    until(lambda: len(watcher.state.registered) == 8)
