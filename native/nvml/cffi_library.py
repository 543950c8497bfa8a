"""The compiled extension as an object: opening and closing, the call under way, and calls about a single GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from native import _nvml
from native.nvml import values
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.opening import MOCK_MARKER, path_to_load
from native.nvml.types import CallInProgress
from native.nvml.values import PciInfo
from native.pci import canonical_address

ffi: Any = _nvml.ffi
lib: Any = _nvml.lib
_ERROR_SIZE = 512
canonical = functools.lru_cache(maxsize=1024)(canonical_address)
"""``canonical_address``, remembered: the same few GPUs are asked for again and again."""


class CffiLibrary:
    """A library that is open, and the batch of GPUs that the call under way is about."""

    name = "cffi"

    def __init__(self, library_path: str | Path) -> None:
        self._path = str(library_path)
        self._door: Any = ffi.NULL
        self._progress: Any = ffi.new("door_progress *")
        self._batch: Any = None

    @property
    def library_path(self) -> str:
        """The file it loads."""
        return self._path

    def open(self) -> None:
        """Load and initialise; does nothing when already open."""
        if self._door:
            return
        out = ffi.new("door **")
        error = ffi.new("char[]", _ERROR_SIZE)
        code = lib.door_open(out, os.fsencode(path_to_load(self._path)), self._progress, error, _ERROR_SIZE)
        words = ffi.string(error).decode(errors="replace")
        if words:
            message = f"cannot load the NVML library {self._path}: {words}"
            raise LibraryUnavailableError("dlopen", NvmlReturn.LIBRARY_NOT_FOUND, message)
        if code == NvmlReturn.FUNCTION_NOT_FOUND:
            message = f"{self._path} is not an NVML library: it has neither nvmlInitWithFlags nor nvmlInit_v2"
            raise LibraryUnavailableError("dlsym", NvmlReturn.LIBRARY_NOT_FOUND, message)
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlInitWithFlags", code, library=self._path)
        self._door = out[0]

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        door, self._door = self._door, ffi.NULL
        self._batch = None
        lib.door_close(door)

    def is_mock(self) -> bool:
        """Whether the library announces itself as the mock."""
        return bool(lib.door_has_symbol(self._opened("dlsym"), MOCK_MARKER.encode()))

    def device_count(self) -> int:
        """nvmlDeviceGetCount_v2."""
        count = ffi.new("unsigned int *")
        code = lib.door_count(self._opened("nvmlDeviceGetCount_v2"), count)
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlDeviceGetCount_v2", code, library=self._path)
        return int(count[0])

    def progress(self) -> CallInProgress | None:
        """The call under way; safe from any thread and after ``close``."""
        seen = ffi.new("door_look_result *")
        lib.door_look(self._progress, seen)
        if seen.call == ffi.NULL:
            return None
        batch = self._batch
        address = None
        if batch is not None and 0 <= seen.gpu < len(batch):
            address = values.pci_address(PciInfo(raw(batch[seen.gpu].address), 0, 0, 0, 0, 0))
        return CallInProgress(ffi.string(seen.call).decode(), address, int(seen.sequence))

    def _opened(self, call: str) -> Any:
        if not self._door:
            raise values.not_open(call)
        return self._door

    def _one(self, address: str) -> Any:
        """A batch of one GPU, which is what calls are about from here on."""
        batch = by_address((address,))
        self._batch = batch
        return batch

    def _check(self, code: int, address: str) -> None:
        """Raise for a call about one GPU that did not succeed."""
        if code != NvmlReturn.SUCCESS:
            call = ffi.string(lib.door_last(self._door)).decode()
            raise values.failure(call, code, canonical_address(address), self._path)


def by_address(addresses: Sequence[str]) -> Any:
    """An array of door_gpu to be looked up by PCI address."""
    batch = ffi.new("door_gpu[]", len(addresses))
    for gpu, address in zip(batch, addresses, strict=True):
        gpu.address = canonical(address).encode()
    return batch


def raw(buffer: Any) -> bytes:
    """The bytes of a C array or struct."""
    return bytes(ffi.buffer(buffer))
