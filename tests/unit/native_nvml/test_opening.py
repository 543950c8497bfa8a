"""Which backend is taken, and what a file that is no NVML library leads to."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from native.nvml import make_backend, open_library
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.protocol import Nvml


def test_auto_takes_the_compiled_extension(node) -> None:
    library = open_library(node.library)
    assert (library.name, library.library_path) == ("cffi", str(node.library))
    assert isinstance(library, Nvml)
    library.close()


def test_without_the_extension_auto_falls_back_with_a_warning(
    node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("cffi_backend", "cffi_library", "cffi_mig"):
        monkeypatch.delitem(sys.modules, f"native.nvml.{module}", raising=False)
    monkeypatch.delattr("native._nvml", raising=False)
    monkeypatch.setitem(sys.modules, "native._nvml", None)
    with caplog.at_level(logging.WARNING, logger="native.nvml.opening"):
        library = open_library(node.library)
    assert library.name == "pynvml"
    assert "pynvml" in caplog.text
    library.close()
    with pytest.raises(ImportError):
        make_backend(node.library, "cffi")


def test_an_unknown_backend_is_refused_with_those_that_there_are(node) -> None:
    with pytest.raises(ValueError, match=r"'ctypes'.*auto, cffi, pynvml"):
        make_backend(node.library, "ctypes")


def test_making_a_backend_loads_nothing(tmp_path: Path, backend_name: str) -> None:
    library = make_backend(tmp_path / "absent.so", backend_name)
    assert library.progress() is None
    library.close()


def test_a_link_is_followed_to_the_file_that_it_names_now(node, tmp_path: Path, backend_name: str) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(node.library)
    assert make_backend(link, backend_name).library_path == str(node.library)


def test_mps_enumeration_is_taken_out_of_the_environment(node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_MPS_DEVICE_ENUMERATION", "1")
    make_backend(node.library)
    assert "NVML_MPS_DEVICE_ENUMERATION" not in os.environ


@pytest.mark.bug("B21")
@pytest.mark.parametrize("kind", ["absent", "folder", "text"])
def test_a_path_that_is_no_library_is_named_with_the_loaders_words(
    tmp_path: Path, backend_name: str, kind: str
) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("not ELF")
    library = make_backend(path, backend_name)
    with pytest.raises(LibraryUnavailableError, match="cannot load the NVML library") as caught:
        library.open()
    assert caught.value.code == NvmlReturn.LIBRARY_NOT_FOUND
    assert str(path) in str(caught.value)
    library.close()


def test_a_library_that_is_not_nvml_is_said_to_be_none(make_node: Callable[..., object], backend_name: str) -> None:
    node = make_node(absent=("nvmlInitWithFlags", "nvmlInit_v2"))
    library = make_backend(node.library, backend_name)  # type: ignore[attr-defined]  # StubNode lives in conftest
    with pytest.raises(LibraryUnavailableError, match="is not an NVML library"):
        library.open()


def test_importing_the_package_loads_neither_pynvml_nor_the_extension() -> None:
    code = "import sys, native.nvml; print([m for m in ('pynvml', 'native._nvml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
