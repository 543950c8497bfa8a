"""Where a driver's user-space files are below a driver root: the NVML library, nvidia-smi, what containers need.

A driver root is a folder that holds a driver installation as if it were ``/`` (``/`` itself, ``/run/nvidia/driver`` of
the driver container, a COS node's ``/``). Symbolic links are followed inside it: an absolute link there starts at the
root, and no ``..`` leads out. Only regular files count (a bind mount of a missing file leaves a folder of that name).
Folders searched: those of the reference DRA driver and of nvidia-container-toolkit, plus COS and WSL.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from native.elf import soname
from native.nvml.errors import LibraryUnavailableError, NvmlReturn

logger = logging.getLogger(__name__)

NVML_LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/lib",
    "/usr/lib/wsl/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/usr/local/nvidia/lib64",
    "/opt/lib64",
    "/",
)
BINARY_FOLDERS = (
    "/opt/bin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/home/kubernetes/bin/nvidia/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
)
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_SUBFOLDERS = ("", "vdpau", "nvidia", "gbm")
_MAX_LINKS = 40


class _Miss(msgspec.Struct, frozen=True):
    """A path that was tried, and why it is not the file."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


def resolve_in_root(root: Path, path: str) -> Path:
    """The real file behind ``path`` (absolute as seen from inside ``root``), with links resolved inside the root.

    The result need not exist (its parent then may not either); whoever opens it finds out.

    Raises:
        OSError: a link cannot be read, or links go round in circles (ELOOP).
    """
    pending = list(reversed(PurePosixPath(path).parts))
    inside: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in ("/", "."):
            inside = [] if part == "/" else inside
            continue
        if part == "..":
            inside = inside[:-1]
            continue
        here = root.joinpath(*inside, part)
        if not here.is_symlink():
            inside.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root.joinpath(path.lstrip("/"))))
        pending.extend(reversed(here.readlink().parts))
    return root.joinpath(*inside)


def _check(root: Path, path: str) -> Path | _Miss:
    """The real regular file at ``path`` below the root, or why there is none."""
    shown = str(root.joinpath(path.lstrip("/")))
    try:
        real = resolve_in_root(root, path)
        mode = real.stat().st_mode
    except OSError as error:
        dangling = error.errno == errno.ENOENT and root.joinpath(path.lstrip("/")).is_symlink()
        return _Miss(shown, "a link to nothing" if dangling else (error.strerror or str(error)))
    if stat.S_ISREG(mode):
        return real
    return _Miss(shown, "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file")


def _search(root: Path, folders: Sequence[str], name: str) -> Path | list[_Miss]:
    misses = []
    for folder in folders:
        found = _check(root, f"{folder.rstrip('/')}/{name}")
        if isinstance(found, Path):
            return found
        misses.append(found)
    return misses


def find_library(root: Path | str = "/") -> Path:
    """The real file of libnvidia-ml.so.1 below a driver root.

    Raises:
        LibraryUnavailableError: LIBRARY_NOT_FOUND (12); the message lists every path tried and why it was not taken.
    """
    root = Path(root)
    found = _search(root, LIBRARY_FOLDERS, NVML_LIBRARY)
    if isinstance(found, Path):
        return found
    message = (
        f"no {NVML_LIBRARY} below the driver root {root}; install the NVIDIA driver there or set the driver root to "
        f"where it is. Tried: {', '.join(map(str, found))}"
    )
    raise LibraryUnavailableError("find_library", NvmlReturn.LIBRARY_NOT_FOUND, message)


def find_binary(root: Path | str, name: str = "nvidia-smi") -> Path:
    """The real file of one of the driver's programs below a driver root.

    Raises:
        FileNotFoundError: the message lists every path tried and why it was not taken.
    """
    root = Path(root)
    found = _search(root, BINARY_FOLDERS, name)
    if isinstance(found, Path):
        return found
    raise FileNotFoundError(
        errno.ENOENT,
        f"no {name} below the driver root {root}; set the driver root to where the NVIDIA driver is. "
        f"Tried: {', '.join(map(str, found))}",
    )


def driver_libraries(root: Path | str, version: str) -> tuple[tuple[str, str], ...]:
    """The driver's libraries of one version: those that nvidia-container-toolkit mounts, named ``lib*.so.<version>``.

    Args:
        root: the driver root as this process sees it.
        version: the driver's version as NVML prints it ("580.105.08").

    Returns:
        (real file as seen from inside the root, default path in the container) sorted by the latter. In the container
        a library stands under its SONAME, in the folder where it was found: programs find it without ldconfig.

    Raises:
        ValueError: ``version`` cannot be the end of a file's name.
    """
    if not version or "/" in version:
        raise ValueError(f"{version!r} is not a driver version (expected for example 580.105.08)")
    root = Path(root)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for folder, sub, real_folder in _library_folders(root):
        for name in _names(real_folder, f".so.{version}"):
            real = _check(root, f"{folder}/{name}")
            if isinstance(real, Path) and (sub, name) not in found:
                found[sub, name] = _inside(root, real), f"{folder}/{soname(real) or name}"
    return tuple(sorted(found.values(), key=lambda pair: pair[1]))


def driver_binaries(root: Path | str) -> tuple[tuple[str, str], ...]:
    """The driver's programs that are there, as (real file as seen from inside the root, path in the container)."""
    root = Path(root)
    found = ((name, _search(root, BINARY_FOLDERS, name)) for name in BINARIES)
    return tuple((_inside(root, real), f"/usr/bin/{name}") for name, real in found if isinstance(real, Path))


def _library_folders(root: Path) -> Iterator[tuple[str, str, Path]]:
    """(path, its part below the library folder, real folder), each real one once: /lib64 is often /usr/lib64."""
    seen: set[Path] = set()
    for folder in LIBRARY_FOLDERS:
        for sub in _SUBFOLDERS:
            path = f"{folder.rstrip('/')}/{sub}".rstrip("/")
            try:
                real = resolve_in_root(root, path or "/")
            except OSError as error:
                logger.warning("%s%s is left out of the search for the driver's libraries: %s", root, path, error)
                continue
            if real not in seen and real.is_dir():
                seen.add(real)
                yield path, sub, real


def _names(folder: Path, ending: str) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.name.startswith("lib") and entry.name.endswith(ending)
    )


def _inside(root: Path, real: Path) -> str:
    return f"/{real.relative_to(root)}"
