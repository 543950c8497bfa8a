"""One spelling for PCI addresses: the kernel's, whatever spelling NVML, sysfs or a user came with."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\A([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")


def canonical_address(text: str) -> str:
    """The kernel's spelling of a PCI address: lower case, domain of four digits, more where the value needs them.

    NVML prints ``0000000F:01:00.0`` for what sysfs calls ``000f:01:00.0``; VMD domains are wider than four digits
    (``10000:01:00.0``). The parts are read as numbers, never cut out of the text.

    Raises:
        ValueError: not a PCI address.
    """
    match = _ADDRESS.match(text)
    if match is None or int(match[3], 16) > 0x1F:
        raise ValueError(f"{text!r} is not a PCI address (expected for example 0000:1b:00.0)")
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
