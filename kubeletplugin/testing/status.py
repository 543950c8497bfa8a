"""Errors as the API server answers them: a Status object with the HTTP code."""

from __future__ import annotations

from collections.abc import Sequence

from kubeletplugin.api import JSON
from kubeletplugin.validation import FieldError


class StatusError(Exception):
    """An answer other than success.

    Attributes:
        code: HTTP status.
        reason: ``Status.reason``.
        details: ``Status.details``.
        retry_after: seconds for the ``Retry-After`` header.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: JSON | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    def document(self) -> JSON:
        """The Status object."""
        status: JSON = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status


def _details(name: str, group: str, kind: str) -> JSON:
    return {"name": name, **({"group": group} if group else {}), "kind": kind}


def _qualified(kind: str, group: str) -> str:
    return f"{kind}.{group}" if group else kind


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def not_found(plural: str, group: str, name: str) -> StatusError:
    """404 for an object."""
    message = f'{_qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(name, group, plural))


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """409 for a creation."""
    message = f'{_qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """409 for an update or a deletion."""
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(name, group, plural))


def invalid_object(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """422 with all faults."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(name, group, kind) | {"causes": [error.cause() for error in errors]}
    return StatusError(422, "Invalid", f'{_qualified(kind, group)} "{name}" is invalid: {joined}', details)


def expired(message: str) -> StatusError:
    """410: list again."""
    return StatusError(410, "Expired", message)
