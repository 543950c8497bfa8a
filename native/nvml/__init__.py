"""NVML: a typed Protocol, its errors, the thread that every call runs in, and two backends that must agree."""

from native.nvml.opening import make_backend, open_library
from native.nvml.session import NvmlSession, WedgedGpu
from native.nvml.watching import EventWatcher, WatchState
from native.nvml.worker import LoadedLibrary

__all__ = ["EventWatcher", "LoadedLibrary", "NvmlSession", "WatchState", "WedgedGpu", "make_backend", "open_library"]
