"""cffi modules have no key in pyproject.toml; everything else is there."""

from setuptools import setup

setup(
    cffi_modules=["native/csrc/build_nvml.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
