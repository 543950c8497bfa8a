"""Texts as Go writes and reads them: quoted strings, floating point numbers, decimal integers."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from .errors import EvaluationError

_NAMED: Final = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
                 "\\": r"\\", '"': r"\""}  # fmt: skip
_SHORTEST: Final = 6
"""From this power of ten on the shortest form of a number has an exponent."""


def quoted(text: str) -> str:
    """The text in double quotes as ``%q`` writes it; a lone byte that is no UTF-8 is a surrogate of Python's."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def special(value: float) -> str:
    """``NaN``, ``+Inf`` or ``-Inf``; empty for a finite number."""
    if math.isnan(value):
        return "NaN"
    return "" if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


def general(value: float) -> str:
    """The shortest digits that name the number, with an exponent where it is large or small (``%g``)."""
    if text := special(value):
        return text
    sign, digits, exponent = _shortest(value)
    power = len(digits) + exponent - 1
    if -4 <= power < _SHORTEST:
        return plain(value)
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{power:+03d}"


def plain(value: float) -> str:
    """The shortest digits that name the number, never with an exponent."""
    if text := special(value):
        return text
    sign, digits, exponent = _shortest(value)
    return sign + format(Decimal(f"{digits}E{exponent}"), "f")


def _shortest(value: float) -> tuple[str, str, int]:
    found = Decimal(repr(abs(value))).as_tuple()
    digits = "".join(map(str, found.digits)).lstrip("0") or "0"
    short = digits.rstrip("0") or "0"
    exponent = int(found.exponent) + len(digits) - len(short) if value else 0
    return "-" if math.copysign(1, value) < 0 else "", short, exponent


def atoi(text: str) -> int:
    """A decimal integer with an optional sign.

    Raises:
        EvaluationError: the text is none.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise EvaluationError(f"strconv.Atoi: parsing {quoted(text)}: invalid syntax")
    if not -(2**63) <= int(text) < 2**63:
        raise EvaluationError(f"strconv.Atoi: parsing {quoted(text)}: value out of range")
    return int(text)
