"""What MIG can do on each board: profiles, placements and engines, from ``mig_boards.json`` beside this module.

Every board states where its numbers come from, every profile whether it was captured, documented or derived. The
numbers are for the mock only: a driver reads them from NVML, because they differ between driver versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).parent / "mig_boards.json"


@dataclass(frozen=True, slots=True)
class GiProfile:
    """A GPU instance profile. ``index`` is nvml.h's enum (NVML_GPU_INSTANCE_PROFILE_*), ``id`` what create takes."""

    index: int
    id: int
    name: str
    """As users write it: ``1g.10gb+me``."""
    slices: int
    """Compute slices."""
    instances: int
    memory_mib: int
    multiprocessors: int
    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int
    size: int
    """Memory slices that a placement occupies."""
    starts: tuple[int, ...]
    source: str
    """``captured``, ``documented`` or ``derived``."""


@dataclass(frozen=True, slots=True)
class MigBoard:
    """A board that MIG can divide."""

    name: str
    pci_device_ids: tuple[int, ...]
    memory_slices: int
    compute_slices: int
    source: str
    profiles: tuple[GiProfile, ...]
    """In the order of their index."""


@lru_cache(maxsize=1)
def boards() -> Mapping[str, MigBoard]:
    """All boards by name."""
    document = json.loads(_FILE.read_text(encoding="utf-8"))
    return {name: _board(name, entry, document["columns"]) for name, entry in document["boards"].items()}


def _board(name: str, entry: dict[str, object], columns: list[str]) -> MigBoard:
    rows = entry["profiles"]
    ids = entry["pci_device_ids"]
    assert isinstance(rows, list)
    assert isinstance(ids, list)
    return MigBoard(
        name,
        tuple(int(text, 16) for text in ids),
        int(str(entry["memory_slices"])),
        int(str(entry["compute_slices"])),
        str(entry["source"]),
        tuple(_profile(dict(zip(columns, row, strict=True))) for row in rows),
    )


def _profile(row: dict[str, object]) -> GiProfile:
    starts = row.pop("starts")
    assert isinstance(starts, list)
    numbers = {key: int(str(value)) for key, value in row.items() if key not in ("name", "source")}
    return GiProfile(name=str(row["name"]), source=str(row["source"]), starts=tuple(starts), **numbers)


def of_pci_device(device: int) -> MigBoard | None:
    """The board of a PCI device id; None where no table is known."""
    for board in boards().values():
        if device in board.pci_device_ids:
            return board
    return None
