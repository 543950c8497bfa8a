"""A port of the scheduler's structured allocator: which devices would the claims of a pod get on a node?"""

from .allocator import Allocator, Outcome, PoolState
from .claims import Allocated, allocated
from .features import (
    RELEASES,
    Features,
    Rules,
    UnknownGateError,
    UnknownReleaseError,
    default_features,
    rules,
    scheduler_features,
)
from .fields import DocumentError
from .funnel import Funnel, Group
from .nodes import SelectorError

__all__ = [
    "RELEASES",
    "Allocated",
    "Allocator",
    "DocumentError",
    "Features",
    "Funnel",
    "Group",
    "Outcome",
    "PoolState",
    "Rules",
    "SelectorError",
    "UnknownGateError",
    "UnknownReleaseError",
    "allocated",
    "default_features",
    "rules",
    "scheduler_features",
]
