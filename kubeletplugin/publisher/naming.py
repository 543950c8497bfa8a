"""Names of ResourceSlices: the position in the pool first, because the scheduler reads slices in the order of names.

The scheme is that of k8s.io/dynamic-resource-allocation/resourceslice from 1.36 on, so that either implementation
recognises the slices of the other and an exchange of drivers deletes nothing.
"""

from __future__ import annotations

MIN_INDEX_LENGTH = 5
_HEX = frozenset("0123456789abcdefABCDEF")


def index_length(count: int) -> int:
    """Digits that the index needs in a pool of ``count`` slices (hexadecimal, at least 5)."""
    return max(MIN_INDEX_LENGTH, len(f"{max(count - 1, 0):x}"))


def encode_index(index: int, length: int) -> str:
    """``index`` in hexadecimal, padded with zeros to ``length``."""
    return f"{index:0{length}x}"


def decode_index(name: str, length: int) -> int | None:
    """The index that ``name`` begins with; None where the name is not of this scheme or has another length."""
    prefix, dash, _ = name.partition("-")
    if not dash or len(prefix) != length or not _HEX.issuperset(prefix):
        return None
    return int(prefix, 16)


def generate_name(index: int, length: int, driver_name: str, owner_name: str) -> str:
    """``metadata.generateName``, without the owner where there is none.

    The API server cuts it to 58 characters and appends five random ones.
    """
    return "-".join(filter(None, (encode_index(index, length), driver_name, owner_name))) + "-"
