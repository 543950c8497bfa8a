"""The static types of CEL and when one may stand for another, after cel-go's checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A type by name with its parameters; a parameter to be found is a name in capitals ("A", "B#3")."""

    name: str
    of: tuple[Type, ...] = ()

    @property
    def is_parameter(self) -> bool:
        """Whether this stands for a type that has to be found."""
        return self.name[0].isupper()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name


@lru_cache(maxsize=512)
def read(text: str) -> Type:
    """Read ``map(string, list(A))``."""
    name, bracket, rest = text.partition("(")
    if not bracket:
        return Type(text.strip())
    parts, depth, start = [], 0, 0
    inner = rest.rstrip()[:-1]
    for index, character in enumerate(inner):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(inner[start:index])
            start = index + 1
    return Type(name.strip(), tuple(read(part.strip()) for part in [*parts, inner[start:]]))


DYN: Final = Type("dyn")
BOOL: Final = Type("bool")
STRING: Final = Type("string")
INT: Final = Type("int")
QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
DEVICE: Final = Type("kubernetes.DRADevice")
WILD: Final = frozenset(("dyn", "any", "error"))
_NULLABLE: Final = ("duration", "timestamp", "kubernetes.")
"""How the names of types begin that null may stand for."""


def list_of(element: Type) -> Type:
    """The type of a list."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """The type of a map."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """The type of an optional value."""
    return Type("optional", (value,))


class Substitution:
    """What the type parameters of one checking run stand for."""

    def __init__(self) -> None:
        self._found: dict[Type, Type] = {}
        self._fresh = 0

    def fresh(self, types: Sequence[Type]) -> list[Type]:
        """The types with their parameters renamed, so that two calls of a function do not share them."""
        self._fresh += 1
        return [_renamed(each, f"#{self._fresh}") for each in types]

    def unknown(self) -> Type:
        """A parameter of its own."""
        self._fresh += 1
        return Type(f"T#{self._fresh}")

    def settled(self, type_: Type, leave: bool = False) -> Type:
        """The type with all that is known put in; what stays unknown becomes dyn unless it is to be left."""
        if type_ in self._found:
            return self.settled(self._found[type_], leave)
        if type_.is_parameter:
            return type_ if leave else DYN
        if not type_.of:
            return type_
        return Type(type_.name, tuple(self.settled(each, leave) for each in type_.of))

    def all_assignable(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """Whether each given type may stand for the wanted one; what that settles is kept only if all may."""
        before = dict(self._found)
        if len(given) == len(wanted) and all(map(self._assignable, given, wanted)):
            return True
        self._found = before
        return False

    def _assignable(self, given: Type, wanted: Type) -> bool:
        if wanted.is_parameter:
            valid, known = self._stands_for(given, wanted)
            if valid or known:
                return valid
        if given.is_parameter:
            return self._stands_for(wanted, given)[0]
        if given.name in WILD or wanted.name in WILD:
            return True
        if "null" in (given.name, wanted.name):
            other = wanted if given.name == "null" else given
            return other.name == "null" or other.name.startswith(_NULLABLE)
        if given.name != wanted.name or len(given.of) != len(wanted.of):
            return False
        return all(map(self._assignable, given.of, wanted.of))

    def _stands_for(self, given: Type, parameter: Type) -> tuple[bool, bool]:
        if given == parameter:
            return True, True
        known = self._found.get(parameter)
        if known is not None:
            if given == known:
                return True, True
            if self._assignable(given, known):
                general = given if _less_specific(given, known) else known
                if not self._mentions(general, parameter):
                    self._found[parameter] = general
                return True, True
            return False, True
        if self._mentions(given, parameter):
            return False, False
        self._found[parameter] = given
        return True, False

    def _mentions(self, type_: Type, parameter: Type) -> bool:
        if type_ == parameter:
            return True
        if type_ in self._found:
            return self._mentions(self._found[type_], parameter)
        return any(self._mentions(each, parameter) for each in type_.of)


def _less_specific(one: Type, other: Type) -> bool:
    if one.name in WILD or one.is_parameter:
        return True
    if other.name in WILD or other.is_parameter:
        return False
    if one.name != other.name or len(one.of) != len(other.of):
        return False
    return all(map(_less_specific, one.of, other.of))


def _renamed(type_: Type, suffix: str) -> Type:
    if type_.is_parameter and "#" not in type_.name:
        return Type(type_.name + suffix)
    return Type(type_.name, tuple(_renamed(each, suffix) for each in type_.of)) if type_.of else type_
