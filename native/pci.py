"""One spelling for PCI addresses: the kernel's, whatever spelling NVML, sysfs or a user came with."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\A([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])\Z")
"""The domain, whose digits vary, and the rest, which has just the digits that the kernel prints."""


def canonical_address(text: str) -> str:
    """The kernel's spelling of a PCI address: lower case, domain of four digits, more where the value needs them.

    NVML prints ``0000000F:01:00.0`` for what sysfs calls ``000f:01:00.0``; VMD domains are wider than four digits
    (``10000:01:00.0``). The domain is read as a number, never cut out of the text.

    Raises:
        ValueError: not a PCI address.
    """
    match = _ADDRESS.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address (expected for example 0000:1b:00.0)")
    return f"{int(match[1], 16):04x}:{match[2].lower()}"
