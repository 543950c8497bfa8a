"""What is handed out: a wheel for every Python from 3.11 on, and a source distribution that builds it again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
FOLDERS = ("driver", "native", "kubeletplugin")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a fresh clone has them: nothing that was built."""
    folder = tmp_path_factory.mktemp("source")
    built = shutil.ignore_patterns("__pycache__", "*.so", "*.o", "_nvml.c")
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=built)
    for name in FILES:
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


def build(kind: str, source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, so that what the one lacks is missed by the other."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert re.fullmatch(r"gpudra-[0-9.]+-cp311-abi3-linux_\w+\.whl", wheel.name)


def test_the_wheel_holds_the_packages_their_types_and_the_extension(names: set[str]) -> None:
    assert {"native/_nvml.abi3.so", "driver/agent.py", "kubeletplugin/plugin.py"} <= names
    assert {f"{folder}/py.typed" for folder in FOLDERS} <= names


def test_no_compiled_look_alike_of_nvidias_library_is_handed_out(names: set[str]) -> None:
    compiled = {name for name in names if re.search(r"\.so(\.|$)|\.o$|\.a$", name)}
    assert compiled == {"native/_nvml.abi3.so"}


def test_the_mock_can_be_compiled_from_what_the_wheel_holds(names: set[str]) -> None:
    assert any(name.startswith("native/mock/csrc/") and name.endswith(".c") for name in names)
    assert any(name.startswith("native/mock/profiles/") and name.endswith(".yaml") for name in names)
    assert "native/csrc/vendor/nvml.h" in names


def test_the_sources_of_the_extension_and_the_tests_stay_out(names: set[str]) -> None:
    assert not [name for name in names if name.startswith(("tests/", "hack/", "native/csrc/nvml_"))]


def test_the_licences_travel_with_it(names: set[str]) -> None:
    licences = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "native/csrc/vendor/NOTICE"}


def test_the_extension_links_nothing_but_libc(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        extension = Path(archive.extract("native/_nvml.abi3.so", tmp_path))
    done = subprocess.run(["ldd", str(extension)], capture_output=True, text=True, check=True)
    linked = {line.split()[0].rpartition("/")[2].partition(".so")[0] for line in done.stdout.splitlines()}
    assert linked <= {"linux-vdso", "libc", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "nvidia" not in done.stdout


def test_the_command_is_installed_by_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "gpudra = driver.cli.main:main" in archive.read(entry).decode()
