"""How a function is declared: its signature for the checker, its guard and cost for a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..quantity import Quantity
from .formats import Format
from .network import IP, Cidr
from .times import Duration, Timestamp
from .types import Type, read
from .urls import Url
from .values import DomainMap, Optional, Semver, TypeValue, UInt, size

Implementation = Callable[..., object]
Cost = Callable[[list[object], object], int]

AUTHORIZATION: Final = ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
"""Types of upstream's authorizer functions, which DRA declares although no value of them ever exists."""

_CLASSES: Final[dict[str, frozenset[type]]] = {
    "bool": frozenset((bool,)),
    "int": frozenset((int,)),
    "uint": frozenset((UInt,)),
    "double": frozenset((float,)),
    "string": frozenset((str,)),
    "bytes": frozenset((bytes,)),
    "null": frozenset((type(None),)),
    "list": frozenset((list, tuple)),
    "map": frozenset((dict, DomainMap)),
    "optional": frozenset((Optional,)),
    "duration": frozenset((Duration,)),
    "timestamp": frozenset((Timestamp,)),
    "type": frozenset((TypeValue,)),
    "kubernetes.Quantity": frozenset((Quantity,)),
    "kubernetes.Semver": frozenset((Semver,)),
    "net.IP": frozenset((IP,)),
    "net.CIDR": frozenset((Cidr,)),
    "kubernetes.URL": frozenset((Url,)),
    "kubernetes.NamedFormat": frozenset((Format,)),
} | {f"kubernetes.authorization.{name}": frozenset[type]() for name in AUTHORIZATION}
_SIGNATURE: Final = re.compile(r"(?P<member>\*)?(?P<name>[^(\s]+)\((?P<params>.*)\)\s*->\s*(?P<result>.+)")


Guard = tuple[frozenset[type], frozenset[type] | None]
"""The classes that a parameter takes, and those of a list's first element where its type is known."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function; a method's receiver is its first parameter.

    ``unsure`` is the cost where the types left several overloads open until the run: upstream then knows none by name.
    """

    name: str
    member: bool
    params: tuple[Type, ...]
    result: Type
    run: Implementation
    cost: Cost
    guards: tuple[Guard | None, ...]
    unsure: Cost

    def accepts(self, values: list[object]) -> bool:
        """Whether these values may be given to it."""
        if len(values) != len(self.guards):
            return False
        for guard, value in zip(self.guards, values, strict=True):
            if guard is None:
                continue
            classes, inner = guard
            if type(value) not in classes:
                return False
            if inner is not None and isinstance(value, (list, tuple)) and value and type(value[0]) not in inner:
                return False
        return True


def one(_: list[object], __: object) -> int:
    """The cost of whatever does not depend on sizes."""
    return 1


def traversal(index: int = 0, factor: float = 1.0) -> Cost:
    """A tenth of the length of an argument, rounded up, as reading a text costs."""

    def cost(args: list[object], _: object) -> int:
        return math.ceil(size(args[index]) * factor * 0.1)

    return cost


def elements(args: list[object], _: object) -> int:
    """What going through a value once costs."""
    return _walk(args[0])


def _walk(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode()) // 10
    if isinstance(value, bytes):
        return len(value) // 10
    if isinstance(value, (list, tuple)):
        return sum(map(_walk, value))
    if isinstance(value, dict):
        return sum(_walk(key) + _walk(inner) for key, inner in value.items())
    return 1


def allocating(_: list[object], result: object) -> int:
    """What a function costs that makes a list as long as its result."""
    return size(result) + 11


def squared(index: int = 0) -> Cost:
    """What comparing every element of a list with every other costs."""

    def cost(args: list[object], _: object) -> int:
        keys = args[index]
        texts = isinstance(keys, (list, tuple)) and bool(keys) and isinstance(keys[0], (str, bytes))
        return int(size(keys) ** 2 * (2.1 if texts else 2.0)) + 11

    return cost


def smaller(args: list[object], _: object) -> int:
    """What comparing two values costs."""
    return math.ceil(min(size(args[0]), size(args[1])) * 0.1)


def declare(signature: str, run: Implementation, cost: Cost = one, unsure: Cost = one) -> Overload:
    """Read ``*name(receiver, argument) -> result``; the star marks a method."""
    found = _SIGNATURE.fullmatch(signature)
    if found is None:
        raise ValueError(f"{signature!r} is no signature")
    whole = read(f"f({found['params']})").of if found["params"] else ()
    guards = tuple(map(_guard, whole))
    return Overload(found["name"], bool(found["member"]), whole, read(found["result"]), run, cost, guards, unsure)


def _guard(type_: Type) -> Guard | None:
    classes = _CLASSES.get(type_.name)
    if classes is None:
        return None
    return classes, _CLASSES.get(type_.of[0].name) if type_.name == "list" else None


def for_types(
    signature: str, names: Iterable[str], run: Implementation, cost: Cost = one, unsure: Cost = one
) -> list[Overload]:
    """The same declaration for several types, put in for ``?``."""
    return [declare(signature.replace("?", name), run, cost, unsure) for name in names]
