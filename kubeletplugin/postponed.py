"""Modules that are imported when something in them is first used, not when they are named.

``import grpc`` imports its asyncio half, ``grpc.aio``, and asyncio with it: forty modules and 3 MiB of memory that a
plugin with threads never uses, and a sixth of the way from its exec to its registration socket. protobuf imports its
messages in Python beside those in C, with a reader and writer of their text: another 1.5 MiB and a tenth of the way.
``http.server``, behind the metrics, imports the names of all characters in HTML for its pages of errors. A program that
minds calls ``postpone`` before its first ``import grpc``. Whoever does use them gets them, whole.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_UNUSED = ("asyncio", "grpc.aio", "google.protobuf.internal.python_message", "html")


def postpone() -> None:
    """Let grpc and protobuf be imported without what a plugin does not use. What is imported already stays as it is."""
    if "grpc" not in sys.modules:
        for name in _UNUSED:
            sys.modules.setdefault(name, _Postponed(name))


class _Postponed(ModuleType):
    """Stands in ``sys.modules`` until its first use, then gives way to the module and looks like it.

    ``importlib.util.LazyLoader`` would be imported by the second ``import`` statement that names it.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for __spec__ and __path__ without wanting the module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)
