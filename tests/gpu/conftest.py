"""A machine with NVIDIA GPUs and its driver; without one every test here is skipped and says what is missing.

Nothing here changes a setting, creates or destroys anything, or needs root. ``GPUDRA_TEST_DRIVER_ROOT`` (default
``/``) is where the driver's libraries are; ``GPUDRA_TEST_SYS_ROOT`` and ``GPUDRA_TEST_PROC_ROOT`` are a host's sysfs
and procfs in a container that shows its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from native.driverroot import find_library
from native.nvml import make_backend
from native.nvml.errors import LibraryUnavailableError, NvmlError
from native.nvml.protocol import Nvml
from native.sysfs import HostTopology, read_host

DRIVER_ROOT = Path(os.environ.get("GPUDRA_TEST_DRIVER_ROOT", "/"))
SYS_ROOT = Path(os.environ.get("GPUDRA_TEST_SYS_ROOT", "/sys"))
PROC_ROOT = Path(os.environ.get("GPUDRA_TEST_PROC_ROOT", "/proc"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The libnvidia-ml.so.1 of this machine's driver, never a mock."""
    try:
        path = find_library(DRIVER_ROOT)
        library = make_backend(path, "pynvml")
        library.open()
    except LibraryUnavailableError as error:
        pytest.skip(f"no NVIDIA driver here: {str(error).partition('. Tried')[0]}")
    except NvmlError as error:
        pytest.skip(f"NVML does not start here: {error}")
    try:
        if library.is_mock():
            pytest.skip(f"{path} is the mock: these tests are about hardware")
        if library.device_count() == 0:
            pytest.skip("the driver of this machine sees no GPU")
    finally:
        library.close()
    return path


@pytest.fixture(params=["cffi", "pynvml"])
def library(library_path: Path, request: pytest.FixtureRequest) -> Iterator[Nvml]:
    """The library, open, through each backend."""
    opened = make_backend(library_path, request.param)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def host() -> HostTopology:
    """The machine by sysfs."""
    return read_host(SYS_ROOT, PROC_ROOT)
