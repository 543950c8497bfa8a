"""``MockNode``: a GPU node in a folder, and the handle that changes it while processes use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from native.mock import build, control, hotplug, profile, profiles, tree, upgrade
from native.mock.control import EVENT_TYPES, GpuInstance, NodeFile, Process
from native.mock.kernel import MockKernel
from native.mock.layout import Text
from native.mock.profile import Failure, Profile
from native.pci import canonical_address

_STATES: Final = {"ok": 0, "lost": 1, "unplugged": 2, "silent": 3}
_HOW_LONG_SMI_MAY_TAKE: Final = 60.0


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
    def mps_control(self) -> Path:
        """The mock ``nvidia-cuda-mps-control``, a static program."""
        return self._root / "usr/bin/nvidia-cuda-mps-control"

    @property
    def kernel(self) -> MockKernel:
        """What writes to the node's sysfs do; whoever writes there is given its ``write``."""
        return MockKernel(self._root, self._profile, self._file)

    @property
    def environment(self) -> dict[str, str]:
        """What a process on the host must have in its environment to use the library or ``nvidia-smi``."""
        return {"GPUDRA_MOCK_NODE": str(self._root / tree.NODE_FILE), "GPUDRA_MOCK_DEV": str(self._root / "dev")}

    def activate(self) -> None:
        """Put ``environment`` into this process; a library that is initialised afterwards shows this node."""
        os.environ.update(self.environment)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Unload or load the kernel driver: without it init and all calls return DRIVER_NOT_LOADED."""
        self._file.set_header("driver_loaded", int(loaded))

    def reload_driver(self) -> None:
        """Unload and load the kernel driver.

        Sessions from before get DRIVER_NOT_LOADED until they begin anew, and all MIG instances are gone. MIG mode stays
        on A100 and A30, which keep it in their inforom; since Hopper it is off again (NVIDIA MIG user guide).
        Compute mode and time slice are the driver's own again, and pages that waited to be retired are out of use
        (NVIDIA, "Dynamic Page Retirement").
        """
        self.set_driver_loaded(False)
        self._file.set_header("driver_generation", self._file.header("driver_generation") + 1)
        for gpu in self._profile.gpus:
            self._file.forget_instances(gpu.address)
            for name in ("compute_mode", "timeslice"):
                self._file.set_number(gpu.address, name, gpu.numbers.get(name, 0))
            if self._file.number(gpu.address, "retired_pending") > 0:
                self._file.set_number(gpu.address, "retired_pending", 0)
            if gpu.mig is not None and self._file.number(gpu.address, "mig_reset") == 0:
                self._file.set_number(gpu.address, "mig_current", 0)
                self._file.set_number(gpu.address, "mig_pending", 0)
        tree.clear_capabilities(self._root, self._profile)
        self.set_driver_loaded(True)

    def reboot(self) -> None:
        """The machine starts anew: another boot id, a driver that was just loaded, no processes on the GPUs.

        A GPU that was lost or silent works again; one that is unplugged stays out. What the host has in memory (its
        /run, daemons) is not the mock's: whoever imitates a reboot ends and empties that.
        """
        self.set_driver_loaded(False)
        for gpu in self._profile.gpus:
            self.set_processes(gpu.address, ())
            if self._file.number(gpu.address, "state") != _STATES["unplugged"]:
                self.set_gpu_state(gpu.address, "ok")
        tree.write_boot_id(self._root / "proc")
        self.reload_driver()

    def upgrade_driver(self, version: str, *, specification: bool = True) -> None:
        """Another version of the driver: the module is unloaded, its files are replaced, the new one is loaded.

        Args:
            version: as NVIDIA writes it, 580.126.09.
            specification: run ``nvidia-ctk cdi generate`` behind it; without it the specification of the version before
                stays, which names libraries that are no more (``write_specification`` is that run alone).

        Raises:
            ValueError: ``version`` is none, or is installed already.
            BuildError: no C compiler, or it failed.
        """
        self.set_driver_loaded(False)
        try:
            self._profile = upgrade.install(self._root, self._profile, version)
            for field in ("driver_version", "nvml_version"):
                self.set_text(None, field, getattr(self._profile, field))
            if specification:
                self.write_specification()
        except BaseException:
            self.set_driver_loaded(True)
            raise
        self.reload_driver()

    def write_specification(self) -> None:
        """Run ``nvidia-ctk cdi generate``."""
        tree.write_cdi_spec(self._root, self._profile)

    def set_version_mismatch(self, mismatch: bool) -> None:
        """Library and kernel module of different versions, as in the middle of an upgrade: LIB_RM_VERSION_MISMATCH."""
        self._file.set_header("version_mismatch", int(mismatch))

    def set_gpu_state(self, address: str, state: str) -> None:
        """The state of one GPU.

        ``ok``; ``lost`` (calls about it return GPU_IS_LOST); ``unplugged`` (lost, and new sessions do not count it);
        ``silent`` (calls about it do not come back until the state changes).

        Raises:
            ValueError: no such GPU, or no such state.
        """
        if state not in _STATES:
            raise ValueError(f"{state!r} is no state of a GPU (one of {', '.join(_STATES)})")
        self._file.set_number(address, "state", _STATES[state])

    def unplug(self, address: str, *, first: str = "nvml") -> None:
        """Take a GPU out. What notices ``first``: ``nvml`` (surprise removal) or ``sysfs`` (nvidia-smi drain).

        For a moment in between, use ``set_gpu_state(address, "unplugged")`` and ``hide(address)`` one by one.

        Raises:
            ValueError: no such GPU, or neither of the two.
            FileNotFoundError: it is out already.
        """
        if first not in ("nvml", "sysfs"):
            raise ValueError(f"first is {first!r}, not nvml or sysfs")
        self._file.number(address, "state")
        if first == "sysfs":
            self.hide(address)
        self.set_gpu_state(address, "unplugged")
        if first == "nvml":
            self.hide(address)

    def plug(self, address: str, *, first: str = "sysfs") -> None:
        """Put a GPU in again. Handles from before stay lost: only a session that begins later knows it.

        Raises:
            ValueError: no such GPU, or ``first`` is neither ``nvml`` nor ``sysfs``.
            FileNotFoundError: it is in already.
        """
        if first not in ("nvml", "sysfs"):
            raise ValueError(f"first is {first!r}, not nvml or sysfs")
        plugged = self._file.number(address, "plugged") + 1
        if first == "sysfs":
            self.show(address)
        self._file.set_number(address, "plugged", plugged)
        self.set_gpu_state(address, "ok")
        if first == "nvml":
            self.show(address)

    def hide(self, address: str) -> None:
        """Take a GPU's files out of sys, proc and dev.

        Raises:
            FileNotFoundError: they are out already.
        """
        hotplug.take_away(self._root, self._profile, canonical_address(address))

    def show(self, address: str) -> None:
        """Put a GPU's files back into sys, proc and dev.

        Raises:
            FileNotFoundError: they were not taken out.
        """
        hotplug.put_back(self._root, canonical_address(address))

    def set_failures(self, failures: Iterable[Failure]) -> None:
        """Replace the functions that fail, those of the profile included; an empty list makes the node healthy.

        Raises:
            ValueError: too many, or one names a GPU that the node does not have.
        """
        self._file.set_rules(failures)

    def failures(self) -> list[Failure]:
        """The failures that stand, in the order they are tried; ``seconds`` is what is left of them."""
        return self._file.rules()

    @staticmethod
    def numbers() -> list[str]:
        """The names that ``set_number`` takes."""
        return sorted(control.NUMBERS)

    def set_number(self, address: str, field: str, value: int) -> None:
        """Set a number of a GPU: a field of ``native.mock.layout.GPU``, in NVML's units; -1 is not supported.

        Raises:
            ValueError: no such GPU.
            KeyError: no such field.
        """
        self._file.set_number(address, field, value)

    def number(self, address: str, field: str) -> int:
        """A number of a GPU, as ``set_number`` takes it.

        Raises:
            ValueError: no such GPU.
            KeyError: no such field.
        """
        return self._file.number(address, field)

    def set_text(self, address: str | None, field: str, text: str | Text) -> None:
        """Set a text of a GPU (``name``, ``uuid``, ``serial``, ...) or, without an address, of the node.

        ``Text(b"\\xff", unterminated=True)`` is a getter that fills the whole buffer with foreign bytes and no NUL.

        Raises:
            ValueError: no such GPU, or more than 120 bytes.
            KeyError: no such field.
        """
        self._file.set_text(address, field, text if isinstance(text, Text) else Text(text.encode()))

    def xid(self, address: str, code: int, *, gi: int | None = None, ci: int | None = None) -> None:
        """Report an XID. Without ids it is about the whole GPU: gi = ci = 0xFFFFFFFF, as most are on hardware.

        Raises:
            ValueError: no such GPU.
        """
        self.event(address, "xid", code, gi=gi, ci=ci)

    def event(self, address: str, kind: str, data: int = 0, *, gi: int | None = None, ci: int | None = None) -> None:
        """Let an event happen: a name of ``native.mock.control.EVENT_TYPES``.

        Raises:
            ValueError: no such GPU, or no such event.
        """
        if kind not in EVENT_TYPES:
            raise ValueError(f"{kind!r} is no event (one of {', '.join(EVENT_TYPES)})")
        self._file.add_event(address, EVENT_TYPES[kind], data, gi, ci)

    def ecc(self, address: str, *, single: int = 0, double: int = 0) -> None:
        """Count ECC errors, since boot and for ever, and report each kind once.

        Raises:
            ValueError: no such GPU, or its ECC is off.
        """
        if self._file.number(address, "ecc_single") < 0:
            raise ValueError(f"{address} counts no ECC errors: it has no ECC, or it is off")
        for kind, count in (("single", single), ("double", double)):
            for field in (f"ecc_{kind}", f"ecc_{kind}_total") if count else ():
                self._file.set_number(address, field, self._file.number(address, field) + count)
            if count:
                self.event(address, f"{kind}-bit-ecc")

    def set_processes(self, address: str, processes: Iterable[Process]) -> None:
        """Replace the processes that use a GPU or its MIG instances; while there is one, these are in use.

        Raises:
            ValueError: no such GPU, too many, or a name of more than 64 bytes.
            KeyError: no such kind of process.
        """
        self._file.set_processes(address, processes)

    def instances(self, address: str) -> list[GpuInstance]:
        """The MIG instances that stand on a GPU, whoever made them.

        Raises:
            ValueError: no such GPU.
        """
        return self._file.instances(address)

    def nvidia_smi(self, *arguments: str) -> str:
        """Run the node's ``nvidia-smi``; gives what it printed.

        Raises:
            subprocess.CalledProcessError: it failed; holds what it said.
        """
        command = [str(self.smi), *arguments]
        environment = {**self.environment, "GPUDRA_MOCK_QUIET": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=_HOW_LONG_SMI_MAY_TAKE
        )
        return done.stdout

    def remove(self) -> None:
        """Delete the node's folder. Processes that have the library loaded keep what they mapped."""
        shutil.rmtree(self._root)
