"""The CDI folder: files whole or not there, readable for every runtime, and nobody else's touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver.prepare.cdi import CdiError
from driver.prepare.specfolder import SpecFolder, digest

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def folder(tmp_path: Path) -> SpecFolder:
    return SpecFolder(tmp_path / "run" / "cdi", DRIVER)


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.bug("B81")
@pytest.mark.usefixtures("umask")
def test_the_file_is_0644_in_a_folder_of_0755_whatever_the_umask(folder: SpecFolder) -> None:
    folder.write("u1", b"{}")
    assert folder.path("u1").stat().st_mode & 0o7777 == 0o644
    assert folder.folder.stat().st_mode & 0o7777 == 0o755


@pytest.mark.bug("B82")
def test_a_folder_that_is_there_keeps_its_mode_and_may_be_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o750)
    (tmp_path / "cdi").symlink_to(real)
    SpecFolder(tmp_path / "cdi", DRIVER).write("u1", b"{}")
    assert real.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in real.iterdir()] == ["gpu.nvidia.com-claim_u1.json"]


def test_the_digest_is_that_of_the_file_as_it_lies_there(folder: SpecFolder) -> None:
    assert folder.current_digest("u1") is None
    folder.write("u1", b"one")
    assert folder.current_digest("u1") == digest(b"one")
    folder.path("u1").write_bytes(b"two")
    assert folder.current_digest("u1") == digest(b"two")


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_what_is_no_regular_file_has_no_digest(folder: SpecFolder, make: object) -> None:
    folder.folder.mkdir(parents=True)
    assert callable(make)
    make(folder.path("u1"))
    assert folder.current_digest("u1") is None


@pytest.mark.bug("B81")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o664, 0o4644])
def test_what_not_all_can_read_or_others_can_write_is_no_file_of_ours(folder: SpecFolder, mode: int) -> None:
    folder.write("u1", b"one")
    folder.path("u1").chmod(mode)
    assert folder.current_digest("u1") is None
    folder.write("u1", b"one")
    assert folder.current_digest("u1") == digest(b"one")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_a_user_is_no_file_of_ours_and_is_replaced(folder: SpecFolder) -> None:
    folder.write("u1", b"one")
    os.chown(folder.path("u1"), 1000, 1000)
    assert folder.current_digest("u1") is None, "its owner can let root do anything to a container"
    folder.write("u1", b"one")
    assert folder.path("u1").stat().st_uid == 0
    assert folder.current_digest("u1") == digest(b"one")


def test_something_is_held_until_neither_a_file_nor_a_part_of_one_nor_a_link_is_there(
    folder: SpecFolder, tmp_path: Path
) -> None:
    assert not folder.holds("u1")
    folder.write("u1", b"one")
    assert folder.holds("u1")
    folder.remove("u1")
    assert not folder.holds("u1")
    folder.path("u1").symlink_to(tmp_path / "nowhere")
    assert folder.holds("u1")
    folder.remove("u1")
    part = folder.path("u1").with_name(f".{folder.path('u1').name}.tmp")
    part.write_bytes(b"o")
    assert folder.holds("u1")
    folder.remove("u1")
    assert not folder.holds("u1")


def test_writing_replaces_a_link_and_does_not_follow_it(folder: SpecFolder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder.folder.mkdir(parents=True)
    folder.path("u1").symlink_to(victim)
    (folder.folder / ".gpu.nvidia.com-claim_u1.json.tmp").symlink_to(victim)
    folder.write("u1", b"{}")
    assert victim.read_text() == "mine"
    assert not folder.path("u1").is_symlink()


def test_removing_is_idempotent_and_needs_no_folder(folder: SpecFolder) -> None:
    assert not folder.remove("u1")
    folder.write("u1", b"{}")
    assert folder.remove("u1")
    assert not folder.remove("u1")


@pytest.mark.bug("B83")
def test_only_own_files_are_found(folder: SpecFolder) -> None:
    folder.write("u2", b"{}")
    folder.write("u1", b"{}")
    for name in (
        "nvidia.yaml",
        "k8s.gpu.nvidia.com-claim_u3.yaml",
        "gpu.nvidia.com_metadata_u1_req.json",
        "xgpu.nvidia.com-claim_u4.json",
        "gpuxnvidia.com-claim_u5.json",
        "gpu.nvidia.com-claim_.json",
        "gpu.nvidia.com-claim_u6.json.bak",
    ):
        (folder.folder / name).write_text("{}")
    (folder.folder / ".gpu.nvidia.com-claim_u7.json.tmp").write_text("{")
    assert [item.uid for item in folder.leftovers()] == ["u1", "u2"]
    assert folder.uids() == {"u1", "u2", "u7"}


def test_removing_takes_what_an_interrupted_write_left(folder: SpecFolder) -> None:
    folder.folder.mkdir(parents=True)
    left = folder.folder / ".gpu.nvidia.com-claim_u7.json.tmp"
    left.write_text("{")
    assert folder.remove("u7")
    assert not left.exists()


def test_an_unreadable_leftover_is_still_one(folder: SpecFolder) -> None:
    folder.folder.mkdir(parents=True)
    folder.path("u1").mkdir()
    (leftover,) = folder.leftovers()
    assert (leftover.uid, leftover.text) == ("u1", "")


@pytest.mark.bug("B131")
@pytest.mark.parametrize("uid", ["../x", "a/b", "", ".", "u\n", "x" * 64])
def test_what_is_no_uid_never_becomes_a_path(folder: SpecFolder, uid: str) -> None:
    with pytest.raises(ValueError, match="no claim UID"):
        folder.path(uid)


def test_a_temporary_file_has_a_name_that_runtimes_do_not_read(
    folder: SpecFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        seen.append(self.name)
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    folder.write("u1", b"{}")
    assert seen
    assert not any(name.endswith((".json", ".yaml")) for name in seen)


def test_a_driver_name_that_is_no_vendor_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(CdiError):
        SpecFolder(tmp_path, "4gpu.example.com")
