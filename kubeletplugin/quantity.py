"""Kubernetes quantities ("80Gi", "1500m", "2e3") as exact numbers, and the canonical way to write them.

The rules are those of k8s.io/apimachinery/pkg/api/resource: at most nano precision (finer is rounded away from zero),
binary quantities end at 2^63-1, three forms that are kept when printed.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from fractions import Fraction

_SYNTAX = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?P<point>\.(?P<part>[0-9]*))?(?P<suffix>[A-Za-z]*(?:[+-]?[0-9]+)?)"
)
_EXPONENT = re.compile(r"[eE](?P<exponent>[+-]?[0-9]+)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
_BINARY_NAMES = {0: "", **{exponent: name for name, exponent in _BINARY.items()}}
_MAX_EXPONENT = 1000
_LONGEST = 1000
"""Characters of a text that is read: a number of more digits means nothing, and costs the square of its length."""
"""Far beyond anything real, and small enough that a hostile "1e999999999" costs nothing."""

INT64_MAX = 2**63 - 1
NANO = Fraction(1, 10**9)


class QuantityError(ValueError):
    """The text is no quantity."""


class Form(enum.Enum):
    """How a quantity is written."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact number and the form it was written in. Compares and hashes by number alone: 1Gi == 1024Mi."""

    value: Fraction
    form: Form = Form.DECIMAL

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        """The canonical form: the largest suffix that needs no fraction."""
        if self.value == 0:
            return "0"
        if self.form is Form.BINARY and self.value.denominator == 1 and abs(self.value) >= 1024:
            number, exponent = _shorten(self.value.numerator, 1024, len(_BINARY))
            return f"{number}{_BINARY_NAMES[exponent]}"
        return _decimal(self.value, self.form)

    def rounded_up(self) -> int:
        """As a whole number, away from zero (``Quantity.Value()`` of the Go type)."""
        return _away_from_zero(self.value)

    def milli_rounded_up(self) -> int:
        """In thousandths, away from zero (``Quantity.MilliValue()``)."""
        return _away_from_zero(self.value * 1000)


def parse_quantity(text: str | int) -> Quantity:
    """The quantity that ``text`` spells; an integer is one too (JSON numbers are accepted by the API server).

    Raises:
        QuantityError: it spells none.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise QuantityError(f"{text!r} is not a quantity: text like 80Gi or a whole number is needed")
    if (len(text) if isinstance(text, str) else text.bit_length() // 3) > _LONGEST:
        raise QuantityError("a number of so many digits is not a quantity (examples: 4, 1500m, 80Gi, 1e3)")
    match = _SYNTAX.fullmatch(str(text))
    if match is None or not (match["whole"] or match["part"]):
        raise QuantityError(f"{text!r} is not a quantity (examples: 4, 1500m, 80Gi, 1e3)")
    part = match["part"] or ""
    number = Fraction(int((match["whole"] + part) or "0"), 10 ** len(part))
    scale, form = _suffix(str(text), match["suffix"])
    number = _cap(number * scale, form)
    if form is Form.BINARY and 0 < number < 1:
        form = Form.DECIMAL
    return Quantity(-number if match["sign"] == "-" else number, form)


def _suffix(text: str, suffix: str) -> tuple[Fraction, Form]:
    if suffix in _DECIMAL:
        return Fraction(10) ** _DECIMAL[suffix], Form.DECIMAL
    if suffix in _BINARY:
        return Fraction(1024) ** _BINARY[suffix], Form.BINARY
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None or len(suffix) > 8 or abs(int(exponent["exponent"])) > _MAX_EXPONENT:
        raise QuantityError(
            f"{text!r} is not a quantity: {suffix!r} is no suffix (known: n u m k M G T P E Ki ... Ei, e3)"
        )
    return Fraction(10) ** int(exponent["exponent"]), Form.EXPONENT


def _cap(number: Fraction, form: Form) -> Fraction:
    fine = number / NANO
    if fine.denominator != 1:
        number = _away_from_zero(fine) * NANO
    return min(number, Fraction(INT64_MAX)) if form is Form.BINARY else number


def _away_from_zero(number: Fraction) -> int:
    size = -(-abs(number.numerator) // number.denominator)
    return size if number >= 0 else -size


def _shorten(number: int, base: int, limit: int) -> tuple[int, int]:
    exponent = 0
    while exponent < limit and number % base == 0:
        number //= base
        exponent += 1
    return number, exponent


def _decimal(value: Fraction, form: Form) -> str:
    exponent = 0
    while value.denominator != 1:
        value *= 1000
        exponent -= 3
    limit = _MAX_EXPONENT if form is Form.EXPONENT else (18 - exponent) // 3
    number, thousands = _shorten(value.numerator, 1000, limit)
    exponent += 3 * thousands
    if form is Form.EXPONENT:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_NAMES[exponent]}"
