"""The package itself: everything that it names is there, and nothing is loaded before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import native.nvml


@pytest.mark.parametrize("name", native.nvml.__all__)
def test_what_the_package_names_can_be_had(name: str) -> None:
    assert getattr(native.nvml, name).__name__ == name


def test_another_name_is_an_error_of_python_s_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NvmlSesion'"):
        native.nvml.NvmlSesion  # noqa: B018


def test_the_errors_come_without_sessions_and_backends() -> None:
    program = "import sys, native.nvml.errors; print([m for m in sys.modules if m.startswith('native.nvml.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['native.nvml.errors']"
