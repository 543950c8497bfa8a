"""What an expression may use, by release: the fields of ``device`` and the functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final

from . import extensions, kubernetes_functions, operators, time_functions
from .overloads import Overload
from .types import BOOL, DYN, QUANTITY, STRING, Type, map_of

_SAME: Final = "bool int uint double string bytes timestamp duration"
_ORDER: Final = {
    "_+_": "bytes double duration timestamp int list string uint",
    "_-_": "double duration int timestamp uint",
    "_*_": "double int uint",
    "_/_": "double int uint",
    "-_": "double int",
    "_<_": _SAME,
    "_<=_": _SAME,
    "_>_": _SAME,
    "_>=_": _SAME,
    "size": "bytes list map string",
    "int": "int double duration string timestamp uint",
    "uint": "uint double int string",
    "double": "double int string uint",
    "string": "string bool bytes double duration int timestamp uint",
    "timestamp": "timestamp int string",
    "duration": "duration int string",
    "indexOf": "list string",
    "lastIndexOf": "list string",
}
"""Overloads by first parameter, in upstream's order: where a type is still open, the first that fits settles it."""

COST_LIMIT: Final = 1_000_000
"""CELSelectorExpressionMaxCost of resource.k8s.io."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One release's environment."""

    release: int
    attribute: Type
    fields: Mapping[str, Type]
    functions: Mapping[str, tuple[Overload, ...]]


@lru_cache(maxsize=16)
def environment(release: int, lists: bool = False) -> Environment:
    """The environment in which the scheduler of 1.<release> compiles stored expressions.

    ``lists`` is the gate DRAListTypeAttributes, which decides in 1.36 alone what an attribute may be.
    """
    attribute = DYN if release >= 37 or (lists and release >= 36) else Type("any")
    functions: dict[str, tuple[Overload, ...]] = {}
    subjects = (time_functions, extensions, kubernetes_functions)
    more = (each for subject in subjects for each in subject.declarations(release))
    for each in (*operators.declarations(), *more):
        functions[each.name] = (*functions.get(each.name, ()), each)
    for name, order in _ORDER.items():
        functions[name] = tuple(sorted(functions[name], key=partial(_place, order.split())))
    fields = {
        "driver": STRING,
        "allowMultipleAllocations": BOOL,
        "attributes": map_of(STRING, map_of(STRING, attribute)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    }
    return Environment(release, attribute, MappingProxyType(fields), MappingProxyType(functions))


def _place(order: list[str], overload: Overload) -> int:
    first = overload.params[0].name
    return order.index(first) if first in order else len(order)
