"""Who holds a GPU: found in /proc and /sys, and never an exception for what may not be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from native.holders import Holder, connected_display, holders


def process(proc: Path, pid: int, name: str, *files: str) -> None:
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    for number, file in enumerate(files):
        (folder / str(number)).symlink_to(file)


def test_processes_that_hold_a_node_open_are_named(tmp_path: Path) -> None:
    process(tmp_path, 40, "python", "/dev/null", "/dev/nvidia0", "/dev/nvidia0")
    process(tmp_path, 8, "Xorg", "/dev/nvidia1", "/dev/nvidia0")
    process(tmp_path, 9, "other", "/dev/nvidiactl")
    (tmp_path / "self").mkdir()
    assert holders(tmp_path, {"/dev/nvidia0"}) == (
        Holder(8, "Xorg", "/dev/nvidia0"),
        Holder(40, "python", "/dev/nvidia0"),
    )
    assert str(holders(tmp_path, {"/dev/nvidia1"})[0]) == "Xorg (pid 8)"


def test_processes_that_end_or_may_not_be_seen_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "50").mkdir()
    process(tmp_path, 51, "odd")
    (tmp_path / "51/fd/0").write_text("no link")
    process(tmp_path, 52, "nameless", "/dev/nvidia0")
    (tmp_path / "52/comm").unlink()
    assert holders(tmp_path, {"/dev/nvidia0"}) == (Holder(52, "?", "/dev/nvidia0"),)
    assert holders(tmp_path / "none", {"/dev/nvidia0"}) == ()


def test_a_search_without_time_finds_nothing(tmp_path: Path) -> None:
    process(tmp_path, 8, "Xorg", "/dev/nvidia0")
    assert holders(tmp_path, {"/dev/nvidia0"}, seconds=-1.0) == ()


def test_a_real_process_is_found(tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    node.touch()
    code = f"import sys; f = open({str(node)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in [holder.pid for holder in holders(Path("/proc"), {str(node)})]
        child.communicate()
    assert os.getpid() not in [holder.pid for holder in holders(Path("/proc"), {str(node)})]


def test_a_monitor_is_found_on_the_cards_of_the_gpu(tmp_path: Path) -> None:
    for name, status in (("card0-DP-1", "disconnected"), ("card0-HDMI-A-1", "connected"), ("card1-DP-2", "connected")):
        (tmp_path / "class/drm" / name).mkdir(parents=True)
        (tmp_path / "class/drm" / name / "status").write_text(f"{status}\n")
    (tmp_path / "class/drm/card2").mkdir()
    assert connected_display(tmp_path, {"card0", "renderD128"}) == "HDMI-A-1"
    assert connected_display(tmp_path, {"card2"}) is None
    assert connected_display(tmp_path / "none", {"card0"}) is None
