"""A GPU -> the device nodes that a container needs for it, looked up on the host at this moment.

Nodes are named by path. Their major numbers are given out by the kernel when a module is loaded and change with the
next load, so they are neither stored nor written: the runtime looks at the host's file when it makes the container's.
"""

from __future__ import annotations

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


class DeviceNodes:
    """Gives CDI device nodes and says what is missing.

    Args:
        reader: looks below the device root as this process sees it.
        host_root: where that device root stands on the host ("/" or for example "/run/nvidia/driver").
        require_devices: False on a mock node, where making device nodes needs a right that a user does not have and
            plain files stand for them.
    """

    def __init__(self, reader: DeviceNodeReader, host_root: str = "/", *, require_devices: bool = True) -> None:
        self._reader = reader
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
        if gpu.minor is None:
            raise ClaimError(
                f"GPU {gpu.name} has no minor number, so its device node is not known; check that the NVIDIA driver "
                "is loaded for it (nvidia-smi -q)",
                Reason.DEVICE_NOT_READY,
            )
        node = self._needed(f"/dev/nvidia{gpu.minor}", f"nvidia-modprobe -c={gpu.minor}")
        drm = [f"/dev/dri/{name}" for name in gpu.drm_nodes]
        return (node, *(self._node(path) for path in drm if self._is_device(self._look(path))))

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
