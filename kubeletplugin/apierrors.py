"""How the API server says no: errors with the content of its Status objects, and no answer at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from kubeletplugin.api import JSON

if TYPE_CHECKING:
    import urllib3

_NUMBER = re.compile(r"\A[0-9]{1,6}\Z")
_LONGEST_PAUSE = 999_999
"""Seconds that a server may ask for; more is no wish that anybody would follow."""


class ApiError(Exception):
    """The API server answered with an error.

    Attributes:
        status: HTTP status.
        reason: ``Status.reason`` ("NotFound", "AlreadyExists", "Conflict", "Invalid", "Expired", ...).
        message: ``Status.message``.
        details: ``Status.details`` (kind, name, causes), empty where absent.
        retry_after: seconds after which the server wants to be asked again, None where it did not say.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: JSON | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{message} (HTTP {status} {reason})")
        self.status = status
        self.reason = reason
        self.message = message
        self.details: JSON = details or {}
        self.retry_after = retry_after


class ApiUnreachableError(Exception):
    """No answer came: refused, timed out, reset, not trusted, or not the Kubernetes API. Trying again may help."""


def error_of_answer(response: urllib3.BaseHTTPResponse, data: bytes) -> ApiError:
    """The Status object in the answer; proxies and load balancers send something else, which is kept short."""
    retry_after = _seconds(response.headers.get("Retry-After"))
    try:
        status = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return error_of_status(status, response.status, retry_after)
    text = data[:500].decode("utf-8", "replace").strip() or (response.reason or "no text")
    return ApiError(response.status, response.reason or "Unknown", text, None, retry_after)


def error_of_status(status: JSON, code: int, retry_after: float | None) -> ApiError:
    """A Status object as an error; ``retry_after`` is what the header said, if there was one."""
    details = status.get("details") if isinstance(status.get("details"), dict) else {}
    said = details.get("retryAfterSeconds") if details else None
    if retry_after is None and isinstance(said, int) and 0 < said <= _LONGEST_PAUSE:
        retry_after = float(said)
    reason = str(status.get("reason") or "Unknown")
    return ApiError(code, reason, str(status.get("message") or reason), details, retry_after)


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds; the API server never sends the date form."""
    if header is None or not _NUMBER.match(header.strip()):
        return None
    return float(header.strip())
