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


def _declarations() -> str:
    """The part of nvml_door.h between its cdef marks: one declaration for the compiler and for cffi."""
    header = (_HERE / "nvml_door.h").read_text(encoding="utf-8")
    return header.split("/* cdef begin */", 1)[1].split("/* cdef end */", 1)[0]


ffibuilder = FFI()
ffibuilder.cdef("typedef struct { ...; } door_progress;" + _declarations())
ffibuilder.set_source(
    "native._nvml",
    '#include "nvml_door.h"',
    sources=[f"{_SOURCES}/nvml_door.c"],
    depends=[f"{_SOURCES}/nvml_door.h", f"{_SOURCES}/vendor/nvml.h"],
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
