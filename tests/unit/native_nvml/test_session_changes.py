"""Changes through the session, who rests meanwhile, and NVML that is initialised anew."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn, NvmlTimeoutError
from tests.support.nvmlsessions import ADDRESSES, QUICK, MakeSession, wedged

GPU = ADDRESSES[1]


@pytest.fixture
def split(node):
    """A node whose second GPU has an empty GPU instance."""
    return node.mig(GPU).gpu_instance(GPU, 7, 19, 0, 1)


def test_a_change_is_done_in_the_sessions_thread_and_gives_its_result(split, session_of: MakeSession) -> None:
    session = session_of(split)
    threads: list[str] = []

    def work(nvml):
        threads.append(threading.current_thread().name)
        return nvml.create_compute_instance(GPU, 7, 0)

    made = session.change("00000000:43:00.0", work)
    assert threads == ["nvml"]
    mig = session.snapshot(ADDRESSES).gpus[1].mig
    assert mig is not None
    assert [device.uuid for device in mig.devices or ()] == [made.uuid]


def test_a_change_that_fails_harms_nothing(split, session_of: MakeSession) -> None:
    session = session_of(split)
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetGpuInstanceById for GPU 0000:43:00\.0: NOT_FOUND"):
        session.change(GPU, lambda nvml: nvml.destroy_gpu_instance(GPU, 99))
    assert wedged(session.snapshot(ADDRESSES)) == []
    with pytest.raises(ValueError, match="not a PCI address"):
        session.change("gpu 1", lambda nvml: nvml.destroy_gpu_instance(GPU, 7))


@pytest.mark.bug("B14")
def test_a_change_that_does_not_come_back_is_named_and_costs_its_gpu_only(
    split, session_of: MakeSession, until
) -> None:
    session = session_of(split)
    split.hang("nvmlGpuInstanceDestroy", GPU)
    with pytest.raises(NvmlTimeoutError) as caught:
        session.change(GPU, lambda nvml: nvml.destroy_gpu_instance(GPU, 7), deadline=0.3)
    assert (caught.value.call, caught.value.device) == ("nvmlGpuInstanceDestroy", GPU)
    assert wedged(session.snapshot(ADDRESSES)) == [GPU]
    began = time.monotonic()
    with pytest.raises(NvmlTimeoutError) as caught:
        session.change(GPU, lambda nvml: nvml.destroy_gpu_instance(GPU, 7))
    assert caught.value.call == "nvmlGpuInstanceDestroy"
    assert time.monotonic() - began < 20
    assert session.change(ADDRESSES[0], lambda nvml: nvml.set_mig_mode(ADDRESSES[0], True)) == (False, True)
    split.lines.pop()
    split.write()
    until(lambda: not session.wedged[0].stuck)
    assert wedged(session.snapshot(ADDRESSES)) == []


def test_a_change_that_waited_too_long_for_its_turn_is_not_done_later(split, session_of: MakeSession, until) -> None:
    session = session_of(split)
    done: list[str] = []
    split.hang("nvmlSystemGetDriverVersion", "-")

    def hangs() -> bool:
        with pytest.raises(NvmlTimeoutError):
            session.snapshot(ADDRESSES, deadline=0.1)
        call = session.progress()
        return call is not None and call.call == "nvmlSystemGetDriverVersion"

    until(hangs)
    with pytest.raises(NvmlTimeoutError):
        session.change(GPU, lambda _nvml: done.append("late"), deadline=0.1)
    split.lines.pop()
    split.write()
    assert wedged(session.snapshot(ADDRESSES)) == []
    assert done == []


def test_a_change_is_never_done_twice(split, session_of: MakeSession) -> None:
    session = session_of(split)
    session.snapshot(ADDRESSES)
    tried: list[int] = []

    def work(_nvml):
        tried.append(1)
        raise NvmlError("nvmlGpuInstanceGetInfo", NvmlReturn.UNINITIALIZED, GPU)

    with pytest.raises(NvmlError):
        session.change(GPU, work)
    assert tried == [1]
    assert session.library is None
    assert wedged(session.snapshot(ADDRESSES)) == []


def test_a_change_without_a_driver_says_so(split, session_of: MakeSession) -> None:
    session = session_of(split.code("nvmlInitWithFlags", 9))
    with pytest.raises(LibraryUnavailableError):
        session.change(GPU, lambda nvml: nvml.destroy_gpu_instance(GPU, 7))


def test_partitions_are_read_through_the_session_where_they_are_asked_for(split, session_of: MakeSession) -> None:
    session = session_of(split)
    assert [gpu.mig is not None for gpu in session.snapshot(ADDRESSES).gpus] == [False, True, False, False]
    assert [gpu.mig is not None for gpu in session.snapshot(None, mig=True).gpus] == [True, True, True, True]


@pytest.mark.bug("B14")
@pytest.mark.parametrize("call", ["nvmlDeviceGetGpuInstances", "nvmlDeviceGetMigDeviceHandleByIndex"])
def test_a_walk_over_partitions_that_hangs_costs_its_gpu_only(split, session_of: MakeSession, call: str) -> None:
    session = session_of(split, call_timeout=QUICK)
    split.hang(call, GPU)
    assert wedged(session.snapshot(ADDRESSES, deadline=20)) == [GPU]
    assert session.wedged[0].call == call


class Resting:
    """A companion that only notes what it is asked."""

    def __init__(self, *, rests: bool = True) -> None:
        self.asked: list[str] = []
        self._rests = rests

    def rest(self, timeout: float) -> bool:
        assert 0 < timeout <= 5
        self.asked.append("rest")
        return self._rests

    def go_on(self) -> None:
        self.asked.append("go on")


@pytest.mark.bug("B11")
@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("code", [NvmlReturn.NOT_FOUND, NvmlReturn.GPU_NOT_FOUND, NvmlReturn.GPU_IS_LOST])
def test_nvml_is_initialised_anew_for_a_gpu_it_does_not_know_while_others_rest(
    node, session_of: MakeSession, code: int, rests: bool
) -> None:
    session = session_of(node, renew_after=3600.0)
    companion = Resting(rests=rests)
    session.accompany(companion)
    session.snapshot(ADDRESSES)
    assert companion.asked == []
    node.code("nvmlDeviceGetHandleByPciBusId_v2", code, GPU)
    for _ in range(3):
        assert session.snapshot(ADDRESSES).gpus[1].codes == {"handle": code}
    assert companion.asked == ["rest", "go on"]
    node.mend()
    assert session.snapshot(ADDRESSES).gpus[1].codes == {}
    node.code("nvmlDeviceGetHandleByPciBusId_v2", code, GPU)
    session.snapshot(ADDRESSES)
    assert companion.asked == ["rest", "go on"] * 2


def test_others_rest_during_a_change_that_wants_the_gpu_alone(split, session_of: MakeSession) -> None:
    session = session_of(split)
    companion = Resting()
    session.accompany(companion)
    asked: list[list[str]] = []

    def work(nvml):
        asked.append(list(companion.asked))
        return nvml.set_mig_mode(GPU, True)

    assert session.change(GPU, work, alone=True) == (True, True)
    assert (asked, companion.asked) == ([["rest"]], ["rest", "go on"])
    session.change(GPU, work)
    assert companion.asked == ["rest", "go on"]
    with pytest.raises(NvmlError):
        session.change(GPU, lambda nvml: nvml.destroy_gpu_instance(GPU, 99), alone=True)
    assert companion.asked == ["rest", "go on"] * 2


def test_nvml_is_initialised_anew_ever_more_rarely(
    node, session_of: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from native.nvml import session as module

    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    session = session_of(node, renew_after=60.0)
    companion = Resting()
    session.accompany(companion)
    node.code("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.NOT_FOUND, GPU)
    renewed = []
    for _ in range(400):
        before = len(companion.asked)
        session.snapshot(ADDRESSES)
        if len(companion.asked) > before:
            renewed.append(clock[0] - 1000.0)
        clock[0] += 10.0
    assert renewed[:5] == [0.0, 60.0, 180.0, 420.0, 900.0]
    pauses = [later - earlier for earlier, later in itertools.pairwise(renewed)]
    assert max(pauses) == 600.0
