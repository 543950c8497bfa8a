"""What could not be set back is owed: paid once, when the GPU answers again, and by nobody who does not owe it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.model import GpuState
from driver.prepare import ClaimError, Reason, files
from driver.prepare.sharing.debts import Debt, Debts, Setting
from native.commands import CommandError
from native.smi import ComputeMode, NotSupportedError
from tests.unit.prepare.checkpoint_lines import newest, sealed
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal
from tests.unit.prepare.prepare_node import claim, gpu, ref, result
from tests.unit.prepare.sharing_node import SharingNode, mps, share, slicing, uuid

DEFAULT, EXCLUSIVE, PROHIBITED = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED
AWAY = {
    "the GPU is lost": CommandError("GPU is lost", 15),
    "there is no such GPU": CommandError("no devices were found", 6),
    "the driver is away": CommandError("driver is not loaded", 9),
    "nvidia-smi hangs": CommandError("did not end within 9.99 s and was killed", None),
    "it says that it has no modes": NotSupportedError("Not Supported", 3),
}
WAYS = {"MPS": mps(), "time slices": slicing("Long")}


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


def settings(node: SharingNode, index: int = 0) -> tuple[ComputeMode, int]:
    return node.smi.modes.get(uuid(index), DEFAULT), node.smi.slices.get(uuid(index), 0)


def hide(node: SharingNode, fault: CommandError, *calls: str) -> None:
    node.smi.faults.update(dict.fromkeys(calls or ("read", "mode", "slice"), fault))


def owing(node: SharingNode, way: str = "MPS", fault: CommandError = AWAY["the GPU is lost"]) -> None:
    """A claim is unprepared while its GPU is away, which then answers again without having been reset."""
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[WAYS[way]]))
    hide(node, fault)
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert preparer.prepared() == ()
    node.smi.faults.clear()


@pytest.mark.bug("B98")
@pytest.mark.parametrize("before", [(DEFAULT, 0), (PROHIBITED, 1)])
@pytest.mark.parametrize("fault", AWAY.values(), ids=AWAY)
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_was_away_when_its_claim_ended_is_set_back_when_it_answers(
    node: SharingNode, way: str, fault: CommandError, before: tuple[ComputeMode, int]
) -> None:
    node.smi.modes[uuid(0)], node.smi.slices[uuid(0)] = before
    owing(node, way, fault)
    assert settings(node) != before
    later = node.start()
    assert later.recover().problems == []
    assert settings(node) == before
    assert not node.debts.exists()


def test_what_is_paid_is_not_paid_again(node: SharingNode) -> None:
    owing(node)
    preparer = node.start()
    preparer.recover()
    node.smi.modes[uuid(0)] = EXCLUSIVE  # an administrator's word
    calls = len(node.smi.calls)
    preparer.recover()
    node.start().recover()
    assert settings(node) == (EXCLUSIVE, 0)
    assert len(node.smi.calls) == calls


def test_a_setting_that_somebody_else_changed_meanwhile_is_theirs(node: SharingNode) -> None:
    owing(node)
    node.smi.modes[uuid(0)] = PROHIBITED
    node.start().recover()
    assert settings(node) == (PROHIBITED, 0)
    assert not node.debts.exists()


def test_a_setting_that_was_changed_while_the_claim_ran_is_theirs_too(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    node.smi.modes[uuid(0)] = PROHIBITED
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert settings(node) == (PROHIBITED, 0)


@pytest.mark.bug("B72")
def test_a_reboot_takes_the_setting_and_with_it_the_debt(node: SharingNode) -> None:
    owing(node)
    node.reboot()
    node.smi.modes[uuid(0)] = EXCLUSIVE  # what a service at boot wants
    node.start().recover()
    assert settings(node) == (EXCLUSIVE, 0)


def test_a_board_in_the_place_of_the_one_that_was_owed_to_is_left_alone(node: SharingNode) -> None:
    owing(node)
    other = "GPU-ffffffff-0000-4000-8000-000000000000"
    node.change_gpu(0, uuid=other)
    node.smi.modes[other] = EXCLUSIVE
    node.start().recover()
    assert node.smi.modes[other] is EXCLUSIVE
    assert not node.debts.exists()


def test_a_board_that_moved_to_another_slot_is_set_back_there(node: SharingNode) -> None:
    owing(node)
    moved = gpu(9, uuid=uuid(0))
    node.drop_gpu(0)
    node.gpus = (*node.gpus, moved)
    node.start().recover()
    assert settings(node) == (DEFAULT, 0)


@pytest.mark.parametrize("state", [state for state in GpuState if state is not GpuState.READY])
def test_a_gpu_that_is_not_back_yet_is_waited_for(node: SharingNode, state: GpuState) -> None:
    owing(node)
    node.change_gpu(0, state=state)
    calls = len(node.smi.calls)
    node.start().recover()
    assert len(node.smi.calls) == calls
    node.drop_gpu(0)
    node.start().recover()
    assert node.debts.exists()
    node.gpus = (gpu(0), *node.gpus)
    node.start().recover()
    assert settings(node) == (DEFAULT, 0)


def test_before_the_node_is_read_nothing_waits_for_a_gpu(node: SharingNode) -> None:
    owing(node)
    node.ready = False
    calls = len(node.smi.calls)
    node.start().recover()
    assert len(node.smi.calls) == calls


def test_a_debt_that_cannot_be_paid_is_told_and_tried_again_after_a_pause(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driver.prepare.sharing import modestep

    now = [100.0]
    monkeypatch.setattr(modestep.time, "monotonic", lambda: now[0])
    owing(node)
    hide(node, CommandError("Insufficient Permissions", 4), "mode")
    preparer = node.start()
    (problem,) = preparer.recover().problems
    assert "still EXCLUSIVE_PROCESS" in problem.message
    assert "Insufficient Permissions" in problem.message
    calls = len(node.smi.calls)
    assert preparer.recover().problems == [problem], "it is as it was, and not told anew"
    assert len(node.smi.calls) == calls
    now[0] += 10.0
    node.smi.faults.clear()
    assert preparer.recover().problems == []
    assert settings(node) == (DEFAULT, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_change_that_hangs_in_the_kernel_is_set_back_when_it_has_come_about(node: SharingNode, way: str) -> None:
    """nvidia-smi was killed and is not gone: what it was to set may be set at any time later."""
    name = {"MPS": "mode", "time slices": "slice"}[way]
    node.smi.faults[name] = CommandError("did not end within 10 s and was killed", None)
    preparer = node.start()
    refusal(preparer, claim("u1", result(0), configs=[WAYS[way]]))
    node.smi.faults.clear()
    assert not node.debts.exists(), "it is gone without having changed anything"
    node.smi.faults[name] = CommandError("did not end within 10 s and was killed", None)
    setter = node.smi._called

    def hang(shown: str, called: str) -> None:
        if called == name:
            node.smi.hung.add(uuid(0))
        setter(shown, called)

    node.smi._called = hang  # type: ignore[method-assign]  # the call of the fake that hangs
    refusal(preparer, claim("u1", result(0), configs=[WAYS[way]]))
    node.smi._called = setter  # type: ignore[method-assign]  # as before
    node.smi.faults.clear()
    assert preparer.prepared() == ()
    assert "hangs in the kernel" in str(refusal(preparer, claim("u2", result(0))))
    node.smi.modes[uuid(0)], node.smi.slices[uuid(0)] = (EXCLUSIVE, 0) if way == "MPS" else (DEFAULT, 3)
    node.smi.hung.clear()
    prepare(preparer, claim("u2", result(0)))
    assert settings(node) == (DEFAULT, 0)
    assert not node.debts.exists()


# claims that come meanwhile


@pytest.mark.bug("B98")
def test_a_claim_for_the_whole_gpu_gets_it_set_back_first(node: SharingNode) -> None:
    owing(node)
    prepare(node.start(), claim("u2", result(0)))
    assert settings(node) == (DEFAULT, 0)
    assert not node.debts.exists()


def test_a_claim_for_the_whole_gpu_is_refused_as_long_as_it_cannot_be_set_back(node: SharingNode) -> None:
    owing(node)
    hide(node, CommandError("Unknown Error", 255), "mode")
    preparer = node.start()
    error = refusal(preparer, claim("u2", result(0)))
    assert (error.reason, error.permanent) == (Reason.DEVICE_NOT_READY, False)
    assert uuid(0) in str(error)
    assert "compute mode EXCLUSIVE_PROCESS of a claim that is gone" in str(error)
    assert node.specs() == []
    assert preparer.prepared() == ()
    prepare(preparer, claim("u3", result(1)))
    prepare(preparer, claim("u4", result(0, adminAccess=True)))
    node.smi.faults.clear()
    prepare(preparer, claim("u2", result(0)))
    assert settings(node) == (DEFAULT, 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("owed", WAYS)
def test_a_claim_that_shares_the_gpu_sets_it_and_its_end_pays_the_debt(node: SharingNode, owed: str, way: str) -> None:
    node.smi.modes[uuid(0)], node.smi.slices[uuid(0)] = PROHIBITED, 1
    owing(node, owed)
    preparer = node.start()
    prepare(preparer, claim("u2", share(0, 0), configs=[WAYS[way]]))
    during = {"MPS": (EXCLUSIVE, 1), "time slices": (DEFAULT, 3)}[way]
    assert settings(node) == during
    preparer.recover()
    assert settings(node) == during
    prepare(preparer, claim("u3", share(0, 1), configs=[WAYS[way]]))
    assert preparer.unprepare([ref("u2")]) == {"u2": None}
    assert settings(node) == during
    assert preparer.unprepare([ref("u3")]) == {"u3": None}
    assert settings(node) == (PROHIBITED, 1)
    assert not node.debts.exists()


def test_nobody_pays_while_a_claim_of_which_only_the_hardware_is_known_may_need_it(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    for path in node.state_dir.glob("checkpoint.json*"):
        path.unlink()
    name = f"GPU_{gpu(0).address.label.replace('-', '_').upper()}"
    node.spec_path("u1").write_text(
        json.dumps({"env": ["GPUDRA_CLAIM_U1=ns/claim-u1", f"GPUDRA_DEVICE_{name}={uuid(0)}"]})
    )
    later = node.start()
    later.recover()
    assert settings(node) == (EXCLUSIVE, 0)
    assert later.unprepare([ref("u1")]) == {"u1": None}
    later.recover()
    assert settings(node) == (DEFAULT, 0)


def test_what_only_a_record_tells_is_owed_on_behind_a_claim_that_says_nothing(node: SharingNode) -> None:
    """The record is of an earlier version, which wrote no debts; another one, of the same GPU, cannot be read."""
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 0), configs=[mps()]))
    prepare(preparer, claim("u2", share(0, 1), configs=[mps()]))
    node.debts.unlink()
    document = newest(node.state_dir)
    document["claims"]["u2"]["devices"][0].pop("cdiDevice")
    (node.state_dir / "checkpoint.json").write_bytes(sealed(json.dumps(document).encode()))
    later = node.start()
    assert later.unprepare([ref("u1")]) == {"u1": None}
    later.recover()
    assert settings(node) == (EXCLUSIVE, 0)
    assert later.unprepare([ref("u2")]) == {"u2": None}
    later.recover()
    assert settings(node) == (DEFAULT, 0)
    assert not node.debts.exists()


@pytest.mark.bug("B68")
def test_a_lost_record_loses_no_mode(node: SharingNode) -> None:
    """Nothing is left of the claim but its daemon and the mode of its GPU."""
    node.smi.modes[uuid(0)] = PROHIBITED
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    for path in (*node.state_dir.glob("checkpoint.json*"), node.spec_path("u1")):
        path.unlink()
    node.start().recover()
    assert settings(node) == (PROHIBITED, 0)


def test_a_claim_for_which_nothing_had_to_be_changed_owes_nothing(node: SharingNode) -> None:
    node.smi.modes[uuid(0)] = EXCLUSIVE
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 0), configs=[mps()]))
    prepare(preparer, claim("u2", share(0, 1), configs=[mps()]))
    assert not node.debts.exists()
    assert preparer.unprepare([ref("u1"), ref("u2")]) == {"u1": None, "u2": None}
    assert settings(node) == (EXCLUSIVE, 0)


# the file


def debt(index: int = 0, **changes: str) -> Debt:
    fields = {"former": "DEFAULT", "given": "EXCLUSIVE_PROCESS", **changes}
    return Debt(uuid(index), str(gpu(index).address), Setting.COMPUTE_MODE, fields["former"], fields["given"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "debts.json"


def opened(path: Path, boot: str | None = "boot-1") -> Debts:
    return Debts(path, lambda: boot)


def test_nothing_is_changed_where_the_debt_cannot_be_written(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.write_new

    def full(path: Path, data: bytes, mode: int, *, sync: bool = True) -> None:
        if "debts" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data, mode, sync=sync)

    monkeypatch.setattr(files, "write_new", full)
    error = refusal(node.start(), claim("u1", result(0), configs=[mps()]))
    assert error.reason is Reason.WRITE_FAILED
    assert "debts.json" in str(error)
    assert settings(node) == (DEFAULT, 0)


def test_a_debt_that_is_paid_is_gone_though_the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debts = opened(path)
    debts.add(debt(0))
    debts.add(debt(1))

    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        debts.drop(debt(0))
        assert debts.all() == (debt(1),)
    debts.drop(debt(0))
    assert opened(path).all() == (debt(1),)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        debts.drop(debt(1))
    assert not path.exists()


def test_another_process_sees_what_this_one_owes(path: Path) -> None:
    one, other = opened(path), opened(path)
    one.add(debt(0))
    assert other.all() == (debt(0),)
    other.add(debt(0, given="PROHIBITED"))
    assert one.find(uuid(0), Setting.COMPUTE_MODE) == debt(0, given="PROHIBITED")
    assert one.find(uuid(0), Setting.TIME_SLICE) is None
    one.drop(debt(0))  # not what is owed
    assert other.all() == (debt(0, given="PROHIBITED"),)


@pytest.mark.parametrize("boot", ["boot-2", None])
def test_debts_of_an_earlier_boot_are_none(path: Path, boot: str | None) -> None:
    opened(path).add(debt())
    assert opened(path, boot).all() == (() if boot else (debt(),))
    assert path.exists() is (boot is None)


def test_what_a_later_version_owes_is_kept(path: Path) -> None:
    later = {"uuid": "GPU-1", "setting": "clocks", "former": [1, 2]}
    path.write_text(json.dumps({"debts": [later]}))
    debts = opened(path)
    assert debts.all() == ()
    debts.add(debt())
    debts.drop(debt())
    assert json.loads(path.read_text()) == {"debts": [later]}


def _a_folder(path: Path) -> None:
    path.mkdir()


def _a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b" "),
    "cut off": lambda path: path.write_text('{"debts":[{"uuid":"GPU'),
    "NULs": lambda path: path.write_bytes(b"\0" * 512),
    "no object": lambda path: path.write_text("[]"),
    "nesting": lambda path: path.write_text("[" * 100000),
    "another value": lambda path: path.write_text(
        '{"debts":[{"uuid":"G","address":"a","setting":"timeSlice","former":"0","given":"4 --reset"}]}'
    ),
    "a folder": _a_folder,
    "a link": _a_link,
}


@pytest.mark.bug("B68")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_set_aside_and_records_tell_what_was(
    node: SharingNode, damage: Callable[[Path], object]
) -> None:
    node.smi.modes[uuid(0)] = PROHIBITED
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    node.debts.unlink()
    damage(node.debts)
    later = node.start()
    assert later.unprepare([ref("u1")]) == {"u1": None}
    assert settings(node) == (PROHIBITED, 0)
    assert os.path.lexists(node.debts.with_name("debts.json.damaged"))


def test_a_file_that_cannot_be_read_is_left_and_fails_what_needs_it(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    later = node.start()
    real = files.read_regular

    def refuse(path: Path, limit: int) -> bytes:
        if path == node.debts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, limit)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_regular", refuse)
        error = later.unprepare([ref("u1")])["u1"]
        assert isinstance(error, ClaimError)
        assert error.reason is Reason.STATE_UNAVAILABLE
    assert later.unprepare([ref("u1")]) == {"u1": None}
    assert settings(node) == (DEFAULT, 0)
