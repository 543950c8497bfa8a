"""Snapshots through the session: deadlines, wedged GPUs, drivers that come, go and are replaced."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from native.nvml import NvmlSession
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn, NvmlTimeoutError
from native.nvml.types import NvmlSnapshot
from tests.support.nvmlsessions import ADDRESSES, QUICK, MakeSession, nvml_threads, wedged


def test_a_snapshot_comes_from_a_thread_of_its_own(node, session_of: MakeSession) -> None:
    session = session_of(node)
    assert nvml_threads() == []
    snapshot = session.snapshot(ADDRESSES)
    assert [gpu.codes for gpu in snapshot.gpus] == [{}, {}, {}, {}]
    assert session.snapshot(ADDRESSES) == snapshot
    assert len(nvml_threads()) == 1
    assert session.progress() is None


def test_the_session_says_which_library_is_open(node, session_of: MakeSession, backend_name: str) -> None:
    session = session_of(node)
    assert session.library is None
    session.snapshot(ADDRESSES)
    assert session.library is not None
    assert (session.library.backend, session.library.path, session.library.mock) == (
        backend_name,
        str(node.library),
        False,
    )


@pytest.mark.bug("B14")
def test_a_call_that_does_not_come_back_costs_its_gpu_not_the_node(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetHandleByPciBusId_v2", ADDRESSES[2])
    snapshot = session.snapshot(ADDRESSES, deadline=20)
    assert wedged(snapshot) == [ADDRESSES[2]]
    assert [gpu.uuid is not None for gpu in snapshot.gpus] == [True, True, False, True]
    assert [gpu.address for gpu in snapshot.gpus] == list(ADDRESSES)
    entry = session.wedged[0]
    assert (entry.address, entry.call, entry.stuck) == (ADDRESSES[2], "nvmlDeviceGetHandleByPciBusId_v2", True)


@pytest.mark.bug("B14")
def test_polling_a_node_with_a_wedged_gpu_leaks_no_thread(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetName", ADDRESSES[0])
    for _ in range(10):
        assert wedged(session.snapshot(ADDRESSES, deadline=20)) == [ADDRESSES[0]]
    assert len(nvml_threads()) == 2


@pytest.mark.bug("B14")
def test_several_wedged_gpus_cost_one_thread_each(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetName", ADDRESSES[0]).hang("nvmlDeviceGetMigMode", ADDRESSES[3])
    snapshot = session.snapshot(ADDRESSES, deadline=20)
    assert wedged(snapshot) == [ADDRESSES[0], ADDRESSES[3]]
    assert [entry.call for entry in session.wedged] == ["nvmlDeviceGetName", "nvmlDeviceGetMigMode"]
    assert len(nvml_threads()) == 3


def test_a_node_of_wedged_gpus_only_still_says_its_versions(make_node, session_of: MakeSession) -> None:
    node = make_node(gpus=ADDRESSES[:1])
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetUUID")
    snapshot = session.snapshot(ADDRESSES[:1], deadline=20)
    assert snapshot.driver_version == "580.105.08"
    assert wedged(snapshot) == [ADDRESSES[0]]


def test_a_gpu_whose_call_came_back_is_read_again_without_being_asked_to(node, session_of: MakeSession, until) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetName", ADDRESSES[1])
    session.snapshot(ADDRESSES, deadline=20)
    node.mend()
    until(lambda: not session.wedged[0].stuck)
    assert [gpu.codes for gpu in session.snapshot(ADDRESSES).gpus] == [{}, {}, {}, {}]
    assert session.wedged == ()
    until(lambda: len(nvml_threads()) == 1)


def test_a_gpu_that_wedges_again_waits_before_it_is_asked_again(node, session_of: MakeSession, until) -> None:
    session = session_of(node, call_timeout=QUICK, retry_after=3600.0)
    for times in (1, 2):
        node.hang("nvmlDeviceGetName", ADDRESSES[1])
        assert wedged(session.snapshot(ADDRESSES, deadline=20)) == [ADDRESSES[1]]
        assert session.wedged[0].times == times
        node.mend()
        until(lambda: not session.wedged[0].stuck)
    assert wedged(session.snapshot(ADDRESSES)) == [ADDRESSES[1]]
    assert 0 < session.wedged[0].retry_at - time.monotonic() <= 600
    assert session.retry_wedged() == (ADDRESSES[1],)
    assert wedged(session.snapshot(ADDRESSES)) == []


def test_a_gpu_whose_call_is_still_under_way_is_not_asked_again(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetName", ADDRESSES[1])
    session.snapshot(ADDRESSES, deadline=20)
    assert session.retry_wedged() == ()
    assert wedged(session.snapshot(ADDRESSES)) == [ADDRESSES[1]]
    assert len(nvml_threads()) == 2


def test_beyond_the_bound_no_more_threads_are_left_behind(node, session_of: MakeSession, until) -> None:
    session = session_of(node, call_timeout=QUICK, max_stuck_threads=1)
    node.hang("nvmlDeviceGetName", ADDRESSES[0]).hang("nvmlDeviceGetName", ADDRESSES[1])
    for _ in range(2):
        with pytest.raises(NvmlTimeoutError, match=f"nvmlDeviceGetName for GPU {ADDRESSES[1]}"):
            session.snapshot(ADDRESSES, deadline=20)
    assert len(nvml_threads()) == 2
    node.mend()
    until(lambda: not session.wedged[0].stuck)
    assert wedged(session.snapshot(ADDRESSES, deadline=20)) == []


def test_enumeration_by_index_goes_on_by_address_once_a_gpu_is_wedged(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    assert len(session.snapshot(None).gpus) == 4
    node.hang("nvmlDeviceGetSerial", ADDRESSES[2])
    snapshot = session.snapshot(None, deadline=20)
    assert wedged(snapshot) == [ADDRESSES[2]]
    assert len(snapshot.gpus) == 4


def test_a_first_enumeration_by_index_survives_a_wedged_gpu_too(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetSerial", ADDRESSES[2])
    assert wedged(session.snapshot(None, deadline=20)) == [ADDRESSES[2]]


def test_an_initialisation_that_hangs_is_named_and_goes_on_where_it_came_back(
    node, session_of: MakeSession, until
) -> None:
    session = session_of(node)
    node.hang("nvmlInitWithFlags")
    for _ in range(2):
        with pytest.raises(NvmlTimeoutError, match="nvmlInitWithFlags did not come back within"):
            session.snapshot(ADDRESSES, deadline=QUICK)
    assert session.wedged == ()
    assert len(nvml_threads()) == 1
    node.mend()
    assert wedged(session.snapshot(ADDRESSES, deadline=20)) == []


def test_a_search_for_the_library_that_hangs_blocks_nobody(node, backend_name: str) -> None:
    gate = threading.Event()

    def find() -> Path:
        gate.wait(20)
        return Path(node.library)

    with NvmlSession(find, backend_name) as session:
        with pytest.raises(NvmlTimeoutError, match="finding and loading the NVML library"):
            session.snapshot(ADDRESSES, deadline=QUICK)
        gate.set()
        assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_a_slow_call_that_comes_back_in_time_wedges_nothing(node, session_of: MakeSession, until) -> None:
    session = session_of(node, call_timeout=60.0)
    node.hang("nvmlDeviceGetName", ADDRESSES[0])
    results: list[NvmlSnapshot] = []
    reader = threading.Thread(target=lambda: results.append(session.snapshot(ADDRESSES, deadline=60)))
    reader.start()
    until(lambda: (call := session.progress()) is not None and call.call == "nvmlDeviceGetName")
    node.mend()
    reader.join(20)
    assert wedged(results[0]) == []
    assert session.wedged == ()


def test_a_second_caller_waits_for_its_turn_and_no_longer_than_its_deadline(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=30.0)
    node.hang("nvmlSystemGetDriverVersion", "-")
    results: list[NvmlSnapshot] = []
    first = threading.Thread(target=lambda: results.append(session.snapshot(ADDRESSES, deadline=30)))
    first.start()
    begin = time.monotonic()
    with pytest.raises(NvmlTimeoutError):
        session.snapshot(ADDRESSES, deadline=0.1)
    assert time.monotonic() - begin < 15
    node.mend()
    first.join(20)
    assert len(results) == 1


def test_snapshots_from_many_threads_are_all_answered(node, session_of: MakeSession) -> None:
    session = session_of(node, call_timeout=30.0)
    results: list[NvmlSnapshot] = []
    threads = [threading.Thread(target=lambda: results.append(session.snapshot(ADDRESSES))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8
    assert all(result == results[0] for result in results)
    assert len(nvml_threads()) == 1


@pytest.mark.parametrize("code", [9, 12, 18])
def test_a_driver_that_comes_up_later_is_found_by_the_next_snapshot(node, session_of: MakeSession, code: int) -> None:
    session = session_of(node.code("nvmlInitWithFlags", code))
    for _ in range(2):
        with pytest.raises(LibraryUnavailableError) as caught:
            session.snapshot(ADDRESSES)
        assert caught.value.code == code
    assert session.library is None
    node.mend()
    assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_a_driver_that_goes_away_and_comes_back_is_opened_anew(node, session_of: MakeSession) -> None:
    session = session_of(node)
    session.snapshot(ADDRESSES)
    node.code("nvmlSystemGetDriverVersion", 9)
    with pytest.raises(LibraryUnavailableError):
        session.snapshot(ADDRESSES)
    assert session.library is None
    node.mend()
    assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_a_library_that_appears_later_is_found_by_the_next_snapshot(node, session_of: MakeSession) -> None:
    away = node.library.with_suffix(".away")
    node.library.rename(away)
    session = session_of(node)
    with pytest.raises(LibraryUnavailableError, match="cannot be looked at: No such file"):
        session.snapshot(ADDRESSES)
    away.rename(node.library)
    assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_initialisation_that_stays_lost_is_an_error_after_one_try(node, session_of: MakeSession) -> None:
    session = session_of(node)
    session.snapshot(ADDRESSES)
    node.code("nvmlSystemGetDriverVersion", NvmlReturn.UNINITIALIZED)
    with pytest.raises(NvmlError) as caught:
        session.snapshot(ADDRESSES)
    assert caught.value.code == NvmlReturn.UNINITIALIZED
    node.mend()
    assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_initialisation_lost_in_between_is_not_seen_by_the_caller(node, backend_name: str) -> None:
    opened = []

    def make(path: Path) -> object:
        from native.nvml import make_backend

        opened.append(make_backend(path, backend_name))
        return opened[-1]

    with NvmlSession(node.library, make=make) as session:  # type: ignore[arg-type]
        before = session.snapshot(ADDRESSES)
        opened[0].close()
        assert session.snapshot(ADDRESSES) == before
    assert len(opened) == 2


def test_a_library_that_was_replaced_on_disk_is_opened_anew(
    node, make_node: Callable[..., object], session_of: MakeSession
) -> None:
    session = session_of(node)
    session.snapshot(ADDRESSES)
    mapped = node.library.stat().st_ino
    new = node.library.with_suffix(".new")
    shutil.copy(node.library, new)
    new.replace(node.library)
    node.text("nvmlSystemGetDriverVersion", b"590.44.01\0", "-")
    assert node.library.stat().st_ino != mapped
    assert session.snapshot(ADDRESSES).driver_version == "590.44.01"
    inodes = {
        int(line.split()[4]) for line in Path("/proc/self/maps").read_text().splitlines() if str(node.library) in line
    }
    assert inodes == {node.library.stat().st_ino}


def test_a_library_that_was_replaced_is_opened_anew_although_a_thread_is_stuck_in_the_old_one(
    node, session_of: MakeSession
) -> None:
    session = session_of(node, call_timeout=QUICK)
    node.hang("nvmlDeviceGetName", ADDRESSES[0])
    for number in range(1, 3):
        assert ADDRESSES[0] in wedged(session.snapshot(ADDRESSES, deadline=20))
        new = node.library.with_suffix(".new")
        shutil.copy(node.library, new)
        new.replace(node.library)
        version = f"590.44.0{number}"
        node.text("nvmlSystemGetDriverVersion", version.encode() + b"\0", "-")
        assert session.snapshot(ADDRESSES, deadline=20).driver_version == version
        lines = Path("/proc/self/maps").read_text().splitlines()
        inodes = {int(line.split()[4]) for line in lines if str(node.library) in line}
        assert node.library.stat().st_ino in inodes
        # The old one stays for the thread that is in it, and only that: the one in between is gone again.
        assert len(inodes) == 2
        node.lines.pop()


def test_a_driver_of_another_version_in_another_place_is_followed(make_node, backend_name: str) -> None:
    old, new = make_node(), make_node(gpus=ADDRESSES[:2])
    current = [old.library]
    with NvmlSession(lambda: current[0], backend_name) as session:
        assert len(session.snapshot(None).gpus) == 4
        current[0] = new.library
        assert len(session.snapshot(None).gpus) == 2
        assert session.library is not None
        assert session.library.path == str(new.library)


def test_errors_of_the_search_reach_the_caller_and_stop_nothing(node, backend_name: str) -> None:
    answers: list[Path] = []

    def find() -> Path:
        if not answers:
            raise LibraryUnavailableError("find_library", NvmlReturn.LIBRARY_NOT_FOUND, "nothing below /run/nvidia")
        return answers[0]

    with NvmlSession(find, backend_name) as session:
        with pytest.raises(LibraryUnavailableError, match="nothing below /run/nvidia"):
            session.snapshot(ADDRESSES)
        answers.append(node.library)
        assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_a_misspelt_address_is_refused_and_harms_nothing(node, session_of: MakeSession) -> None:
    session = session_of(node)
    with pytest.raises(ValueError, match="not a PCI address"):
        session.snapshot(("nonsense",))
    assert len(session.snapshot(ADDRESSES).gpus) == 4


def test_a_closed_session_says_so_and_closes_twice(node, session_of: MakeSession) -> None:
    session = session_of(node)
    session.snapshot(ADDRESSES)
    assert session.close()
    assert session.close()
    assert nvml_threads() == []
    with pytest.raises(NvmlError, match="closed session"):
        session.snapshot(ADDRESSES)


def test_a_session_that_was_never_used_closes_without_a_thread(node, session_of: MakeSession) -> None:
    assert session_of(node).close()
    assert nvml_threads() == []


def test_closing_does_not_wait_for_a_call_that_hangs(node, session_of: MakeSession, until) -> None:
    session = session_of(node)
    node.hang("nvmlInitWithFlags")
    with pytest.raises(NvmlTimeoutError):
        session.snapshot(ADDRESSES, deadline=0.1)
    assert session.close(timeout=0.1) is False
    node.mend()
    until(lambda: not nvml_threads())


@pytest.mark.bug("B14")
def test_a_process_with_a_call_that_never_returns_still_ends(node, backend_name: str) -> None:
    node.hang("nvmlDeviceGetName", ADDRESSES[0])
    code = (
        "from native.nvml import NvmlSession\n"
        f"session = NvmlSession({str(node.library)!r}, {backend_name!r}, call_timeout=0.2)\n"
        f"print(dict(session.snapshot({ADDRESSES!r}, deadline=20).gpus[0].codes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{'handle': 10}\n"
    assert f"GPU {ADDRESSES[0]}: nvmlDeviceGetName did not come back" in done.stderr
