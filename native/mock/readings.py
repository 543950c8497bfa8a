"""What was read on a machine, kept as JSON: ``capture`` makes a profile of it later, elsewhere.

``tests/gpu`` writes such a file on hardware. The types are those of the binding, so a file says more than a profile
holds: return codes of every field, MIG profiles with their placements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from native.nvml.types import NvmlSnapshot
from native.sysfs import HostTopology

FORMAT: Final = "gpudra.readings/v1"


def dump(snapshot: NvmlSnapshot, host: HostTopology, **more: object) -> str:
    """The file's text. ``more`` is kept beside the two for people to read."""
    document = {"format": FORMAT, "snapshot": snapshot, "host": host, **more}
    return json.dumps(_plain(document), indent=1) + "\n"


def load(text: str) -> tuple[NvmlSnapshot, HostTopology]:
    """The two readings in a file that ``dump`` wrote.

    Raises:
        ValueError: it is something else; names the field where it can.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ValueError(f"these are no readings of tests/gpu: format is {found!r}, not {FORMAT!r}")
    try:
        return (
            msgspec.convert(document.get("snapshot"), NvmlSnapshot),
            msgspec.convert(document.get("host"), HostTopology),
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"these readings cannot be used: {error}") from error


def _plain(value: object) -> object:
    """As JSON has it."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_key(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | frozenset) else value


def _key(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
