"""Builds ``native._nvml``, the cffi door to NVML: abi3, links libc and libdl only, knows nothing of CUDA.

``GPUDRA_STRICT_C=1`` turns every warning into an error (developers and CI; a user's compiler may know new warnings).
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

_HERE = Path(__file__).resolve().parent
# setuptools wants paths relative to the folder of setup.py, from which it runs this file.
_SOURCES = "native/csrc"


_PARTS = ("nvml_door", "nvml_mig", "nvml_events", "nvml_health", "nvml_topology")


def _declarations() -> str:
    """What stands between the cdef marks of the headers: one declaration for the compiler and for cffi."""
    parts = []
    for part in _PARTS:
        header = (_HERE / f"{part}.h").read_text(encoding="utf-8")
        parts.append(header.split("/* cdef begin */", 1)[1].split("/* cdef end */", 1)[0])
    return "".join(parts)


ffibuilder = FFI()
ffibuilder.cdef("typedef struct { ...; } door_progress; typedef struct { ...; } door_stop;" + _declarations())
ffibuilder.set_source(
    "native._nvml",
    "\n".join(f'#include "{part}.h"' for part in _PARTS),
    sources=[f"{_SOURCES}/{part}.c" for part in _PARTS],
    depends=[f"{_SOURCES}/{name}" for name in (*(f"{part}.h" for part in _PARTS), "nvml_api.h", "vendor/nvml.h")],
    include_dirs=[_SOURCES],
    libraries=["dl"],
    extra_compile_args=[
        "-std=gnu11",
        "-DNVML_NO_UNVERSIONED_FUNC_DEFS",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror=incompatible-pointer-types",
        *(["-Werror"] if os.environ.get("GPUDRA_STRICT_C") == "1" else []),
    ],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
