"""The C parts under AddressSanitizer and UndefinedBehaviorSanitizer: every function, with nothing and with little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native.mock import MockNode, build, generate
from native.mock.generate import Function

pytest.importorskip("pycparser", reason="the calls are made from nvml.h by pycparser")

WAITS = {"nvmlEventSetWait", "nvmlEventSetWait_v2", "nvmlEventSetWait_v3", "nvmlSystemEventSetWait"}
LIFECYCLE = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"}
MAKES = {"nvmlEventSetCreate"}
"""What they give must be freed: called with room by the lifecycle at the end only, so that leaks are found."""
OPAQUE = ("nvmlEventSet_t", "nvmlUnit_t", "nvmlGpuInstance_t", "nvmlComputeInstance_t")


def argument(kind: str, *, room: bool) -> str:
    """C for one argument: zero, or the device, or a big zeroed buffer behind any pointer."""
    if "*" in kind or "[" in kind:
        return "(void *)room" if room else "NULL"
    if kind.startswith("nvmlDevice_t"):
        return "device"
    if kind.startswith(OPAQUE):
        return "NULL"
    return "1" if room and kind.startswith("unsigned int") else "0"


def calls(functions: list[Function], *, room: bool) -> str:
    lines = []
    for function in functions:
        if function.name in LIFECYCLE | WAITS or function.returns != "nvmlReturn_t":
            continue
        if room and function.name in MAKES:
            continue
        kinds = [] if function.parameters == "void" else function.parameters.split(", ")
        given = ", ".join(argument(kind, room=room) for kind in kinds)
        lines.append(f'    clear(); (void)say("{function.name}", {function.name}({given}));')
    return "\n".join(lines)


def program(functions: list[Function]) -> str:
    """The C program of ``every_call.c`` with its calls put in."""
    text = (Path(__file__).parent / "every_call.c").read_text()
    for mark, room in (("/* WITH NOTHING */", False), ("/* WITH ROOM */", True)):
        assert text.count(mark) == 1
        text = text.replace(mark, calls(functions, room=room))
    return text


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that calls all of NVML, built with the sanitizers."""
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "all.c").write_text(program(generate.prototypes()))
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{build.VENDOR}",
    ]
    sources = [str(build.CSRC / f"{name}.c") for name in build.CORE]
    output = folder / "all"
    command = [
        build.compiler(),
        *flags,
        f"-I{build.CSRC}",
        str(folder / "all.c"),
        *sources,
        "-o",
        str(output),
        "-pthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr and "asan" in done.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("profile", ["dgx-h100", "gb200", "gb10", "rtx-pro-6000", "a30"])
def test_no_call_touches_memory_it_should_not(profile: str, tmp_path: Path, driver: Path) -> None:
    node = MockNode.create(tmp_path / "root", profile)  # of the test's own: some calls change it
    environment = {**os.environ, **node.environment}
    done = subprocess.run([driver], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    before, without, device = done.stdout.split("# ")[1:4]
    codes = {line.split()[1] for line in before.splitlines()[1:] if not line.startswith("nvmlInit")}
    assert codes == {"1"}, "before init everything is uninitialised"
    about_gpu = [line for line in without.splitlines() if line.startswith("nvmlDeviceGet")]
    assert {line.split()[1] for line in about_gpu} == {"2"}, "no handle, or no place for the answer: invalid argument"
    assert "nvmlDeviceGetMinorNumber 0" in device


def test_any_sequence_of_mig_operations_is_clean_under_the_sanitizers(tmp_path: Path) -> None:
    found = subprocess.run(
        [build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer library")
    environment = {
        **os.environ,
        "GPUDRA_MOCK_CFLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all",
        "GPUDRA_MOCK_EXAMPLES": "3",
        "GPUDRA_MOCK_CYCLES": "50",
        "GPUDRA_MOCK_CALLS": "1000",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own are not ours to judge
    }
    building = [sys.executable, "-c", "from native.mock import build; build.build()"]
    subprocess.run(building, env=environment, cwd=Path(__file__).parents[2], check=True, timeout=60)
    environment["LD_PRELOAD"] = found  # after the compiler has run: it would be ten times slower
    names = ("test_mock_mig_model.py",)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "dgx-h100"]
    done = subprocess.run(
        [*command, *(str(Path(__file__).parent / name) for name in names)],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
