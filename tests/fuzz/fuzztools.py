"""From bytes to what a parser takes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def as_text(data: bytes) -> str:
    """Any text that may come in, lone surrogates included (they do, from JSON)."""
    return data.decode("utf-8", "surrogatepass" if _surrogates(data) else "replace")


def _surrogates(data: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        data.decode("utf-8", "surrogatepass")
        return True
    return False


def as_json(data: bytes) -> Any:
    """The value that the bytes spell; for what is no JSON, the text itself: a value of the wrong kind."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return as_text(data)[:1000]


def written(folder: Path, name: str, data: bytes) -> Path:
    """The bytes as a file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
