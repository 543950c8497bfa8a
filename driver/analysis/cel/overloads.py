"""How a function is declared: its signature for the checker, its guard and cost for a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..quantity import Quantity
from .network import IP, Cidr
from .types import Type, read
from .values import DomainMap, Duration, Optional, Semver, TypeValue, UInt, size

Implementation = Callable[..., object]
Cost = Callable[[list[object], object], int]

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
    "type": frozenset((TypeValue,)),
    "kubernetes.Quantity": frozenset((Quantity,)),
    "kubernetes.Semver": frozenset((Semver,)),
    "net.IP": frozenset((IP,)),
    "net.CIDR": frozenset((Cidr,)),
}
_SIGNATURE: Final = re.compile(r"(?P<member>\*)?(?P<name>[^(\s]+)\((?P<params>.*)\)\s*->\s*(?P<result>.+)")


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function; a method's receiver is its first parameter."""

    name: str
    member: bool
    params: tuple[Type, ...]
    result: Type
    run: Implementation
    cost: Cost
    guards: tuple[frozenset[type] | None, ...]

    def accepts(self, values: list[object]) -> bool:
        """Whether these values may be given to it."""
        if len(values) != len(self.guards):
            return False
        for guard, value in zip(self.guards, values, strict=True):
            if guard is not None and type(value) not in guard:
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


def squared(args: list[object], _: object) -> int:
    """What comparing every element of a list with every other costs."""
    first = args[0]
    texts = isinstance(first, (list, tuple)) and bool(first) and isinstance(first[0], (str, bytes))
    return math.ceil(size(first) ** 2 * (2.1 if texts else 2.0)) + 11


def smaller(args: list[object], _: object) -> int:
    """What comparing two values costs."""
    return math.ceil(min(size(args[0]), size(args[1])) * 0.1)


def declare(signature: str, run: Implementation, cost: Cost = one) -> Overload:
    """Read ``*name(receiver, argument) -> result``; the star marks a method."""
    found = _SIGNATURE.fullmatch(signature)
    if found is None:
        raise ValueError(f"{signature!r} is no signature")
    whole = read(f"f({found['params']})").of if found["params"] else ()
    guards = tuple(_CLASSES.get(each.name) for each in whole)
    return Overload(found["name"], bool(found["member"]), whole, read(found["result"]), run, cost, guards)


def for_types(signature: str, names: Iterable[str], run: Implementation, cost: Cost = one) -> list[Overload]:
    """The same declaration for several types, put in for ``?``."""
    return [declare(signature.replace("?", name), run, cost) for name in names]
