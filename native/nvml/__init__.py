"""NVML: a typed Protocol, its errors, the thread that every call runs in, and two backends that must agree."""

from native.nvml.opening import make_backend, open_library

__all__ = ["make_backend", "open_library"]
