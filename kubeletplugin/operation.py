"""The operation id: one short word per RPC that ties together every log line which the RPC causes.

A logging filter or formatter of the process reads ``operation_id``; handler code runs in the RPC's context and needs to
do nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

operation_id: ContextVar[str] = ContextVar("operation_id", default="")
"""Eight hexadecimal digits inside an RPC or ``operation()``, empty outside."""


def new_operation_id() -> str:
    """A fresh id; unique enough to search a log by, short enough to be read aloud."""
    return os.urandom(4).hex()


@contextmanager
def operation() -> Iterator[str]:
    """Runs the block under a new operation id and yields the id."""
    token = operation_id.set(new_operation_id())
    try:
        yield operation_id.get()
    finally:
        operation_id.reset(token)
