"""NodeShape: what a node of this kind publishes when it is new, as a document that can be kept and compared.

``export`` makes it of slices (several drivers at once), ``instantiate`` makes slices for a node that is not there yet,
``differences`` compares two, the emitters write it in the forms that autoscalers read.
"""

from __future__ import annotations

from driver.analysis.shape.compare import Difference, differences
from driver.analysis.shape.emitters import CAPI_PREFIX, Emitted, cluster_api, config_map, karpenter, kwok, plain_slices
from driver.analysis.shape.export import API_VERSION, KIND, NODE, Dropped, Shape, ShapeError, export, read
from driver.analysis.shape.instantiate import instantiate
from driver.analysis.shape.kinds import KINDS, AttributeKinds, qualified

__all__ = [
    "API_VERSION",
    "CAPI_PREFIX",
    "KIND",
    "KINDS",
    "NODE",
    "AttributeKinds",
    "Difference",
    "Dropped",
    "Emitted",
    "Shape",
    "ShapeError",
    "cluster_api",
    "config_map",
    "differences",
    "export",
    "instantiate",
    "karpenter",
    "kwok",
    "plain_slices",
    "qualified",
    "read",
]
