"""Paths of the driver's files as this process sees them, and as the host's container runtime will."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec

_ROOT = PurePosixPath("/")


class DriverRoot(msgspec.Struct, frozen=True):
    """The folder under which NVIDIA's user-space driver lies.

    In a pod the host's root is mounted at, say, /driver-root, while the runtime on the host knows it as / (or as
    /run/nvidia/driver where a driver container holds it).
    """

    here: Path = Path("/")
    """As this process sees it."""
    host: PurePosixPath = _ROOT
    """As the host sees it."""

    def to_host(self, path: str) -> str:
        """A path of the driver's as the runtime must be given it.

        Understood are paths as this process sees them, as the host sees them, and as seen from inside the root (where
        the file is there).
        """
        pure = PurePosixPath(path)
        if str(self.here) != "/" and pure.is_relative_to(self.here):
            return str(self.host / pure.relative_to(self.here))
        if pure.is_relative_to(self.host) and str(self.host) != "/":
            return path
        if str(self.host) != "/" and (self.here / path.lstrip("/")).exists():
            return str(self.host / path.lstrip("/"))
        return path

    def to_here(self, host_path: str) -> Path | None:
        """Where this process finds a path of the host; None where it lies outside of what is mounted here."""
        pure = PurePosixPath(host_path)
        if not pure.is_relative_to(self.host):
            return None
        return self.here / pure.relative_to(self.host)
