"""A sysfs tree without a kernel behind it tells of its own changes, in the kernel's words."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from native import treewatch, uevents
from native.treewatch import TreeSource, is_kernel_tree
from native.uevents import SourceUnavailableError, UeventWatcher, open_source_of

GPU = "0000:1b:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A bus with one driver; no device yet."""
    for folder in ("bus/pci/devices", "bus/pci/drivers/nvidia", "devices"):
        (tmp_path / "sys" / folder).mkdir(parents=True)
    return tmp_path / "sys"


@pytest.fixture
def source(tree: Path) -> Iterator[TreeSource]:
    opened = TreeSource(tree)
    yield opened
    opened.close()


def test_links_that_come_and_go_are_devices_that_come_and_go(tree: Path, source: TreeSource) -> None:
    device, driver = tree / "bus/pci/devices" / GPU, tree / "bus/pci/drivers/nvidia" / GPU
    assert source.take() == []
    device.symlink_to("../../../devices/x")
    driver.symlink_to("../../../../devices/x")
    assert source.take() == ["add", "bind"]
    driver.unlink()
    device.unlink()
    assert source.take() == ["unbind", "remove"]


@pytest.mark.bug("B11")
def test_a_link_that_is_moved_away_and_back_is_a_device_that_goes_and_comes(
    tree: Path, source: TreeSource, tmp_path: Path
) -> None:
    device = tree / "bus/pci/devices" / GPU
    device.symlink_to("x")
    source.take()
    device.rename(tmp_path / "away")
    assert source.take() == ["remove"]
    (tmp_path / "away").rename(device)
    assert source.take() == ["add"]


def test_the_kernels_own_tree_is_known_and_others_are_not(tree: Path, tmp_path: Path) -> None:
    assert not is_kernel_tree(tree)
    if Path("/sys/bus").is_dir():
        assert is_kernel_tree(Path("/sys"))
    assert is_kernel_tree(tmp_path / "nowhere")


def test_a_mount_of_another_kind_is_no_kernel_tree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    device = tree.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / {tree} rw,noatime shared:1 - {{}} x rw\n"
    for kind, expected in (("sysfs", True), ("ext4", False)):
        monkeypatch.setattr(Path, "read_text", lambda *_, kind=kind, **__: line.format(kind))
        assert is_kernel_tree(tree) is expected


def test_changes_that_were_lost_are_an_error_that_means_so(source: TreeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    overflow = treewatch._HEADER.pack(-1, 0x4000, 0, 0)
    monkeypatch.setattr("os.read", lambda *_: overflow)
    with pytest.raises(OSError, match="lost") as caught:
        source.take()
    assert caught.value.errno == errno.ENOBUFS


def test_a_tree_without_a_pci_bus_is_no_source_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sys").mkdir()
    with pytest.raises(SourceUnavailableError, match=r"cannot be watched .*bus/pci/devices"):
        open_source_of(tmp_path / "sys")
    with caplog.at_level(logging.WARNING):
        assert not UeventWatcher(lambda: None, sys_root=tmp_path / "sys").start()
    assert "next periodic rescan only" in caplog.text


def test_the_watcher_of_a_tree_calls_when_a_device_comes(tree: Path) -> None:
    called = threading.Event()
    watcher = UeventWatcher(called.set, settle_seconds=0.01, sys_root=tree)
    assert watcher.start()
    try:
        (tree / "bus/pci/devices" / GPU).symlink_to("x")
        assert called.wait(20)
    finally:
        watcher.stop()


def test_the_kernels_tree_is_heard_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(uevents, "is_kernel_tree", lambda _: True)
    monkeypatch.setattr(uevents, "open_kernel_source", lambda: asked.append("kernel"))
    open_source_of(Path("/sys"))
    assert asked == ["kernel"]
