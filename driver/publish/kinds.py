"""What each attribute is worth on another node: the kinds of both tables, by qualified name."""

from __future__ import annotations

from driver.publish.attributes import ATTRIBUTES
from driver.publish.migattributes import MIG_ATTRIBUTES


def attribute_kinds(driver_name: str) -> dict[str, str]:
    """Qualified name -> value of ``AttributeKind``; a name that whole GPUs and partitions have is as of the GPUs."""
    rows = [(row.id, row.kind) for row in MIG_ATTRIBUTES] + [(row.id, row.kind) for row in ATTRIBUTES]
    return {name if "/" in name else f"{driver_name}/{name}": kind.value for name, kind in rows}
