"""What the agent's threads will use, imported by one thread, in one order, behind the registration socket.

Two threads that import modules which import each other can wait for each other; and while one imports, another that
wants the same module stands still. So no thread imports what another may import too: the main thread does it ahead,
first what the reading of the node needs, then, beside the reading, what the API server needs.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kubeletplugin.client import KubeClient

_BACKENDS: Final = {"auto": "native.nvml.cffi_backend", "cffi": "native.nvml.cffi_backend"}
"""pynvml is a last resort, and the thread that falls back to it is the only one that imports it."""


def import_reading(nvml_backend: str) -> None:
    """All that the thread that reads the node uses, and NVML's own."""
    import_module("driver.node")
    if (name := _BACKENDS.get(nvml_backend)) is not None:
        with contextlib.suppress(ImportError):  # said, with its consequence, where the backend is made
            import_module(name)


def import_publishing(client: KubeClient) -> None:
    """All that publishing uses; the client's TLS is made as well."""
    import_module("kubeletplugin.publisher")
    client.warm_up()
