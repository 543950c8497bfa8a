"""Searching a driver root: candidates, links, folders in the way, and what containers get."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native import driverroot
from native.driverroot import driver_binaries, driver_libraries, find_binary, find_library, resolve_in_root
from native.elf import soname
from native.nvml.errors import LibraryUnavailableError, NvmlReturn

VERSION = "580.105.08"


def put(root: Path, path: str, text: str = "") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def link(root: Path, path: str, target: str) -> None:
    here = root / path.lstrip("/")
    here.parent.mkdir(parents=True, exist_ok=True)
    here.symlink_to(target)


@pytest.fixture(scope="module")
def elf_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("elf") / "libcuda.so"
    command = ["cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.mark.parametrize("folder", driverroot.LIBRARY_FOLDERS)
def test_the_library_is_found_in_every_folder_of_the_field(tmp_path: Path, folder: str) -> None:
    real = put(tmp_path, f"{folder}/libnvidia-ml.so.{VERSION}")
    link(tmp_path, f"{folder}/libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}")
    assert find_library(tmp_path) == real


@pytest.mark.bug("B21")
def test_a_folder_of_that_name_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").mkdir(parents=True)
    real = put(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert find_library(tmp_path) == real


@pytest.mark.bug("B21")
def test_a_link_to_nothing_is_passed_over(tmp_path: Path) -> None:
    link(tmp_path, "/usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.535.1")
    real = put(tmp_path, "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1")
    assert find_library(tmp_path) == real


@pytest.mark.bug("B21")
def test_without_a_library_every_path_is_listed_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").mkdir(parents=True)
    link(tmp_path, "/lib64/libnvidia-ml.so.1", "gone")
    link(tmp_path, "/usr/lib/libnvidia-ml.so.1", "libnvidia-ml.so.1")
    with pytest.raises(LibraryUnavailableError) as caught:
        find_library(tmp_path)
    assert caught.value.code == NvmlReturn.LIBRARY_NOT_FOUND
    message = str(caught.value)
    assert f"{tmp_path}/usr/lib64/libnvidia-ml.so.1 (is a folder, not a file)" in message
    assert f"{tmp_path}/lib64/libnvidia-ml.so.1 (a link to nothing)" in message
    assert f"{tmp_path}/usr/lib/libnvidia-ml.so.1 (Too many levels of symbolic links)" in message
    assert "set the driver root" in message
    for folder in driverroot.LIBRARY_FOLDERS:
        assert f"{tmp_path}{folder.rstrip('/')}/libnvidia-ml.so.1" in message


def test_a_named_pipe_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    os.mkfifo(tmp_path / "lib64/libnvidia-ml.so.1")
    with pytest.raises(LibraryUnavailableError, match="is not a regular file"):
        find_library(tmp_path)


def test_absolute_links_start_at_the_root_and_none_leads_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    real = put(root, "/opt/driver/libnvidia-ml.so.1")
    outside = put(tmp_path, "outside.so")
    link(root, "/usr/lib64", "/opt/driver")
    assert find_library(root) == real
    link(root, "/escape", f"../../../../../..{outside}")
    assert resolve_in_root(root, "/escape") == root / str(outside).lstrip("/")
    assert resolve_in_root(root, "/../../outside.so") == root / "outside.so"


def test_links_in_a_circle_are_an_error_that_names_the_path(tmp_path: Path) -> None:
    link(tmp_path, "/a", "/b")
    link(tmp_path, "/b", "a")
    with pytest.raises(OSError, match="symbolic links") as caught:
        resolve_in_root(tmp_path, "/a")
    assert caught.value.errno == errno.ELOOP


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "usr", "lib"]), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_no_path_leads_out_of_the_root(tmp_path: Path, parts: list[str]) -> None:
    assert resolve_in_root(tmp_path, "/" + "/".join(parts)).is_relative_to(tmp_path)


@pytest.mark.bug("B21")
@pytest.mark.parametrize("folder", ["/opt/bin", "/usr/bin", "/sbin", "/home/kubernetes/bin/nvidia/bin"])
def test_nvidia_smi_is_found_wherever_the_field_puts_it(tmp_path: Path, folder: str) -> None:
    real = put(tmp_path, f"{folder}/nvidia-smi")
    assert find_binary(tmp_path) == real


def test_without_nvidia_smi_every_path_is_listed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"opt/bin/nvidia-smi .*usr/bin/nvidia-smi"):
        find_binary(tmp_path)


def test_libraries_of_the_version_stand_in_the_container_under_their_soname(tmp_path: Path, elf_library: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{VERSION}").write_bytes(elf_library.read_bytes())
    put(folder, f"libnvidia-ml.so.{VERSION}", "not ELF")
    put(folder, "libcuda.so.535.54.03")
    put(folder, f"notes.so.{VERSION}")
    put(folder / "vdpau", f"libvdpau_nvidia.so.{VERSION}")
    assert driver_libraries(tmp_path, VERSION) == (
        (f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        (f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}",) * 2,
        (f"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}",) * 2,
    )


def test_a_folder_that_is_a_link_to_another_gives_its_libraries_once(tmp_path: Path) -> None:
    put(tmp_path, f"/usr/lib64/libcuda.so.{VERSION}")
    link(tmp_path, "/lib64", "/usr/lib64")
    put(tmp_path, f"/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")
    assert [container for _, container in driver_libraries(tmp_path, VERSION)] == [f"/usr/lib64/libcuda.so.{VERSION}"]


def test_a_library_that_is_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / f"usr/lib64/libcuda.so.{VERSION}").mkdir(parents=True)
    assert driver_libraries(tmp_path, VERSION) == ()


def test_a_library_folder_that_goes_in_circles_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link(tmp_path, "/usr/lib64", "/usr/lib64")
    put(tmp_path, f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")
    assert len(driver_libraries(tmp_path, VERSION)) == 1
    assert "usr/lib64" in caplog.text


@pytest.mark.parametrize("version", ["", "580/../../etc"])
def test_what_cannot_be_a_version_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(ValueError, match="not a driver version"):
        driver_libraries(tmp_path, version)


def test_programs_that_are_there_stand_in_usr_bin(tmp_path: Path) -> None:
    put(tmp_path, "/opt/bin/nvidia-smi")
    put(tmp_path, "/usr/bin/nvidia-cuda-mps-control")
    assert driver_binaries(tmp_path) == (
        ("/opt/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control"),
    )


def test_the_soname_is_read_from_the_dynamic_section(elf_library: Path, tmp_path: Path) -> None:
    assert soname(elf_library) == "libcuda.so.1"
    bare = tmp_path / "bare.so"
    subprocess.run(["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(bare)], check=True)
    assert soname(bare) is None


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
def test_a_damaged_library_has_a_soname_or_none_but_never_an_error(
    elf_library: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(elf_library.read_bytes())
    for _ in range(data.draw(st.integers(0, 8))):
        raw[data.draw(st.integers(0, min(len(raw), 512) - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    name = soname(damaged)
    assert name is None or "/" not in name
