"""Values in the form that the API server takes: versions, strings, quantities, bus addresses. Pure functions.

The rules are those of resource.k8s.io/v1 (pkg/apis/resource/validation): one value that breaks them makes the server
refuse the whole slice, and with it every GPU of the node.
"""

from __future__ import annotations

import re
from typing import Final

MAX_VALUE_BYTES: Final = 64
"""DeviceAttributeMaxValueLength: bytes of UTF-8, not characters."""

_VERSION: Final = re.compile(r"\A[vV]?([0-9]+(?:\.[0-9]+)*)(?:-([^+]*))?(?:\+(.*))?\Z", re.DOTALL)
_LARGEST_NUMBER: Final = 2**64 - 1
"""Version numbers are read into 64 bits by the CEL library."""
_LONGEST_VERSION: Final = 256
"""Nothing longer is read: it could not become a value of 64 bytes that means anything."""
_BUS_ID: Final = re.compile(r"\A[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\Z")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")


def semver(text: str | None) -> str | None:
    """A vendor's version number as a strict semantic version (semver.org 2.0.0), or None where it cannot be one.

    Leading zeros go (``580.159.04`` is 580.159.4), missing numbers are 0 (``535.54`` is 535.54.0), numbers after the
    third become build metadata, which does not count in comparisons (``12.4.131.1`` is 12.4.131+1), and what follows
    a dash is the pre-release (``550.90.07-grid`` is 550.90.7-grid). A semantic version stays as it is.
    """
    text = (text or "").strip()
    match = _VERSION.match(text) if len(text) <= _LONGEST_VERSION else None
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    pre_release = _identifiers(match[2], numeric=True)
    build = [str(number) for number in numbers[3:]] + _identifiers(match[3], numeric=False)
    if max([*numbers, *(int(part) for part in pre_release if part.isdigit())]) > _LARGEST_NUMBER:
        return None
    core = ".".join(str(number) for number in (*numbers, 0, 0)[:3])
    version = core + "-" * bool(pre_release) + ".".join(pre_release) + "+" * bool(build) + ".".join(build)
    return version if len(version) <= MAX_VALUE_BYTES else None


def _identifiers(text: str | None, *, numeric: bool) -> list[str]:
    """Dot-separated identifiers of letters, digits and dashes; with ``numeric``, digits alone lose leading zeros."""
    parts = [re.sub(r"[^0-9A-Za-z-]+", "-", part) for part in (text or "").split(".")]
    return [str(int(part)) if numeric and part.isdigit() else part for part in parts if part]


def clip(text: str) -> str:
    """The text, cut at a character so that its UTF-8 form has at most 64 bytes; blanks at the ends go."""
    data = text.strip().encode("utf-8", "replace")[:MAX_VALUE_BYTES]
    return data.decode("utf-8", "ignore").strip()


def quantity(value: int) -> str:
    """A whole number in the canonical form of a Kubernetes quantity: ``85520809984`` is ``81559Mi``.

    Binary suffixes where 1024 divides the number, decimal ones otherwise: the shortest exact form of its kind, which
    the API server stores unchanged.

    Raises:
        ValueError: the number is negative.
    """
    if value < 0:
        raise ValueError(f"{value} is no size: a capacity cannot be negative")
    base, suffixes = (1024, _BINARY) if value % 1024 == 0 else (1000, _DECIMAL)
    power = 0
    while value and value % base == 0 and power + 1 < len(suffixes):
        value //= base
        power += 1
    return f"{value}{suffixes[power]}"


def bus_id(address: str) -> str | None:
    """The address for ``resource.kubernetes.io/pciBusID``; None for domains of more than four digits (VMD)."""
    return address if _BUS_ID.match(address) else None
