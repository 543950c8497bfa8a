"""Checkpoints for tests: records, a folder's newest line, and lines of one's own making."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from driver.prepare.checkpoint import Checkpoint
from driver.prepare.claims import ClaimRef
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.slots import SLOTS

BOOT = "6a0c0f3e-boot"


def record(uid: str, index: int = 0, **changes: Any) -> ClaimRecord:
    device = DeviceRecord(
        "req",
        "node-a",
        f"gpu-0000-1{index}-00-0",
        None,
        False,
        f"0000:1{index}:00.0",
        f"GPU-{index:08}",
        f"{uid}_req_gpu",
    )
    made = ClaimRecord(ClaimRef("ns", f"c-{uid}", uid), Phase.PREPARED, (device,), BOOT, "abc")
    return msgspec.structs.replace(made, **changes)


def loaded(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(folder)
    checkpoint.refresh(BOOT)
    return checkpoint


def newest(folder: Path) -> dict[str, Any]:
    """The newest line's data."""
    lines = [line for line in (folder / "checkpoint.json").read_bytes().split(b"\n") if line.strip()]
    documents: list[dict[str, Any]] = [json.loads(line)["data"] for line in lines]
    return max(documents, key=lambda document: int(document["sequence"]))


def place(folder: Path, number: int) -> int:
    """Where the line of this sequence stands."""
    return number % SLOTS * (folder / "checkpoint.json").stat().st_size // SLOTS


def commit(checkpoint: Checkpoint, changes: Mapping[str, ClaimRecord | None], **options: Any) -> None:
    checkpoint.commit(changes, boot_id=BOOT, **options)


def sealed(data: bytes) -> bytes:
    return b'{"checksum":"sha256:%s","data":%s}\n' % (hashlib.sha256(data).hexdigest().encode(), data)
