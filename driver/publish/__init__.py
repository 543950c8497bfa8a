"""``NodeInventory`` -> ResourceSlice documents. Pure: what is published is a function of what the node has."""

from __future__ import annotations

from driver.publish.attributes import ATTRIBUTES, Attribute, AttributeKind, AttributeType, Missing
from driver.publish.offers import DeviceOrder
from driver.publish.pool import PoolDocument, Withheld, build_pool, pool_name, slice_objects

__all__ = [
    "ATTRIBUTES",
    "Attribute",
    "AttributeKind",
    "AttributeType",
    "DeviceOrder",
    "Missing",
    "PoolDocument",
    "Withheld",
    "build_pool",
    "pool_name",
    "slice_objects",
]
