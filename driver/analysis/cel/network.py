"""IP addresses and networks in expressions, as Kubernetes' libraries have them: no zones, no IPv4 inside IPv6."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from .errors import EvaluationError

Address = IPv4Address | IPv6Address

_BROADCAST: Final = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class IP:
    """An address."""

    address: Address

    def __len__(self) -> int:
        """The size that costs count with: bytes."""
        return self.address.max_prefixlen // 8

    def __str__(self) -> str:
        return str(self.address)

    def is_global_unicast(self) -> bool:
        """As Go says it: private addresses are among them."""
        one = self.address
        return not (one.is_unspecified or one.is_loopback or one.is_multicast or one.is_link_local or one == _BROADCAST)

    def is_link_local_multicast(self) -> bool:
        """224.0.0.0/24 and ff02::/16 (and their like in other flags)."""
        packed = self.address.packed
        if self.address.version == 4:
            return packed[:3] == b"\xe0\x00\x00"
        return packed[0] == 0xFF and packed[1] & 0x0F == 0x02


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with the length of a prefix."""

    address: Address
    bits: int

    def __len__(self) -> int:
        """The size that costs count with: bytes of the prefix."""
        return math.ceil(self.bits / 8)

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    def masked(self) -> Cidr:
        """The first address of the network."""
        return Cidr(ip_network(str(self), strict=False).network_address, self.bits)

    def contains(self, other: Address) -> bool:
        """Whether the address lies in the network."""
        return other.version == self.address.version and Cidr(other, self.bits).masked() == self.masked()

    def covers(self, other: Cidr) -> bool:
        """Whether the whole other network lies in this one."""
        return self.bits <= other.bits and self.contains(other.address)


def ip(text: str) -> IP:
    """Read an address.

    Raises:
        EvaluationError: not an address, or one with a zone or with IPv4 inside IPv6.
    """
    try:
        address = ip_address(text)
    except ValueError as error:
        raise EvaluationError(f"IP Address {text!r} parse error during conversion from string: {error}") from error
    return IP(_allowed(text, address))


def cidr(text: str) -> Cidr:
    """Read a network.

    Raises:
        EvaluationError: as ``ip``, or no length of a prefix.
    """
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()) or (len(bits) > 1 and bits[0] == "0"):
        raise EvaluationError(f"network address parse error during conversion from string: {text!r}")
    found = ip(address).address
    if int(bits) > found.max_prefixlen:
        raise EvaluationError(f"network address parse error during conversion from string: {text!r}: prefix too long")
    return Cidr(found, int(bits))


def _allowed(text: str, address: Address) -> Address:
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        raise EvaluationError(f"{text!r}: zones and IPv4-mapped IPv6 addresses are not allowed")
    return address


def is_ip(text: str) -> bool:
    """Whether ``ip`` reads the text."""
    try:
        ip(text)
    except EvaluationError:
        return False
    return True


def is_cidr(text: str) -> bool:
    """Whether ``cidr`` reads the text."""
    try:
        cidr(text)
    except EvaluationError:
        return False
    return True
