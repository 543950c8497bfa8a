"""Field errors as the API server words them (k8s.io/apimachinery/pkg/util/validation/field)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

Item = TypeVar("Item")


class Kind(enum.Enum):
    """What is wrong; the value is the ``reason`` of a cause in ``Status.details``, the text how a message begins."""

    REQUIRED = ("FieldValueRequired", "Required value")
    INVALID = ("FieldValueInvalid", "Invalid value")
    DUPLICATE = ("FieldValueDuplicate", "Duplicate value")
    NOT_SUPPORTED = ("FieldValueNotSupported", "Unsupported value")
    NOT_FOUND = ("FieldValueNotFound", "Not found")
    FORBIDDEN = ("FieldValueForbidden", "Forbidden")
    TOO_LONG = ("FieldValueTooLong", "Too long")
    TOO_MANY = ("FieldValueTooMany", "Too many")

    @property
    def reason(self) -> str:
        """As in ``Status.details.causes``."""
        return self.value[0]

    @property
    def text(self) -> str:
        """As in messages."""
        return self.value[1]


_WITHOUT_VALUE = frozenset({Kind.REQUIRED, Kind.FORBIDDEN, Kind.TOO_LONG})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault: ``field`` is a path like ``spec.devices[0].name``."""

    kind: Kind
    field: str
    value: Any = None
    detail: str = ""

    @property
    def body(self) -> str:
        """The message without the field."""
        text = self.kind.text
        if self.kind not in _WITHOUT_VALUE:
            text += f": {msgspec.json.encode(self.value).decode()}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"

    def cause(self) -> dict[str, str]:
        """The entry of ``Status.details.causes``."""
        return {"reason": self.kind.reason, "message": self.body, "field": self.field}


Errors: TypeAlias = list[FieldError]


def required(field: str, detail: str = "") -> FieldError:
    """The field has to be there."""
    return FieldError(Kind.REQUIRED, field, "", detail)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """The value cannot be used."""
    return FieldError(Kind.INVALID, field, value, detail)


def forbidden(field: str, detail: str) -> FieldError:
    """The field may not be set here."""
    return FieldError(Kind.FORBIDDEN, field, "", detail)


def too_long(field: str, limit: int) -> FieldError:
    """The text has more than ``limit`` bytes."""
    return FieldError(Kind.TOO_LONG, field, "", f"may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    """The list or map has more than ``limit`` entries."""
    return FieldError(Kind.TOO_MANY, field, count, f"must have at most {limit} items")


def not_supported(field: str, value: str, supported: Iterable[str]) -> FieldError:
    """The value is none of an enumeration."""
    known = ", ".join(f'"{entry}"' for entry in supported)
    return FieldError(Kind.NOT_SUPPORTED, field, value, f"supported values: {known}")


def check_all(field: str, value: str, messages: Iterable[str]) -> Errors:
    """One ``invalid`` for each message about ``value``."""
    return [invalid(field, value, message) for message in messages]


def check_list(
    field: str,
    items: Sequence[Item],
    limit: int,
    check: Callable[[str, Item], Errors],
    key: Callable[[Item], Hashable] | None = None,
    shown: Callable[[Item], Any] | None = None,
) -> Errors:
    """Each item of a list, its length, and (with ``key``) that no two are the same. A list too long is not read on."""
    if len(items) > limit:
        return [too_many(field, len(items), limit)]
    errors = [error for index, item in enumerate(items) for error in check(f"{field}[{index}]", item)]
    if key is not None:
        seen: set[Hashable] = set()
        for index, item in enumerate(items):
            if key(item) in seen:
                errors.append(FieldError(Kind.DUPLICATE, f"{field}[{index}]", (shown or key)(item)))
            seen.add(key(item))
    return errors


def check_map(
    field: str,
    entries: Mapping[str, Item],
    limit: int | None,
    check_key: Callable[[str, str], Errors],
    check: Callable[[str, Item], Errors],
) -> Errors:
    """Each key and value of a map and its size. Errors of a key carry the path of the map, as in the API server."""
    if limit is not None and len(entries) > limit:
        return [too_many(field, len(entries), limit)]
    errors: Errors = []
    for key, entry in entries.items():
        errors += check_key(field, key)
        errors += check(f"{field}[{key}]", entry)
    return errors
