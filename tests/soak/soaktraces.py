"""What claims could leave on a node: files, programs, modes. At rest there is what the prepared claims have, no more.

What the agent may have on the disk at all is ``tests/support/ownfiles.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ownfiles import purpose

if TYPE_CHECKING:
    from tests.soak.soakrun import Run

_STATE_FILES = re.compile(
    r"\A(checkpoint\.json(\.previous|\.reserve|\.damaged-\d+)?|[a-z]+\.(lock|json|json\.tmp)|debts\.json\.damaged|journal|libraries)\Z"
)
"""One temporary file a kind may be left by a kill: the next write takes its place."""
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOURNAL_SLACK = 1.25
"""A file of the journal is begun anew when it is full, with the state at that time at its head."""
CONTROL = "nvidia-cuda-mps"
"""What the kernel calls an MPS daemon: fifteen characters of its name."""


def strange_files(run: Run, prepared: Collection[str]) -> list[str]:
    """Files that are nobody's: of no purpose that is known, or of claims that are not prepared."""
    node = run.node
    found = []
    for folder in (node.registry, node.plugins, node.cdi, node.mps):
        for path in sorted(folder.rglob("*")):
            if path.parent == node.cdi and path.name in run.foreign:
                continue
            named = _UID.search(str(path.relative_to(folder)))
            own = _STATE_FILES.match(path.name) if path.parent == node.state else purpose(path, node.folder)
            if not own or (named is not None and named[0] not in prepared):
                found.append(str(path.relative_to(node.folder)))
    return found


def journal_bytes(run: Run) -> int:
    """Bytes of the journal."""
    return sum(_size(path) for path in (run.node.state / "journal").glob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # the ring has just let go of it


def journal_fits(run: Run) -> bool:
    """Whether it keeps to its setting."""
    return journal_bytes(run) <= _JOURNAL_SLACK * int(str(run.world.flags["journal_bytes"]))


def drivers(run: Run) -> dict[str, str | None]:
    """Address -> driver that the kernel has for a GPU."""
    return {gpu.address: run.node.node.kernel.driver(gpu.address) for gpu in run.node.node.profile.gpus}


def mig_modes(run: Run, known: Callable[[str], bool]) -> dict[str, int]:
    """Address -> MIG mode (-1: there is none) of the GPUs of which it is known."""
    node = run.node.node
    return {gpu.address: node.number(gpu.address, "mig_current") for gpu in node.profile.gpus if known(gpu.address)}
