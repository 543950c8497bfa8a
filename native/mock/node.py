"""``MockNode``: a GPU node in a folder, and the handle that changes it while processes use it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from native.mock import build, profile, profiles, tree
from native.mock.nodefile import NodeFile
from native.mock.profile import Failure, Profile

_STATES: Final = {"ok": 0, "lost": 1}


class MockNode:
    """A mock node below ``root``: its library, sys, proc, dev, nvidia-smi and the node file that all of them share.

    Every setter acts at once on every process that has the library loaded, containers included.
    """

    def __init__(self, root: Path, node_profile: Profile) -> None:
        self._root = root
        self._profile = node_profile
        self._file = NodeFile(root / tree.NODE_FILE, [gpu.address for gpu in node_profile.gpus])

    @classmethod
    def create(cls, root: Path, profile: str | Path = profiles.DEFAULT) -> MockNode:
        """Make a node below ``root``, which must not exist or be empty.

        Args:
            root: folder of the node.
            profile: a name of ``profiles.names()`` or the path of a YAML file.

        Raises:
            FileExistsError: ``root`` holds something.
            FileNotFoundError: there is no such profile.
            ProfileError: the profile is wrong; names the field.
            BuildError: no C compiler, or it failed.
        """
        text = profiles.text(profile)
        node_profile = profiles.load(profile)
        root = Path(root).resolve()
        if root.exists() and any(root.iterdir()):
            raise FileExistsError(f"{root} is not empty: remove it, or open the node in it with MockNode.open")
        built = build.build(node_profile.absent)
        root.mkdir(parents=True, exist_ok=True)
        try:
            tree.write(root, node_profile, text, built)
        except BaseException:  # a full disk, or Ctrl-C: half a node would only be in the way of the next attempt
            shutil.rmtree(root, ignore_errors=True)
            raise
        return cls(root, node_profile)

    @classmethod
    def open(cls, root: Path) -> MockNode:
        """The node that ``create`` made below ``root``, in this process or another.

        Raises:
            FileNotFoundError: there is none.
        """
        root = Path(root).resolve()
        path = root / tree.PROFILE_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{root} holds no mock node (no {tree.PROFILE_FILE})")
        return cls(root, profile.load(path))

    @property
    def root(self) -> Path:
        """The driver root, as an absolute path; also holds sys, proc and dev."""
        return self._root

    @property
    def profile(self) -> Profile:
        """What the node is."""
        return self._profile

    @property
    def library(self) -> Path:
        """The look-alike: ``.../libnvidia-ml.so.1``, a link to the file of the driver's version."""
        return self._root / tree.library_folder(self._profile) / "libnvidia-ml.so.1"

    @property
    def smi(self) -> Path:
        """The mock ``nvidia-smi``, a static program."""
        return self._root / "usr/bin/nvidia-smi"

    @property
    def environment(self) -> dict[str, str]:
        """What a process on the host must have in its environment to use the library or ``nvidia-smi``."""
        return {"GPUDRA_MOCK_NODE": str(self._root / tree.NODE_FILE), "GPUDRA_MOCK_DEV": str(self._root / "dev")}

    def activate(self) -> None:
        """Put ``environment`` into this process; a library that is initialised afterwards shows this node."""
        os.environ.update(self.environment)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Unload or load the kernel driver: without it init and all calls return DRIVER_NOT_LOADED."""
        self._file.set_driver_loaded(loaded)

    def set_gpu_state(self, address: str, state: str) -> None:
        """Make one GPU ``lost`` (calls about it return GPU_IS_LOST) or ``ok`` again.

        Raises:
            ValueError: no such GPU, or no such state.
        """
        if state not in _STATES:
            raise ValueError(f"{state!r} is no state of a GPU (one of {', '.join(_STATES)})")
        self._file.set_number(address, "state", _STATES[state])

    def set_failures(self, failures: Iterable[Failure]) -> None:
        """Replace the functions that fail, those of the profile included; an empty list makes the node healthy.

        Raises:
            ValueError: too many, or one names a GPU that the node does not have.
        """
        self._file.set_rules(failures)

    def set_number(self, address: str, field: str, value: int) -> None:
        """Set a number of a GPU: a field of ``native.mock.layout.GPU``, in NVML's units; -1 is not supported.

        Raises:
            ValueError: no such GPU.
            KeyError: no such field.
        """
        self._file.set_number(address, field, value)

    def remove(self) -> None:
        """Delete the node's folder. Processes that have the library loaded keep what they mapped."""
        shutil.rmtree(self._root)
