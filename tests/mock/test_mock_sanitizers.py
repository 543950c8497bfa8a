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
    return f"""
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nvml.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static char room[1 << 16] __attribute__((aligned(16)));
static nvmlDevice_t device;
static void clear(void) {{ memset(room, 0, sizeof(room)); }}
static int say(const char *name, nvmlReturn_t code)
{{
    printf("%s %d\\n", name, (int)code);
    return (int)code;
}}
static void with_nothing(void)
{{
{calls(functions, room=False)}
}}
static void with_room(void)
{{
{calls(functions, room=True)}
}}
/* Every call with a handle of each kind, alive and dead; gives how often something went wrong that must not. */
static int divide(void)
{{
    nvmlReturn_t status;
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    nvmlComputeInstanceInfo_t info;
    nvmlDevice_t parent = device;
    unsigned int mode = 0, pending = 0;
    if (nvmlDeviceGetMigMode(parent, &mode, &pending) != NVML_SUCCESS)
        return 0;
    if (nvmlDeviceSetMigMode(parent, 1, &status) || status || nvmlDeviceCreateGpuInstance(parent, 0, &gi))
        return 1;
    clear();
    for (unsigned int profile = 0; profile < 9; ++profile)
        (void)nvmlGpuInstanceCreateComputeInstance(gi, profile, &ci);
    if (nvmlGpuInstanceGetComputeInstanceById(gi, 0, &ci) || nvmlComputeInstanceGetInfo_v2(ci, &info))
        return 2;
    device = info.device;
    puts("# mig device");
    with_nothing();
    with_room();
    for (unsigned int id = 0; id < 8; ++id)
        if (nvmlGpuInstanceGetComputeInstanceById(gi, id, &ci) == NVML_SUCCESS && nvmlComputeInstanceDestroy(ci))
            return 3;
    if (nvmlGpuInstanceDestroy(gi) != NVML_SUCCESS)
        return 4;
    with_room();
    for (unsigned int bit = 0; bit < 64; ++bit) {{
        device = (nvmlDevice_t)((unsigned long)info.device ^ 1UL << bit);
        (void)nvmlDeviceGetUUID(device, room, 96);
        (void)nvmlGpuInstanceDestroy((nvmlGpuInstance_t)device);
        (void)nvmlComputeInstanceGetInfo_v2((nvmlComputeInstance_t)device, &info);
    }}
    device = parent;
    return nvmlDeviceSetMigMode(parent, 0, &status) || status ? 5 : 0;
}}
int main(void)
{{
    unsigned int count = 0;
    puts("# before");
    with_nothing();
    if (say("nvmlInit_v2", nvmlInit_v2()) || nvmlDeviceGetCount_v2(&count))
        return 1;
    puts("# without device");
    with_nothing();
    puts("# with device");
    for (unsigned int i = 0; i < count; ++i) {{
        if (nvmlDeviceGetHandleByIndex_v2(i, &device))
            return 2;
        with_nothing();
        with_room();
        const int wrong = divide();
        if (wrong)
            return 10 + wrong;
    }}
    nvmlEventSet_t set;
    nvmlEventData_t event;
    if (nvmlEventSetCreate(&set) || nvmlEventSetWait_v2(set, &event, 1) != NVML_ERROR_TIMEOUT || nvmlEventSetFree(set))
        return 3;
    for (int code = -1; code < 1000; ++code)
        if (!strlen(nvmlErrorString((nvmlReturn_t)code)))
            return 4;
    return nvmlShutdown() ? 5 : 0;
}}
"""


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
