"""Full, read-only and failing disks: the old state stands, the error says path, cause and remedy, Unprepare goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.prepare import ClaimError, Preparer, Reason
from driver.prepare import files as prepare_files
from tests.unit.prepare.prepare_node import FakeNode, claim, ref, result


def outcome(preparer: Preparer, uid: str, index: int) -> ClaimError | None:
    answer = preparer.prepare({uid: claim(uid, result(index))})[uid]
    return answer if isinstance(answer, ClaimError) else None


class FailingCalls:
    """Stands for ``os`` in ``driver.prepare.files``: the n-th call of one kind below a folder fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.count = 0

    def fail(self, call: str, code: int, nth: int, times: int = 1) -> None:
        """From the n-th call of this name on, ``times`` calls fail."""
        original = getattr(os, call)
        self.count = 0

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if nth <= self.count < nth + times:
                raise OSError(code, os.strerror(code))
            return original(*arguments, **options)

        self.monkeypatch.setattr(os, call, wrapped)

    def mend(self) -> None:
        self.monkeypatch.undo()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingCalls]:
    yield FailingCalls(monkeypatch)
    monkeypatch.undo()


@pytest.mark.bug("B63")
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("write", errno.ENOSPC),
        ("pwrite", errno.EROFS),
        ("fdatasync", errno.EIO),
        ("fsync", errno.EIO),
        ("open", errno.EROFS),
    ],
)
@pytest.mark.parametrize("nth", range(1, 7))
def test_whichever_write_of_a_prepare_fails_the_retry_gives_a_whole_result(
    node: FakeNode, calls: FailingCalls, call: str, code: int, nth: int
) -> None:
    preparer = node.start()
    assert outcome(preparer, "old", 7) is None
    old_file = node.spec_path("old").read_bytes()
    calls.fail(call, code, nth)
    error = outcome(preparer, "u1", 0)
    calls.mend()
    if error is not None:
        assert error.reason in (Reason.WRITE_FAILED, Reason.STATE_UNAVAILABLE)
        assert not error.permanent
        assert os.strerror(code) in str(error)
        assert str(node.base) in str(error)
        assert node.specs() == ["old"]
    assert node.spec_path("old").read_bytes() == old_file
    assert outcome(preparer, "old", 7) is None
    # whatever was left, another start agrees with it, and the claim can be prepared and undone
    fresh = node.start()
    assert fresh.recover().problems == []
    assert outcome(fresh, "u1", 0) is None
    assert node.specs() == ["old", "u1"]
    assert fresh.unprepare([ref("u1"), ref("old")]) == {"u1": None, "old": None}
    assert node.specs() == []


@pytest.mark.bug("B63")
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("write", errno.ENOSPC),
        ("pwrite", errno.EROFS),
        ("fdatasync", errno.EIO),
        ("fsync", errno.EIO),
        ("open", errno.EROFS),
    ],
)
@pytest.mark.parametrize("nth", range(1, 6))
def test_whichever_write_of_an_unprepare_fails_the_retry_frees_everything(
    node: FakeNode, calls: FailingCalls, call: str, code: int, nth: int
) -> None:
    preparer = node.start()
    assert outcome(preparer, "u1", 0) is None
    calls.fail(call, code, nth)
    preparer.unprepare([ref("u1")])
    calls.mend()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.specs() == []
    assert preparer.prepared() == ()
    assert outcome(preparer, "u2", 0) is None


@pytest.mark.bug("B63")
def test_a_failed_write_is_reached_by_the_faults_of_these_tests(node: FakeNode, calls: FailingCalls) -> None:
    preparer = node.start()
    assert outcome(preparer, "u0", 0) is None
    for uid, call, nth in (("u1", "pwrite", 1), ("u2", "fdatasync", 1), ("u3", "write", 1), ("u4", "pwrite", 2)):
        calls.fail(call, errno.EIO, nth)
        assert outcome(preparer, uid, int(uid[1:])) is not None
        calls.mend()
        assert outcome(preparer, uid, int(uid[1:])) is None  # and the checkpoint is a file of slots again


@pytest.mark.bug("B63")
@pytest.mark.bug("B82")
def test_something_in_the_way_of_the_cdi_folder_is_named(node: FakeNode) -> None:
    node.cdi_dir.write_text("a file")
    preparer = node.start()
    error = outcome(preparer, "u1", 0)
    assert error is not None
    assert str(node.spec_path("u1")) in str(error)
    assert preparer.prepared() == ()
    node.cdi_dir.unlink()
    assert outcome(preparer, "u1", 0) is None


