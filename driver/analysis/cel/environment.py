"""What an expression may use, by release: the fields of ``device``, the functions, and what is known to be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from . import extensions, operators
from .overloads import Overload
from .types import BOOL, DYN, QUANTITY, STRING, Type, map_of

_MISSING: Final = frozenset(
    [
        "timestamp",
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "url",
        "isURL",
        "getScheme",
        "getHostname",
        "getHost",
        "getPort",
        "getEscapedPath",
        "getQuery",
        "format",
        "format.named",
        "validate",
        "strings.quote",
        "optional.unwrap",
        "unwrapOpt",
        "first",
        "last",
        "jsonpatch.escapeKey",
        "path",
        "group",
        "serviceAccount",
        "resource",
        "subresource",
        "namespace",
        "check",
        "fieldSelector",
        "labelSelector",
    ]
)
"""Functions that upstream's environment has and this one has not: an expression with one is reported, not guessed."""

COST_LIMIT: Final = 1_000_000
"""CELSelectorExpressionMaxCost of resource.k8s.io."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One release's environment."""

    release: int
    attribute: Type
    fields: Mapping[str, Type]
    functions: Mapping[str, tuple[Overload, ...]]
    unsupported: frozenset[str]


@lru_cache(maxsize=16)
def environment(release: int, lists: bool = False) -> Environment:
    """The environment in which the scheduler of 1.<release> compiles stored expressions.

    ``lists`` is the gate DRAListTypeAttributes, which decides in 1.36 alone what an attribute may be.
    """
    attribute = DYN if release >= 37 or (lists and release >= 36) else Type("any")
    functions: dict[str, tuple[Overload, ...]] = {}
    for each in (*operators.declarations(), *extensions.declarations(includes=release >= 36)):
        functions[each.name] = (*functions.get(each.name, ()), each)
    fields = {
        "driver": STRING,
        "allowMultipleAllocations": BOOL,
        "attributes": map_of(STRING, map_of(STRING, attribute)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    }
    return Environment(release, attribute, MappingProxyType(fields), MappingProxyType(functions), _MISSING)
