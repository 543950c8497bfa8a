"""A GPU -> the device nodes that a container needs for it, looked up on the host at this moment.

Nodes are named by path. Their major numbers are given out by the kernel when a module is loaded and change with the
next load, so they are neither stored nor written: the runtime looks at the host's file when it makes the container's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from driver.model import Gpu
from driver.prepare.cdi import CdiDeviceNode
from driver.prepare.errors import ClaimError, Reason

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Without these no CUDA program runs."""
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Profilers and display need these; not every node has them."""


class NodeStatus(Protocol):
    """What stands at a device path (``native.devnodes.DeviceNodeStatus`` is one)."""

    @property
    def kind(self) -> str:
        """``character device``, ``block device``, ``folder``, ``regular file`` or ``special file``."""


class DeviceNodeReader(Protocol):
    """Looks up device nodes below the device root."""

    def __call__(self, path: str, /) -> NodeStatus | None:
        """What stands at ``path`` (as in the device root: "/dev/nvidia0"); None if nothing does.

        Raises:
            OSError: it is there but cannot be looked at.
        """


class CapabilityReader(Protocol):
    """Looks up by which node the kernel lets programs at a MIG instance (``native.capabilities`` does)."""

    def __call__(self, gpu_minor: int, gpu_instance: int, compute_instance: int | None, /) -> int | None:
        """N of /dev/nvidia-caps/nvidia-capN of the compute instance, or with None of the GPU instance; None: there is
        no such instance.

        Raises:
            OSError: it cannot be looked up.
            ValueError: what is there is no answer.
        """


def no_capabilities(gpu_minor: int, gpu_instance: int, compute_instance: int | None) -> None:
    """A kernel without MIG instances."""


class DeviceNodes:
    """Gives CDI device nodes and says what is missing.

    Args:
        reader: looks below the device root as this process sees it.
        host_root: where that device root stands on the host ("/" or for example "/run/nvidia/driver").
        require_devices: False on a mock node, where making device nodes needs a right that a user does not have and
            plain files stand for them.
        capabilities: looks up the nodes of MIG instances.
        make_capability: makes the N-th of those nodes where nobody has; OSError: it cannot.
    """

    def __init__(
        self,
        reader: DeviceNodeReader,
        host_root: str = "/",
        *,
        require_devices: bool = True,
        capabilities: CapabilityReader = no_capabilities,
        make_capability: Callable[[int], None] | None = None,
    ) -> None:
        self._reader = reader
        self._capabilities = capabilities
        self._make_capability = make_capability
        self._host_root = host_root.rstrip("/")
        self._require_devices = require_devices

    def control(self) -> tuple[CdiDeviceNode, ...]:
        """The nodes that every container with a GPU gets.

        Raises:
            ClaimError: retryable; names the node that is missing and what makes it.
        """
        needed = [self._needed(path, "nvidia-modprobe -u -c=0") for path in CONTROL_NODES]
        present = [self._node(path) for path in OPTIONAL_NODES if self._is_device(self._look(path))]
        return (*needed, *present)

    def of_gpu(self, gpu: Gpu) -> tuple[CdiDeviceNode, ...]:
        """The nodes of one GPU alone: /dev/nvidiaN, and its DRM nodes where it has any.

        Raises:
            ClaimError: retryable; as ``control``.
        """
        return (self._of_minor(_minor(gpu)), *self._drm(gpu))

    def of_partition(
        self, gpu: Gpu, gpu_instance: int, compute_instance: int, *, graphics: bool = False
    ) -> tuple[CdiDeviceNode, ...]:
        """The nodes of one MIG device alone: its GPU's, and those that open its GPU instance and its compute instance.

        A program sees only those MIG devices of a GPU whose capability nodes it may open.

        Args:
            gpu: the GPU that it is a part of.
            gpu_instance: its id.
            compute_instance: its id within the GPU instance.
            graphics: with the GPU's DRM nodes, which other profiles have no use for.

        Raises:
            ClaimError: retryable; as ``control``, and where the kernel knows no such instance.
        """
        minor = _minor(gpu)
        capabilities = [
            self._capability(gpu, minor, gpu_instance, None),
            self._capability(gpu, minor, gpu_instance, compute_instance),
        ]
        return (self._of_minor(minor), *capabilities, *(self._drm(gpu) if graphics else ()))

    def has_instance(self, gpu: Gpu, gpu_instance: int, compute_instance: int) -> bool:
        """Whether the kernel knows these instances."""
        if gpu.minor is None:
            return False
        try:
            return self._capabilities(gpu.minor, gpu_instance, compute_instance) is not None
        except (OSError, ValueError):
            return False

    def _of_minor(self, minor: int) -> CdiDeviceNode:
        return self._needed(f"/dev/nvidia{minor}", f"nvidia-modprobe -c={minor}")

    def _drm(self, gpu: Gpu) -> tuple[CdiDeviceNode, ...]:
        paths = [f"/dev/dri/{name}" for name in gpu.drm_nodes]
        return tuple(self._node(path) for path in paths if self._is_device(self._look(path)))

    def _capability(self, gpu: Gpu, minor: int, gpu_instance: int, compute_instance: int | None) -> CdiDeviceNode:
        inner = "" if compute_instance is None else f"/ci{compute_instance}"
        access = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}{inner}/access"
        try:
            number = self._capabilities(minor, gpu_instance, compute_instance)
        except (OSError, ValueError) as error:
            raise ClaimError(
                f"cannot read {access}: {error}; check that the host's /proc is visible to the agent",
                Reason.DEVICE_NOT_READY,
            ) from error
        if number is None:
            raise ClaimError(
                f"the kernel has no {access}: the partition of GPU {gpu.name} was destroyed, or the host's /proc is "
                "not the one that the agent sees",
                Reason.DEVICE_NOT_READY,
            )
        path = f"/dev/nvidia-caps/nvidia-cap{number}"
        if self._make_capability is not None and self._look(path) is None:
            try:
                self._make_capability(number)
            except OSError as error:
                raise ClaimError(
                    f"device node {self._host_root}{path} does not exist and cannot be made: {error}; run "
                    f"`nvidia-modprobe -f {access}` on the host",
                    Reason.DEVICE_NOT_READY,
                ) from error
        return self._needed(path, f"nvidia-modprobe -f {access}")

    def _needed(self, path: str, remedy: str) -> CdiDeviceNode:
        status = self._look(path)
        if status is None:
            raise ClaimError(
                f"device node {self._host_root}{path} does not exist; run `{remedy}` or `nvidia-smi` on the host, "
                "which create it, or enable nvidia-persistenced",
                Reason.DEVICE_NOT_READY,
            )
        if not self._is_device(status):
            raise ClaimError(
                f"{self._host_root}{path} is a {status.kind}, not a character device; remove it and run `{remedy}` on "
                "the host",
                Reason.DEVICE_NOT_READY,
            )
        return self._node(path)

    def _look(self, path: str) -> NodeStatus | None:
        try:
            return self._reader(path)
        except OSError as error:
            raise ClaimError(
                f"cannot look at device node {self._host_root}{path}: {error.strerror}; check that the device root is "
                "mounted into the agent",
                Reason.DEVICE_NOT_READY,
            ) from error

    def _is_device(self, status: NodeStatus | None) -> bool:
        return status is not None and (status.kind == "character device" or not self._require_devices)

    def _node(self, path: str) -> CdiDeviceNode:
        return CdiDeviceNode(path, host_path=f"{self._host_root}{path}" if self._host_root else None)


def _minor(gpu: Gpu) -> int:
    if gpu.minor is None:
        raise ClaimError(
            f"GPU {gpu.name} has no minor number, so its device node is not known; check that the NVIDIA driver is "
            "loaded for it (nvidia-smi -q)",
            Reason.DEVICE_NOT_READY,
        )
    return gpu.minor
