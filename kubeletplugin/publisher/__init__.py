"""Keeps the ResourceSlices of one driver on one node as the driver wants them."""

from __future__ import annotations

from kubeletplugin.publisher.features import Features, Wish
from kubeletplugin.publisher.loop import Publisher

__all__ = ["Features", "Publisher", "Wish"]
