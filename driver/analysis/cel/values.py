"""The values of expressions beside Python's own: versions, optionals, the map of domains; equality and order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Final

from ..quantity import Quantity
from .errors import EvaluationError
from .formats import Format
from .network import IP, Cidr
from .times import Duration, Timestamp
from .urls import Url


class UInt(int):
    """An unsigned integer, which CEL keeps apart from ``int``."""

    __slots__ = ()


class DomainMap(dict[str, object]):
    """``device.attributes`` and ``device.capacity``: a domain nobody published is an empty map, not an error."""

    __slots__ = ()


EMPTY: Final[dict[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent; ``present`` tells an absent one from null."""

    value: object = None
    present: bool = False


NONE: Final = Optional()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What ``type(x)`` gives."""

    name: str


_PART: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version as github.com/blang/semver/v4 reads and orders it; build metadata does not count in order."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __lt__(self, other: Semver) -> bool:
        return self.key() < other.key()

    def key(self) -> tuple[object, ...]:
        """Sorts as versions do: a pre-release before its release, numbers before words."""
        parts = tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in self.pre)
        return self.major, self.minor, self.patch, not self.pre, parts

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        text += "-" + ".".join(map(str, self.pre)) if self.pre else ""
        return text + ("+" + ".".join(self.build) if self.build else "")


@lru_cache(maxsize=4096)
def semver(text: str) -> Semver:
    """Read a strict semantic version.

    Raises:
        EvaluationError: not a version, with what is wrong.
    """
    if not text:
        raise EvaluationError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise EvaluationError("No Major.Minor.Patch elements found")
    patch, plus, build = parts[2].partition("+")
    patch, dash, pre = patch.partition("-")
    return Semver(
        _number(parts[0], "major"),
        _number(parts[1], "minor"),
        _number(patch, "patch"),
        tuple(map(_pre, pre.split("."))) if dash else (),
        tuple(map(_build, build.split("."))) if plus else (),
    )


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise EvaluationError(f"Invalid character(s) found in {name} number {text!r}")
    if len(text) > 1 and text[0] == "0":
        raise EvaluationError(f"{name.capitalize()} number must not contain leading zeroes {text!r}")
    return _uint64(text)


def _uint64(text: str) -> int:
    if len(text) > len(str(2**64)) or int(text) >= 2**64:
        raise EvaluationError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)


def _pre(text: str) -> int | str:
    if not text:
        raise EvaluationError("Prerelease is empty")
    if text.isascii() and text.isdigit():
        if len(text) > 1 and text[0] == "0":
            raise EvaluationError(f"Numeric PreRelease version must not contain leading zeroes {text!r}")
        return _uint64(text)
    return _word(text, "prerelease")


def _build(text: str) -> str:
    if not text:
        raise EvaluationError("Build meta data is empty")
    return _word(text, "build meta data")


def _word(text: str, what: str) -> str:
    if not _PART.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in {what} {text!r}")
    return text


def tolerant_semver(text: str) -> Semver:
    """Read a version as ``semver(text, true)`` does: without a "v", short forms filled up, leading zeros dropped.

    Raises:
        EvaluationError: still not a version.
    """
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            short = part.lstrip("0")
            parts[index] = short if short[:1].isascii() and short[:1].isdigit() else "0" + short
    if len(parts) < 3 and any(mark in parts[-1] for mark in "+-"):
        raise EvaluationError("short version cannot contain PreRelease/Build meta data")
    return semver(".".join(parts + ["0"] * (3 - len(parts))))


def type_name(value: object) -> str:
    """The name of a value's type, as error messages and ``type()`` show it."""
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_NAMES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "bool"), (UInt, "uint"), (int, "int"), (float, "double"), (str, "string"), (bytes, "bytes"),
    (type(None), "null_type"), ((list, tuple), "list"), (dict, "map"), (Quantity, "kubernetes.Quantity"),
    (Semver, "kubernetes.Semver"), (Optional, "optional_type"), (TypeValue, "type"),
    (Duration, "google.protobuf.Duration"), (Timestamp, "google.protobuf.Timestamp"), (IP, "net.IP"),
    (Cidr, "net.CIDR"), (Url, "kubernetes.URL"), (Format, "kubernetes.NamedFormat"),
)  # fmt: skip
_NUMBERS: Final = (int, float)
_STRICT: Final = (Semver, Quantity, IP, Cidr, Url, Format)
"""What Kubernetes adds: equal only to its own type, an error beside anything else."""


def equal(one: object, other: object) -> bool:
    """Equality of CEL: numbers by value across their types, everything else only within its own type.

    Raises:
        EvaluationError: a version or a quantity on the left of something else.
    """
    kind = type(one)
    if kind is type(other) and kind in (str, int, bool):
        return one == other
    if isinstance(one, _STRICT) and kind is not type(other):
        raise no_overload()
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return one == other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and equal(value, other[key]) for key, value in one.items())
    if isinstance(one, Optional) and isinstance(other, Optional):
        return one.present == other.present and equal(one.value, other.value)
    return type(one) is type(other) and one == other


def same(one: object, other: object) -> bool:
    """Whether a list or set takes the two for one: equal, and no error."""
    if isinstance(one, _STRICT) and type(one) is not type(other):
        return False
    return equal(one, other)


_ORDERED: Final = (str, bytes, Duration, Timestamp)


UNORDERED: Final = -2
"""What ``compare`` says of a number that is none."""


def compare(one: object, other: object) -> int:
    """-1, 0 or 1, or UNORDERED.

    Raises:
        EvaluationError: values that have no order with each other.
    """
    numbers = isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS)
    same = type(one) is type(other) and isinstance(one, (bool, *_ORDERED))
    if not (same or (numbers and not isinstance(one, bool) and not isinstance(other, bool))):
        raise no_overload()
    left, right = one, other
    if isinstance(left, (Duration, Timestamp)) and isinstance(right, (Duration, Timestamp)):
        left, right = left.nanos, right.nanos
    if isinstance(left, str) and isinstance(right, str):
        left, right = left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    if any(isinstance(each, float) and math.isnan(each) for each in (left, right)):
        return UNORDERED
    return int(left > right) - int(left < right)  # type: ignore[operator]  # of one kind, as looked at above


def no_overload() -> EvaluationError:
    """The error of a function that does not exist for the values it got."""
    return EvaluationError("no such overload")


def size(value: object) -> int:
    """The size that runtime costs count with: of strings, lists and maps their length, of all else 1."""
    if isinstance(value, (str, list, tuple, dict, bytes, IP, Cidr)):
        return len(value)
    if isinstance(value, Optional) and value.present:
        return size(value.value)
    return 1


Implementation = Callable[..., object]
