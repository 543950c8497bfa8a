"""Which backend: the compiled extension, else pynvml with a warning."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from native.nvml.protocol import Nvml

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "cffi", "pynvml")
MOCK_MARKER = "gpudra_mock_marker"
"""The symbol by which the mock library announces itself."""
MPS_ENUMERATION = "NVML_MPS_DEVICE_ENUMERATION"

_files_at: dict[str, list[tuple[int, int]]] = {}
_files_lock = threading.Lock()


def path_to_load(path: str) -> str:
    """How to spell ``path`` for dlopen, so that it loads the file that is there now.

    glibc takes a library for loaded already when the path it was asked for is the same, whatever file is there by now.
    That is wrong after an upgrade as long as anybody holds the old one: a thread that was left behind in a call, or
    the event thread. So each file that was seen at a path has a spelling of its own (``/lib/x``, ``/lib/./x``, ...).
    An inode number does not come again while the file it belonged to is still mapped.
    """
    try:
        status = Path(path).stat()
    except OSError:
        return path  # the loader's words for it are the best ones
    with _files_lock:
        files = _files_at.setdefault(path, [])
        file = (status.st_dev, status.st_ino)
        if file not in files:
            files.append(file)
        number = files.index(file)
    folder, name = os.path.split(path)
    return f"{folder}/{'./' * number}{name}"


def make_backend(path: str | os.PathLike[str], backend: str = "auto") -> Nvml:
    """A backend for the library at ``path``, not opened yet.

    Symbolic links in ``path`` are followed here (an upgrade moves the link). ``auto`` takes ``cffi`` and falls back to
    ``pynvml`` with a warning where the extension cannot be imported.

    Raises:
        ValueError: no backend of that name.
        ImportError: ``cffi`` was asked for and the extension is not built.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown NVML backend {backend!r}: use one of {', '.join(BACKENDS)}")
    # NVML 13.5 enumerates MPS partitions instead of GPUs where this is set, and most calls are then not supported.
    os.environ.pop(MPS_ENUMERATION, None)
    resolved = Path(path).resolve()
    if backend != "pynvml":
        try:
            from native.nvml.cffi_backend import CffiNvml
        except ImportError as error:
            if backend == "cffi":
                raise
            logger.warning("the compiled NVML extension is not usable (%s): using pynvml, which is slower", error)
        else:
            return CffiNvml(resolved)
    from native.nvml.pynvml_backend import PynvmlNvml

    return PynvmlNvml(resolved)


def open_library(path: str | os.PathLike[str], backend: str = "auto") -> Nvml:
    """The library at ``path``, loaded and initialised; the caller closes it.

    Raises:
        LibraryUnavailableError: it cannot be loaded, or its driver is not there.
        NvmlError: another failure to initialise.
        ValueError, ImportError: as ``make_backend``.
    """
    library = make_backend(path, backend)
    library.open()
    return library
