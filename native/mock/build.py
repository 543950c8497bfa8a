"""Compiles the look-alike, the programs of the node and the stand-ins for the other driver libraries, once per content.

The cache is ``${XDG_CACHE_HOME:-~/.cache}/gpudra/mock/<hash>``; the hash covers the sources, nvml.h and the compiler.
A library that lacks functions is only linked anew. ``GPUDRA_MOCK_CFLAGS`` adds flags, such as a sanitizer's; with one
of those the programs are linked dynamically, because they need it. Whatever is made is made under another name and
renamed into place, so two processes that build at the same time do no harm and nobody ever sees half of it. None of it
goes into a wheel.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

CSRC: Final = Path(__file__).parent / "csrc"
VENDOR: Final = Path(__file__).parent.parent / "csrc" / "vendor"
CORE: Final = (
    "stubs",
    "state",
    "system",
    "identity",
    "device",
    "link",
    "topology",
    "events",
    "mig",
    "mig_profiles",
    "mig_devices",
    "capabilities",
    "rules",
    "lock",
    "load",
    "health",
)
PROGRAMS: Final = {
    "nvidia-smi": (
        "programs",
        "smi",
        "smi_fields",
        "smi_mig",
        "smi_mig_list",
        "smi_monitor",
        "smi_query",
        "smi_set",
        "smi_summary",
        "smi_text",
        "smi_topo",
        "smi_tree",
        "smi_xml",
    ),
    "nvidia-cuda-mps-control": ("programs", "mps_control", "mps_commands", "mps_daemon", "mps_server"),
}
"""Static programs of the node: name -> sources beside the core."""
FLAGS: Final = ("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

OTHER_LIBRARIES: Final = {
    "libcuda.so": "libcuda.so.1",
    "libcudadebugger.so": "libcudadebugger.so.1",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so": "libnvidia-opencl.so.1",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvcuvid.so": "libnvcuvid.so.1",
}
"""File name before the driver version -> SONAME, as the NVIDIA driver installs them."""


class BuildError(RuntimeError):
    """The mock could not be compiled; the message holds the compiler's own words."""


@dataclass(frozen=True, slots=True)
class Built:
    """Where the compiled parts lie in the cache."""

    library: Path
    programs: Path
    """Folder with one file per key of ``PROGRAMS``."""
    others: Path
    """Folder with one file per key of ``OTHER_LIBRARIES``."""


def cache_root() -> Path:
    """Folder of all cached builds."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpudra" / "mock"


@lru_cache(maxsize=1)
def compiler() -> str:
    """The C compiler: ``$CC``, else ``cc``.

    Raises:
        BuildError: there is none.
    """
    name = os.environ.get("CC", "cc")
    found = shutil.which(name)
    if found is None:
        raise BuildError(
            f"the mock needs a C compiler, and {name} is not in PATH (Debian: apt-get install gcc libc6-dev)"
        )
    return found


def _more_flags() -> list[str]:
    return shlex.split(os.environ.get("GPUDRA_MOCK_CFLAGS", ""))


@lru_cache(maxsize=1)
def _compiler_version() -> str:
    return _run([compiler(), "--version"])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def sources() -> list[Path]:
    """Every file that goes into the build."""
    return [*sorted(CSRC.glob("*.[ch]")), VENDOR / "nvml.h"]


def key() -> str:
    """The cache key of the sources and the compiler."""
    digest = hashlib.sha256(_compiler_version().encode())
    digest.update(" ".join((*FLAGS, *_more_flags(), *CORE, *_program_sources(), *OTHER_LIBRARIES.values())).encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def build(absent: Iterable[str] = ()) -> Built:
    """The compiled mock, from the cache or compiled now.

    Args:
        absent: functions that the library shall truly lack, as an older driver does.

    Raises:
        BuildError: no compiler, or it failed.
    """
    entry = cache_root() / key()
    if not entry.is_dir():
        _publish(entry)
    script = version_script(absent)
    library = entry / f"libnvidia-ml-{hashlib.sha256(script.encode()).hexdigest()[:12]}.so"
    if not library.is_file():
        _link(entry / "core.o", script, library)
    return Built(library, entry / "programs", entry / "others")


def _publish(entry: Path) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=entry.parent))
    try:
        _compile_all(work)
        try:
            work.rename(entry)
        except OSError:
            if not entry.is_dir():  # else another process was first, and its entry is as good
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile_all(work: Path) -> None:
    objects = work / "objects"
    for folder in (objects, work / "others", work / "programs"):
        folder.mkdir()
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [pool.submit(_compile, name, objects) for name in (*CORE, *_program_sources())]
        jobs += [pool.submit(_stand_in, work / "others" / file, soname) for file, soname in OTHER_LIBRARIES.items()]
        for job in jobs:
            job.result()
    core = work / "core.o"
    _run([compiler(), "-r", "-nostdlib", "-o", str(core), *(str(objects / f"{name}.o") for name in CORE)])
    for name, parts in PROGRAMS.items():
        _link_program(work / "programs" / name, [*(objects / f"{part}.o" for part in parts), core])
    shutil.rmtree(objects)


def _program_sources() -> list[str]:
    return list(dict.fromkeys(part for parts in PROGRAMS.values() for part in parts))


def _link_program(program: Path, objects: Sequence[Path]) -> None:
    more = _more_flags()
    linking = more if any(flag.startswith("-fsanitize") for flag in more) else [*more, "-static", "-s"]
    try:
        _run([compiler(), *linking, "-o", str(program), *map(str, objects), "-pthread"])
    except BuildError as error:
        raise BuildError(
            f"{error}\n{program.name} is linked statically: it needs libc.a (libc6-dev, glibc-static)"
        ) from error


def _link(core: Path, script: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".linking-", dir=core.parent.parent) as folder:
        exports = Path(folder) / "exports.map"
        exports.write_text(script, encoding="ascii")
        made = Path(folder) / library.name
        options = ["-shared", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={exports}"]
        _run([compiler(), *_more_flags(), *options, "-o", str(made), str(core), "-pthread"])
        made.rename(library)


def _compile(name: str, into: Path) -> None:
    _run(
        [
            compiler(),
            *FLAGS,
            *_more_flags(),
            f"-I{VENDOR}",
            "-c",
            str(CSRC / f"{name}.c"),
            "-o",
            str(into / f"{name}.o"),
        ]
    )


def _stand_in(path: Path, soname: str) -> None:
    """A loadable library without any function: what a container mounts, not what it could compute with."""
    _run([compiler(), "-shared", "-nostdlib", "-s", f"-Wl,-soname,{soname}", "-x", "c", "/dev/null", "-o", str(path)])


def version_script(absent: Iterable[str]) -> str:
    """The linker's export list: NVML and the marker, less what an older driver lacks (an exact name beats a glob)."""
    local = "".join(f" {name};" for name in sorted(absent))
    return f"{{ global: nvml*; gpudra_mock_marker; local:{local} *; }};\n"
