"""What every container with a GPU gets beside device nodes: the driver's libraries, programs and settings.

Two sources. Where the host has a spec made by ``nvidia-ctk cdi generate``, its common edits are taken: they follow what
NVIDIA's own tool knows of this driver. Else the libraries and programs found below the driver root are mounted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from driver.model import DriverFiles, Problem
from driver.prepare import ctkspec
from driver.prepare.cdi import CdiHook, CdiMount, ContainerEdits
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.hostpaths import DriverRoot

WELL_KNOWN_SPECS = tuple(
    f"{folder}/nvidia.{form}" for folder in ("etc/cdi", "var/run/cdi", "run/cdi") for form in ("json", "yaml")
)
"""Below the driver root, in the order in which they are looked for. /var/run is a link to /run, and an absolute link
leads out of a root that is mounted elsewhere: both are looked at."""
MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
DEFAULT_HOOK = "/usr/bin/nvidia-cdi-hook"

_LIBRARY = re.compile(r"\.so(?:\.[0-9]+)*\Z")
_Value = TypeVar("_Value")


class CommonEdits(msgspec.Struct, frozen=True):
    """The edits, where they come from, and what is not quite right about them."""

    edits: ContainerEdits
    source: str
    problems: tuple[Problem, ...] = ()


class EditsSource(Protocol):
    """Gives the edits that all containers with a GPU share."""

    def common(self, driver_version: str | None) -> CommonEdits:
        """The edits for the driver that is loaded.

        Raises:
            ClaimError: retryable; says which file is missing or wrong and what makes it.
        """


class HostEdits:
    """An ``EditsSource``: the host's nvidia-ctk spec if there is one, else the driver's own files.

    Args:
        root: the driver root.
        driver_files: finds libraries and programs for a driver version below the root (paths as this process, the
            host, or the root itself sees them).
        spec_path: the nvidia-ctk spec, as this process sees it; None looks at the well-known places below the root.
        hook_path: nvidia-cdi-hook on the host; used by the second source only, and only where it is there.
    """

    def __init__(
        self,
        root: DriverRoot,
        driver_files: Callable[[str], DriverFiles],
        *,
        spec_path: Path | None = None,
        hook_path: str = DEFAULT_HOOK,
    ) -> None:
        self._root = root
        self._driver_files = driver_files
        self._spec_path = spec_path
        self._hook_path = hook_path
        self._cache = _LastValue[CommonEdits]()

    def common(self, driver_version: str | None) -> CommonEdits:
        """The edits; made anew when the spec file or the driver version changes."""
        spec = self._find_spec()
        if spec is None:
            key: tuple[object, ...] = (None, driver_version)
            return self._cache.get(key, lambda: self._native(driver_version))
        try:
            status = spec.stat()
        except OSError as error:
            raise _not_ready(f"the CDI spec {spec} cannot be read: {error.strerror}") from error
        key = (str(spec), status.st_mtime_ns, status.st_size, status.st_ino, driver_version)
        return self._cache.get(key, lambda: self._from_spec(spec))

    def _find_spec(self) -> Path | None:
        if self._spec_path is not None:
            return self._spec_path
        candidates = (self._root.here / name for name in WELL_KNOWN_SPECS)
        return next((path for path in candidates if path.is_file()), None)

    def _from_spec(self, spec: Path) -> CommonEdits:
        try:
            edits, notes = ctkspec.read_common_edits(spec, self._root)
        except ctkspec.SpecError as error:
            raise _not_ready(
                f"the CDI spec {spec} cannot be used: {error}; make it again with `nvidia-ctk cdi generate "
                f"--output={self._root.to_host(str(spec))}`, or remove it"
            ) from error
        mounts, problems = self._existing(spec, edits.mounts)
        problems = [*(Problem(str(spec), note) for note in notes), *problems]
        kept = ContainerEdits(edits.env, edits.device_nodes, mounts, edits.hooks, edits.additional_gids)
        return CommonEdits(kept, str(spec), tuple(problems))

    def _existing(self, spec: Path, mounts: Sequence[CdiMount]) -> tuple[tuple[CdiMount, ...], list[Problem]]:
        """The mounts whose source is there. A container with a mount of nothing does not start."""
        kept: list[CdiMount] = []
        problems: list[Problem] = []
        for mount in mounts:
            here = self._root.to_here(mount.host_path)
            if here is None or here.exists():
                kept.append(mount)
            elif _LIBRARY.search(mount.host_path):
                raise _not_ready(
                    f"the CDI spec {spec} names {mount.host_path}, which does not exist (was the driver upgraded?); "
                    f"make the spec again with `nvidia-ctk cdi generate --output={self._root.to_host(str(spec))}`"
                )
            else:
                problems.append(Problem(str(spec), f"names {mount.host_path}, which does not exist: left out"))
        return tuple(kept), problems

    def _native(self, driver_version: str | None) -> CommonEdits:
        if driver_version is None:
            raise _not_ready("the version of the NVIDIA driver is not known, so its libraries cannot be found")
        try:
            found = self._driver_files(driver_version)
        except (OSError, ValueError) as error:
            raise _not_ready(f"the libraries of the NVIDIA driver {driver_version} cannot be found: {error}") from error
        if not found.libraries:
            raise _not_ready(
                f"no libraries of the NVIDIA driver {driver_version} are below the driver root {self._root.host}; "
                "check that the driver root is set to where the driver is installed"
            )
        mounts: dict[str, CdiMount] = {}
        for source, target in (*found.libraries, *found.binaries):
            mounts.setdefault(target, CdiMount(self._root.to_host(source), target, MOUNT_OPTIONS))
        folders = sorted({target.rpartition("/")[0] for _, target in found.libraries})
        edits = ContainerEdits(mounts=tuple(mounts.values()), hooks=self._hooks(folders))
        return CommonEdits(edits, f"driver files below {self._root.host}")

    def _hooks(self, folders: Sequence[str]) -> tuple[CdiHook, ...]:
        """Let the container's linker cache know the libraries; without the hook LD_LIBRARY_PATH must do."""
        here = self._root.to_here(self._hook_path)
        if here is None or not here.is_file():
            return ()
        arguments = ("nvidia-cdi-hook", "update-ldcache", *(f"--folder={folder}" for folder in folders))
        return (CdiHook("createContainer", self._root.to_host(self._hook_path), arguments),)


class _LastValue(Generic[_Value]):
    """Keeps the value of the last key. A failure is not kept: it is looked at again the next time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[object, ...], _Value] | None = None

    def get(self, key: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        with self._lock:
            if self._kept is None or self._kept[0] != key:
                self._kept = (key, make())
            return self._kept[1]


def _not_ready(message: str) -> ClaimError:
    return ClaimError(message, Reason.DRIVER_NOT_READY)
