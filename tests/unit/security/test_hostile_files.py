"""Links, pipes and others' files where ours belong: never followed, never waited for, never deleted in their stead."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from driver import statefile
from driver.journal.ring import Ring
from driver.prepare import ClaimError, Reason
from driver.prepare.files import private_folder
from driver.prepare.sharing.process import adopt
from kubeletplugin.api import Claim, ClaimRef, PreparedDevice
from kubeletplugin.instancelock import InstanceLock
from kubeletplugin.metadata import MetadataError, MetadataWriter
from tests.unit.prepare.prepare_node import DRIVER, FakeNode, claim, ref, result

UID = "0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55"
SECRET = "what somebody else keeps here\n"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file that is none of ours."""
    path = tmp_path / "elsewhere" / "theirs"
    path.parent.mkdir()
    path.write_text(SECRET)
    path.chmod(0o640)
    return path


def untouched(path: Path) -> bool:
    return path.read_text() == SECRET and stat.S_IMODE(path.stat().st_mode) == 0o640


NAMES = [
    "checkpoint.json",
    "checkpoint.json.previous",
    "checkpoint.json.tmp",
    "checkpoint.json.reserve",
    "serialize.lock",
]


@pytest.mark.bug("B68")
@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_the_state_folder_is_not_followed(node: FakeNode, theirs: Path, name: str) -> None:
    node.state_dir.mkdir(mode=0o700)
    (node.state_dir / name).symlink_to(theirs)
    preparer = node.start()
    preparer.prepare({UID: claim(UID, result(0))})
    preparer.unprepare([ref(UID)])
    preparer.recover()
    assert untouched(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_nothing_makes_nothing_elsewhere(node: FakeNode, tmp_path: Path, name: str) -> None:
    node.state_dir.mkdir(mode=0o700)
    target = tmp_path / "made-elsewhere"
    (node.state_dir / name).symlink_to(target)
    preparer = node.start()
    preparer.prepare({UID: claim(UID, result(0))})
    assert not target.exists()


@pytest.mark.parametrize("name", ["checkpoint.json", "checkpoint.json.tmp"])
def test_a_pipe_in_the_state_folder_is_not_waited_for(node: FakeNode, name: str) -> None:
    node.state_dir.mkdir(mode=0o700)
    os.mkfifo(node.state_dir / name)
    answer = node.start().prepare({UID: claim(UID, result(0))})[UID]
    assert not isinstance(answer, ClaimError), answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_state_folder_that_is_another_users_link_is_refused_and_an_administrators_is_followed(
    node: FakeNode, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    node.state_dir.symlink_to(elsewhere)
    os.lchown(node.state_dir, 4711, 4711)
    answer = node.start().prepare({UID: claim(UID, result(0))})[UID]
    assert isinstance(answer, ClaimError)
    assert answer.reason is Reason.STATE_UNAVAILABLE
    assert "user 4711" in str(answer)
    assert not answer.permanent
    assert list(elsewhere.iterdir()) == []
    os.lchown(node.state_dir, 0, 0)
    assert not isinstance(node.start().prepare({UID: claim(UID, result(0))})[UID], ClaimError)


def test_a_state_folder_that_others_may_write_to_is_closed(node: FakeNode) -> None:
    node.state_dir.mkdir()
    node.state_dir.chmod(0o777)
    assert not isinstance(node.start().prepare({UID: claim(UID, result(0))})[UID], ClaimError)
    assert stat.S_IMODE(node.state_dir.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_is_refused(node: FakeNode) -> None:
    node.state_dir.mkdir(mode=0o700)
    os.chown(node.state_dir, 4711, 4711)
    answer = node.start().prepare({UID: claim(UID, result(0))})[UID]
    assert isinstance(answer, ClaimError)
    assert "user 4711" in str(answer)
    assert node.specs() == []


def test_a_private_folder_is_made_and_stays(tmp_path: Path) -> None:
    private_folder(tmp_path / "a/b")
    private_folder(tmp_path / "a/b")
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="no folder"):
        private_folder(tmp_path / "file")


@pytest.mark.bug("B83")
@pytest.mark.parametrize("name", [f"{DRIVER}-claim_{UID}.json", f".{DRIVER}-claim_{UID}.json.tmp"])
def test_a_link_in_the_cdi_folder_is_replaced_or_removed_and_its_target_stays(
    node: FakeNode, theirs: Path, name: str
) -> None:
    node.cdi_dir.mkdir()
    node.cdi_dir.chmod(0o777)
    (node.cdi_dir / name).symlink_to(theirs)
    preparer = node.start()
    assert not isinstance(preparer.prepare({UID: claim(UID, result(0))})[UID], ClaimError)
    assert not node.spec_path(UID).is_symlink()
    assert preparer.unprepare([ref(UID)]) == {UID: None}
    assert node.specs() == []
    assert untouched(theirs)


@pytest.mark.bug("B83")
def test_the_sweep_of_the_cdi_folder_takes_links_and_not_what_they_lead_to(node: FakeNode, theirs: Path) -> None:
    node.cdi_dir.mkdir()
    (node.cdi_dir / f"{DRIVER}-claim_{UID}.json").symlink_to(theirs)
    foreign = node.cdi_dir / "nvidia.json"
    foreign.symlink_to(theirs)
    preparer = node.start()
    preparer.prepare({"u1": claim("u1", result(0))})
    preparer.recover()
    assert foreign.is_symlink()
    assert untouched(theirs)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_in_the_place_of_a_cdi_file_harms_no_other_claim(
    node: FakeNode, make: Callable[[Path], None]
) -> None:
    node.cdi_dir.mkdir()
    make(node.spec_path(UID))
    answers = node.start().prepare({UID: claim(UID, result(0)), "u2": claim("u2", result(1))})
    assert not isinstance(answers["u2"], ClaimError)


@pytest.mark.parametrize("name", ["health.json", "idle.json"])
def test_state_files_are_written_beside_a_link_and_read_from_no_pipe(tmp_path: Path, theirs: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to(theirs)
    (tmp_path / f"{name}.tmp").symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        statefile.read(path, 100)
    statefile.write(path, b"ours", sync=False)
    assert path.read_bytes() == b"ours"
    assert untouched(theirs)
    path.unlink()
    os.mkfifo(path)
    assert statefile.read(path, 100) == b""


def test_the_journal_is_not_written_through_a_link(tmp_path: Path, theirs: Path) -> None:
    (tmp_path / "journal").symlink_to(theirs.parent)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        Ring(tmp_path / "journal", 1 << 20)
    assert [path.name for path in theirs.parent.iterdir()] == ["theirs"]


def test_the_lock_between_instances_is_not_taken_through_a_link(tmp_path: Path, theirs: Path) -> None:
    (tmp_path / "serialize.lock").symlink_to(theirs.parent / "made")
    with pytest.raises(OSError, match="symbolic links"), InstanceLock(tmp_path).hold(lambda: 1.0):
        pytest.fail("the lock was taken")
    assert not (theirs.parent / "made").exists()


# device metadata

DEVICE = PreparedDevice(("r0",), "pool", "gpu-0", ())
CLAIM = Claim(ClaimRef("default", "train", UID), {"metadata": {}})


def writer(tmp_path: Path) -> MetadataWriter:
    return MetadataWriter(DRIVER, tmp_path / "data", tmp_path / "cdi")


def test_metadata_is_not_written_through_links(tmp_path: Path, theirs: Path) -> None:
    made = writer(tmp_path)
    made.write(CLAIM, [DEVICE])
    (stored,) = (tmp_path / "data").rglob("metadata.json")
    stored.unlink()
    stored.symlink_to(theirs)
    with pytest.raises(MetadataError, match="symbolic links"):
        made.write(CLAIM, [DEVICE])
    (spec,) = (tmp_path / "cdi").iterdir()
    stored.unlink()
    spec.with_name(f".{spec.name}.new").symlink_to(theirs)
    made.write(CLAIM, [DEVICE])
    assert spec.read_text().startswith("{")
    assert untouched(theirs)


def test_the_folder_of_a_claims_metadata_is_not_removed_through_a_link(tmp_path: Path, theirs: Path) -> None:
    made = writer(tmp_path)
    made.write(CLAIM, [DEVICE])
    (stored,) = (tmp_path / "data").rglob("metadata.json")
    folder = stored.parents[1]
    folder.rename(folder.with_name("aside"))
    folder.symlink_to(theirs.parent)
    with pytest.raises(MetadataError):
        made.remove(CLAIM.ref)
    assert untouched(theirs)


def test_a_pipe_in_the_place_of_metadata_is_not_waited_for(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.write(CLAIM, [DEVICE])
    (stored,) = (tmp_path / "data").rglob("metadata.json")
    stored.unlink()
    os.mkfifo(stored)
    with pytest.raises(MetadataError):
        made.write(CLAIM, [DEVICE])


# MPS: containers can write to the folder of the pipes


@pytest.mark.parametrize("content", ["", "x", "-1", "0", "9" * 5000, "1 2", "٣"])
def test_a_pid_file_that_names_no_process_adopts_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert adopt(tmp_path / "pid") is None


def test_a_pid_file_that_is_a_pipe_a_link_or_endless_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert adopt(tmp_path / "pipe") is None
    assert adopt(tmp_path / "link") is None


def test_the_daemon_of_another_claim_and_any_other_process_are_not_adopted(tmp_path: Path) -> None:
    """A container that writes another process's number into its pid file must not have that process ended."""
    import subprocess
    import sys

    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    program = tmp_path / "nvidia-cuda-mps-control"
    program.symlink_to(sys.executable)
    command = [str(program), "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    daemon = subprocess.Popen(
        command,
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(other)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert daemon.stdout is not None
        daemon.stdout.readline()  # by now it is the program, not the copy of this one
        for pid in (os.getpid(), 1, daemon.pid):
            (mine / "pid").write_text(str(pid))
            assert adopt(mine / "pid") is None
        (other / "pid").write_text(f"{daemon.pid}\n")
        found = adopt(other / "pid")
        assert found is not None
        assert found.pid == daemon.pid
    finally:
        daemon.communicate()
