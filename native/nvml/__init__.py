"""NVML: a typed Protocol, its errors, the thread that every call runs in, and two backends that must agree.

What is named here is loaded when it is first asked for: the errors and types, which many modules need, come without
sessions, threads and backends.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from native.nvml.opening import make_backend, open_library
    from native.nvml.session import NvmlSession, WedgedGpu
    from native.nvml.watching import EventWatcher, WatchState
    from native.nvml.worker import LoadedLibrary

__all__ = ["EventWatcher", "LoadedLibrary", "NvmlSession", "WatchState", "WedgedGpu", "make_backend", "open_library"]

_PLACES = {
    "EventWatcher": "watching",
    "LoadedLibrary": "worker",
    "NvmlSession": "session",
    "WatchState": "watching",
    "WedgedGpu": "session",
    "make_backend": "opening",
    "open_library": "opening",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
