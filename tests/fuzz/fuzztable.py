"""All targets."""

from __future__ import annotations

from tests.fuzz import fuzzclaims, fuzzdocuments, fuzzkube, fuzzmock, fuzznode, fuzzstate
from tests.fuzz.engine import Target

TARGETS: tuple[Target, ...] = (
    *fuzzclaims.TARGETS,
    *fuzzstate.TARGETS,
    *fuzznode.TARGETS,
    *fuzzdocuments.TARGETS,
    *fuzzkube.TARGETS,
    *fuzzmock.TARGETS,
)
