"""``gpudra`` on a mock node behind whose sysfs stands the mock's kernel: what is written there happens.

Run as a program, with the arguments of ``gpudra``: ``agent``, and ``--mock-root=DIR`` among its flags.
"""

from __future__ import annotations

import sys
from pathlib import Path

import native.vfio
from driver.cli.main import main
from native.mock import MockNode

_ROOT = "--mock-root="


def put_kernel_behind(node: MockNode) -> None:
    """Let every ``VfioBus`` of this process write to the mock's kernel."""

    class Bus(native.vfio.VfioBus):
        def __init__(self, sys_root: Path, dev_root: Path) -> None:
            super().__init__(sys_root, dev_root, node.kernel.write)

    native.vfio.VfioBus = Bus  # type: ignore[misc, assignment] # where the agent takes it from, when it first needs it


if __name__ == "__main__":
    (root,) = (argument.removeprefix(_ROOT) for argument in sys.argv if argument.startswith(_ROOT))
    put_kernel_behind(MockNode.open(Path(root)))
    sys.exit(main(sys.argv[1:]))
