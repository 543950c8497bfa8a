"""Agents whose calls that change files can be failed (``preload.py``), and what is asked of what they say then."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driver.prepare.checkpoint import stored
from kubeletplugin.devicemetadata import KNOWN_VERSIONS
from tests.support.agents import DRIVER, Scene, open_scene
from tests.support.preload import CHANGES, GROWS, Control, Kind

PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
SLICED = {**PARAMETERS, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
MPS = {**PARAMETERS, "sharing": {"strategy": "MPS"}}
REMEDY = re.compile(r"free space|mount|write access|check the disk")
"""What is to be done about a file that cannot be written."""


@dataclass(frozen=True)
class Fault:
    """One way in which calls fail."""

    name: str
    code: int
    kinds: Kind
    torn: bool = False

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault("disk full", errno.ENOSPC, GROWS),
    Fault("cut in two by a full disk", errno.ENOSPC, Kind.WRITE, torn=True),
    Fault("read-only", errno.EROFS, CHANGES),
    Fault("no permission", errno.EACCES, Kind.OPEN | Kind.NAME | Kind.MODE | Kind.REMOVE | Kind.BIND),
    Fault("broken disk", errno.EIO, Kind.WRITE | Kind.SYNC),
)


class Watched:
    """A scene whose agent's calls can be failed."""

    def __init__(self, scene: Scene, control: Control) -> None:
        self.scene = scene
        self.control = control
        self.names = 0

    def start(self, **flags: object) -> None:
        scene = self.scene
        usual = {
            "mig": "dynamic",
            "mps_dir": scene.folder / "mps",
            "metadata_versions": KNOWN_VERSIONS[0],
            "health_seconds": 0.2,
            "health_recovery_seconds": 0.3,
        }
        scene.start(**{**usual, **flags})

    def run(self, **flags: object) -> None:
        """Start, and wait until the node has been read."""
        self.start(**flags)
        self.scene.registered()
        self.scene.until(self.scene.devices, "devices")

    def run_and_watch(self) -> None:
        """The same, and until events are heard."""
        watched = len(self.scene.logged("the GPUs' events are watched"))
        self.run()
        self.scene.until(lambda: len(self.scene.logged("the GPUs' events are watched")) > watched, "events")

    def claim(self, name: str, index: int = 0, config: object = None, suffix: str = "") -> str:
        """A claim of a GPU, or of the partition whose name ends so, as a scheduler would allocate it."""
        scene = self.scene
        gpus = [one["name"] for one in scene.devices() if "-mig-" not in one["name"]]
        devices = [one["name"] for one in scene.devices() if one["name"].startswith(gpus[index])]
        device = next(one for one in devices if one.endswith(suffix)) if suffix else gpus[index]
        self.names += 1
        full = f"{name}-{self.names}"
        scene.give(full, device, config)
        return full

    def end_claims(self) -> None:
        """Unprepare all but the one that is held."""
        self.control.mend()
        for ref in self.scene.kubelet.prepared_claims():
            if not ref.name.startswith("held-"):
                self.scene.unprepare(ref.name)

    def left(self) -> dict[str, bytes]:
        """What there is for claims, with its content: records, CDI files, metadata, and what daemons have."""
        scene = self.scene
        state = stored(scene.plugins / DRIVER / "gpudra")
        found = {uid: record.phase.encode() for uid, record in (state.records if state else {}).items()}
        for folder in (scene.cdi, scene.plugins / DRIVER / "dra-device-metadata", scene.folder / "mps" / DRIVER):
            for path in sorted(folder.rglob("*")):
                found[str(path)] = path.read_bytes() if path.is_file() and "mps" not in path.parts else b""
        return found


@contextmanager
def a_watched(under: Path | None = None) -> Iterator[Watched]:
    base = Path(tempfile.mkdtemp(prefix="w"))  # sockets of MPS daemons lie deep in it
    inside = base / "s"
    inside.mkdir()
    try:
        with open_scene(inside, "h100-nvl") as scene:
            scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
            control = Control(base, under or inside)
            scene.environment = {**control.environment, "PYTHONDONTWRITEBYTECODE": "1"}
            yield Watched(scene, control)
            control.mend()
    finally:
        shutil.rmtree(base, ignore_errors=True)
