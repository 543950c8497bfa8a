"""Native readings -> ``NodeInventory``: what this node has, joined by PCI address. Pure: no hardware, no files."""

from __future__ import annotations

from driver.inventory.build import build_inventory
from driver.inventory.paths import path_between

__all__ = ["build_inventory", "path_between"]
