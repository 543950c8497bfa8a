"""CDI files of claims, as tests read them."""

from __future__ import annotations

from typing import Any


def given(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of a claim's CDI file that containers get: all but the one, the last, that tells the record."""
    *devices, record = spec["devices"]
    assert record["name"].endswith("_record")
    return devices
