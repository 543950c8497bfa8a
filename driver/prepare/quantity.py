"""Kubernetes quantities of memory as whole numbers of bytes.

Source: k8s.io/apimachinery/pkg/api/resource/quantity.go. Only what can be an amount of memory: no sign, no more digits
than fit into 64 bits; fractions of a byte are rounded up, as ``Quantity.Value()`` does.
"""

from __future__ import annotations

import re
from fractions import Fraction

MIB = 1024 * 1024

_QUANTITY = re.compile(r"\A(\d{1,19})(?:\.(\d{0,9}))?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+]?\d{1,2})?\Z", re.ASCII)
_LARGEST = 2**63 - 1
_BINARY = {suffix: 1024 ** (power + 1) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {suffix: Fraction(10) ** power for suffix, power in (("n", -9), ("u", -6), ("m", -3))}
_DECIMAL |= {suffix: Fraction(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")}


def parse_bytes(text: str) -> int:
    """Bytes of a quantity: ``1Gi`` is 1073741824, ``500M`` 500000000, ``1e9`` 1000000000, ``1500m`` 2.

    Raises:
        ValueError: no quantity of memory, or one that does not fit into 63 bits.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError('is no quantity such as "10Gi"')
    whole, fraction, suffix = match.groups()
    number = Fraction(f"{whole}.{fraction or 0}")
    value = number * _factor(suffix or "")
    rounded = -(-value.numerator // value.denominator)
    if rounded > _LARGEST:
        raise ValueError("is too large: the largest quantity is 9223372036854775807")
    return rounded


def _factor(suffix: str) -> Fraction:
    if not suffix:
        return Fraction(1)
    if suffix in _BINARY:
        return Fraction(_BINARY[suffix])
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    return Fraction(10) ** int(suffix[1:])