@pytest.mark.bug("B64")
def test_a_state_folder_that_cannot_be_used_stops_prepare_and_unprepare_and_spoils_nothing(node: FakeNode) -> None:
    node.state_dir.write_text("a file")
    preparer = node.start()
    error = outcome(preparer, "u1", 0)
    assert error is not None
    assert error.reason is Reason.STATE_UNAVAILABLE
    undone = preparer.unprepare([ref("u1")])["u1"]
    assert undone is not None
    assert undone.reason is Reason.STATE_UNAVAILABLE
    (problem,) = preparer.recover().problems
    assert str(node.state_dir) in problem.message
    node.state_dir.unlink()
    assert outcome(preparer, "u1", 0) is None


@pytest.mark.bug("B64")
def test_an_unreadable_checkpoint_hands_out_nothing_and_is_not_replaced(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome(node.start(), "u1", 0) is None
    before = (node.state_dir / "checkpoint.json").read_bytes()

    def refuse(path: Path, limit: int) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    preparer = node.start()
    with monkeypatch.context() as patch:
        patch.setattr(prepare_files, "read_regular", refuse)
        for index in (0, 1):
            error = outcome(preparer, "u2", index)
            assert error is not None
            assert error.reason is Reason.STATE_UNAVAILABLE
        undone = preparer.unprepare([ref("u1")])["u1"]
        assert undone is not None
        assert undone.reason is Reason.STATE_UNAVAILABLE
    assert (node.state_dir / "checkpoint.json").read_bytes() == before
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


@pytest.mark.bug("B68")
def test_a_lost_checkpoint_beside_an_unreadable_cdi_folder_hands_out_nothing(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome(node.start(), "u1", 0) is None
    for path in node.state_dir.glob("checkpoint.json*"):
        path.unlink()
    preparer = node.start()
    original = Path.iterdir

    def refuse(self: Path) -> Iterator[Path]:
        if self == node.cdi_dir:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        error = outcome(preparer, "u2", 0)
        assert error is not None
        assert error.reason is Reason.STATE_UNAVAILABLE
    error = outcome(preparer, "u2", 0)
    assert error is not None
    assert error.reason is Reason.DEVICE_IN_USE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 192 KiB, where this process may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "none", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # the preparer still holds its file


def fill(folder: Path) -> None:
    with (folder / "filler").open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - filling the disk is meant to end so


@pytest.mark.bug("B63")
@pytest.mark.parametrize("cdi_too", [False, True])
def test_on_a_really_full_disk_claims_can_be_unprepared_and_none_is_half_prepared(
    node: FakeNode, small_disk: Path, cdi_too: bool
) -> None:
    node.state_dir.symlink_to(small_disk / "state")
    (small_disk / "state").mkdir()
    if cdi_too:
        (small_disk / "cdi").mkdir()
        node.cdi_dir.symlink_to(small_disk / "cdi")
    preparer = node.start()
    uids = [f"u{index}" for index in range(6)]
    for index, uid in enumerate(uids):
        assert outcome(preparer, uid, index) is None
    fill(small_disk)
    error = outcome(preparer, "new", 7)
    if not cdi_too:  # the checkpoint has room for many more in the blocks that it has
        assert error is None
        uids.insert(0, "new")
    else:
        assert error is not None
        assert error.reason is Reason.WRITE_FAILED
        assert "No space left on device" in str(error)
        assert "free space" in str(error)
    assert node.specs() == uids
    for uid in uids:
        assert preparer.unprepare([ref(uid)]) == {uid: None}
        fill(small_disk)
    assert node.specs() == []
    assert node.start().recover().undone == []
    (small_disk / "filler").unlink()
    assert outcome(preparer, "new", 7) is None


@pytest.mark.bug("B63")
def test_a_read_only_cdi_folder_leaves_nothing_behind(node: FakeNode, small_disk: Path) -> None:
    node.cdi_dir.symlink_to(small_disk)
    preparer = node.start()
    assert outcome(preparer, "u1", 0) is None
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    error = outcome(preparer, "u2", 1)
    assert error is not None
    assert error.reason is Reason.WRITE_FAILED
    assert "mount that file system writable" in str(error)
    assert [record.ref.uid for record in preparer.prepared()] == ["u1"]
    undone = preparer.unprepare([ref("u1")])["u1"]
    assert undone is not None
    assert "remove the CDI file" in str(undone)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert outcome(preparer, "u2", 1) is None
