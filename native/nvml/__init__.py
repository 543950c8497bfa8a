"""NVML: a typed Protocol, its errors, the thread that every call runs in, and two backends that must agree."""
