"""Capabilities of MIG instances as the kernel shows them below /proc."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from native.capabilities import capability_minor, instance_minors, make_capability_node


def access(proc: Path, path: str, text: str) -> None:
    folder = proc / "driver/nvidia/capabilities" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "access").write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two GPUs; on the second, a GPU instance with two compute instances."""
    access(tmp_path, "mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    (tmp_path / "driver/nvidia/capabilities/gpu0/mig").mkdir(parents=True)
    for path, minor in (("gi2", 156), ("gi2/ci0", 157), ("gi2/ci1", 158)):
        access(tmp_path, f"gpu1/mig/{path}", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    return tmp_path


@pytest.mark.bug("B79")
def test_the_minor_is_read_and_not_computed(proc: Path) -> None:
    assert capability_minor(proc, 1, 2) == 156
    assert capability_minor(proc, 1, 2, 1) == 158


def test_there_is_none_for_what_does_not_stand(proc: Path) -> None:
    assert capability_minor(proc, 0, 2) is None
    assert capability_minor(proc, 1, 3) is None
    assert capability_minor(proc, 1, 2, 5) is None
    assert capability_minor(proc / "nowhere", 1, 2) is None


def test_a_file_without_a_minor_is_an_error_that_names_it(proc: Path) -> None:
    access(proc, "gpu1/mig/gi2/ci1", "DeviceFileMode: 292\n")
    with pytest.raises(ValueError, match=r"gpu1/mig/gi2/ci1/access names no DeviceFileMinor"):
        capability_minor(proc, 1, 2, 1)


def test_all_instances_are_listed_and_one_that_cannot_be_read_hides_no_other(proc: Path) -> None:
    access(proc, "gpu1/mig/gi2/ci1", "")
    access(proc, "gpu1/mig/gix", "DeviceFileMinor: 9\n")
    assert instance_minors(proc) == {(1, 2, None): 156, (1, 2, 0): 157}


@pytest.mark.bug("B76")
@pytest.mark.bug("B79")
def test_a_node_that_nobody_made_is_made_with_the_major_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Path, int, int]] = []

    def mknod(path: Path, mode: int, device: int) -> None:
        made.append((path, mode, device))
        path.touch()

    monkeypatch.setattr(os, "mknod", mknod)
    (tmp_path / "dev").mkdir()
    (tmp_path / "devices").write_text(
        "Character devices:\n195 nvidia\n508 nvidia-caps\n509 nvidia-caps-imex-channels\n"
    )
    make_capability_node(tmp_path, tmp_path, 157)
    path = tmp_path / "dev/nvidia-caps/nvidia-cap157"
    assert made == [(path, stat.S_IFCHR | 0o444, os.makedev(508, 157))]
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_without_such_devices_in_the_kernel_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n509 nvidia-caps-imex-channels\n")
    with pytest.raises(OSError, match="has no nvidia-caps"):
        make_capability_node(tmp_path, tmp_path, 157)


def test_a_kernel_without_mig_has_none(tmp_path: Path) -> None:
    assert instance_minors(tmp_path) == {}
