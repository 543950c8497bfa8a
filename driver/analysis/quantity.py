"""Kubernetes quantities ("80Gi", "1500m", "2e3") as exact integers of a billionth.

The rules are those of apimachinery's ``resource.Quantity``: values below a billionth are rounded away from zero, binary
values are capped at 2**63-1, and each quantity remembers the notation that it is written back in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

NANO: Final = 10**9
MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)
BINARY, DECIMAL, EXPONENT = "BinarySI", "DecimalSI", "DecimalExponent"

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_DECIMAL_SUFFIX = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LONGEST = 1000
"""Characters of a text that is read: more digits mean nothing."""
_LARGEST_NUMBER = 10**300
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)", re.ASCII)
_INT64_DIGITS = 18


class QuantityError(ValueError):
    """Not a quantity; the text says which text and what a quantity looks like."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity: ``nanos`` billionths, written in ``notation``. Equality is of the value alone."""

    nanos: int
    notation: str = DECIMAL
    kept: str = ""
    """The text it was parsed from where that is canonical already, as upstream keeps it."""
    integer: bool = False
    """Whether upstream takes it for an int64 without looking at fractions: 1k is one, 1000m and 1.5Gi are not."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __str__(self) -> str:
        return self.kept or _written(self.nanos, self.notation)

    def value(self) -> int:
        """The whole number, rounded away from zero, wrapped as int64 as upstream's ``Value`` does."""
        return wrapped(-(-self.nanos // NANO) if self.nanos >= 0 else self.nanos // NANO)

    def same_as(self, other: Quantity) -> bool:
        """Equal in value, notation and kept text: Go's ``==`` on two quantities."""
        return (self.nanos, self.notation, self.kept) == (other.nanos, other.notation, other.kept)


def whole(number: int, notation: str = DECIMAL) -> Quantity:
    """A quantity of a whole number."""
    return Quantity(number * NANO, notation, integer=MIN_INT64 <= number <= MAX_INT64)


def add(one: Quantity, other: Quantity) -> Quantity:
    """The sum, written as the first is, or as the second where the first is zero."""
    return _sum(one, other, one.nanos + other.nanos)


def subtract(one: Quantity, other: Quantity) -> Quantity:
    """The difference, written as ``add`` writes a sum."""
    return _sum(one, other, one.nanos - other.nanos)


def _sum(one: Quantity, other: Quantity, nanos: int) -> Quantity:
    notation = other.notation if one.nanos == 0 else one.notation
    integer = (one.integer or one.nanos == 0) and (other.integer or other.nanos == 0)
    return Quantity(nanos, notation, integer=integer and MIN_INT64 * NANO <= nanos <= MAX_INT64 * NANO)


@lru_cache(maxsize=4096)
def parse(text: str) -> Quantity:
    """Read a quantity.

    Raises:
        QuantityError: the text is not one.
    """
    if len(text) > _LONGEST:
        raise QuantityError(f"a text of {len(text)} characters is not a quantity: write one such as 80Gi")
    found = _FORM.fullmatch(text)
    if found is None or not (found[2] or found[3]) or not text:
        raise QuantityError(f"{text!r} is not a quantity: write a number with a suffix such as Gi, M, m or e3")
    sign, digits, fraction, suffix = found[1], found[2].lstrip("0"), found[3] or "", found[4]
    base, exponent, notation = _suffix(text, suffix)
    scale = len(fraction)
    unscaled = int((digits + fraction) or "0")
    # The bound keeps a hostile exponent from filling the memory; nothing so large or so small has a meaning.
    if base == 2:
        numerator, denominator = unscaled * (1 << exponent) * NANO, 10**scale
    elif exponent - scale + 9 >= 0:
        numerator, denominator = unscaled * 10 ** min(exponent - scale + 9, 4096), 1
    else:
        numerator, denominator = unscaled, 10 ** min(scale - exponent - 9, 4096)
    nanos = -(-numerator // denominator)
    notation, nanos = _bounded(nanos, notation)
    short = _short(digits or "0", fraction, base, exponent)
    kept = text if text == "0" or (short and _canonical((digits or "0") + fraction, base, exponent - scale)) else ""
    integer = text == "0" or (short and exponent >= scale and nanos <= MAX_INT64 * NANO)
    return Quantity(-nanos if sign == "-" else nanos, notation, kept, integer)


def read(value: object) -> Quantity:
    """Read a quantity from a decoded JSON value: a text, or a number as some tools write it.

    Raises:
        QuantityError: the value is neither, or the text is no quantity.
    """
    if isinstance(value, str):
        return parse(value.strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER:
        return parse(repr(value))
    raise QuantityError(f"{type(value).__name__} is not a quantity: write a text such as 80Gi")


def _suffix(text: str, suffix: str) -> tuple[int, int, str]:
    if suffix in _DECIMAL_SUFFIX:
        return 10, _DECIMAL_SUFFIX[suffix], DECIMAL
    if suffix in _BINARY_SUFFIX:
        return 2, _BINARY_SUFFIX[suffix], BINARY
    if found := _EXPONENT.fullmatch(suffix):
        return 10, int(found[1]), EXPONENT
    raise QuantityError(f"{text!r} has no suffix that a quantity may have: n, u, m, k, M, G, T, P, E, Ki to Ei, or e3")


def _bounded(nanos: int, notation: str) -> tuple[str, int]:
    if notation == BINARY:
        nanos = min(nanos, MAX_INT64 * NANO)
        if 0 < nanos < NANO:
            return DECIMAL, nanos
    return notation, nanos


def _short(digits: str, fraction: str, base: int, exponent: int) -> bool:
    """Whether upstream reads the text into an int64 and a scale; longer ones become big decimals."""
    if base == 2:
        return not fraction and 15 - len(digits) - int(exponent * 3 / 10) - 1 >= 0
    return len(digits) + len(fraction) <= _INT64_DIGITS and exponent - len(fraction) >= -9


def _canonical(shifted: str, base: int, scale: int) -> bool:
    if base == 2:
        return scale % 10 == 0 and int(shifted) & 7 != 0
    return scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"


def wrapped(number: int) -> int:
    """The number as int64 arithmetic leaves it."""
    return (number + 2**63) % 2**64 - 2**63


def milli(quantity: Quantity) -> int | None:
    """Thousandths, or None where the quantity is no whole number of them or beyond int64."""
    thousandths, rest = divmod(quantity.nanos, NANO // 1000)
    return None if rest or not MIN_INT64 <= thousandths <= MAX_INT64 else thousandths


def _written(nanos: int, notation: str) -> str:
    if nanos == 0:
        return "0"
    if notation == BINARY and abs(nanos) >= 1024 * NANO and nanos % NANO == 0:
        number, power = nanos // NANO, 0
        while number % 1024 == 0 and power < 6:
            number, power = number // 1024, power + 1
        return f"{number}{['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'][power]}"
    number, exponent = nanos, -9
    while number % 1000 == 0 and (exponent < 18 or notation == EXPONENT):
        number, exponent = number // 1000, exponent + 3
    if notation == EXPONENT:
        return f"{number}e{exponent}" if exponent else str(number)
    return str(number) + next(suffix for suffix, power in _DECIMAL_SUFFIX.items() if power == exponent)
