"""JSON logs: one object a line on stderr, with the operation that a line belongs to.

An operation is one RPC of the kubelet (or one round of the agent's own work); its id is in every line that was
logged on its behalf, in whatever room, so that one grep shows what happened to a claim.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, operation, and whatever ``extra`` held."""

    def __init__(self, operation: Callable[[], str | None]) -> None:
        super().__init__()
        self._operation = operation

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; control characters in messages are escaped by the encoding, so a line stays a line."""
        seconds = time.gmtime(record.created)
        entry: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (operation := self._operation()) is not None:
            entry["operation"] = operation
        for key, value in vars(record).items():
            if key not in _STANDARD and key not in entry:
                entry[key] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return _encode(entry).decode()
        except UnicodeEncodeError:
            # Lone surrogates, from bytes of hardware or files that were no UTF-8: better a mark than no line.
            return _encode({key: _encodable(value) for key, value in entry.items()}).decode()


def _encodable(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def setup(level: str, operation: Callable[[], str | None] = lambda: None) -> None:
    """Send everything at or above ``level`` to stderr as JSON. Replaces handlers that were there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(operation))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    # Facts that no line shows need not be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Nor who wrote it (the logging HOWTO, "Optimization").
    logging._srcfile = None  # noqa: SLF001
