"""Reads decoded JSON field by field: right types, a path in every error, and a list of what nobody looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..quantity import Quantity, QuantityError, read

Document = Mapping[str, Any]


class DocumentError(ValueError):
    """A document that cannot be read; ``path`` names document and field."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(f"{path}: {message}")


class Reader:
    """One object of a document. ``unsupported`` collects the paths of fields that are known to nobody here."""

    __slots__ = ("_value", "path", "unsupported")

    def __init__(self, value: object, path: str, unsupported: list[str]) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise DocumentError(path, f"must be an object, is {type(value).__name__}")
        self._value: Mapping[str, Any] = value
        self.path = path
        self.unsupported = unsupported

    @property
    def raw(self) -> Mapping[str, Any]:
        """The object itself."""
        return self._value

    def known(self, names: frozenset[str]) -> None:
        """Report every field that is not among these."""
        if not self._value.keys() <= names:
            self.unsupported += [f"{self.path}.{name}" for name in self._value if name not in names]

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._value.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self._value.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def number(self, name: str, default: int = 0) -> int:
        """An int64."""
        value = self._value.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a number", value)
        return value

    def flag(self, name: str) -> bool | None:
        """A boolean, or None where it is absent."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where it is absent."""
        value = self._value.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "a list of strings", value)
        return tuple(value)

    def quantity(self, name: str) -> Quantity | None:
        """A quantity, or None where it is absent."""
        value = self._value.get(name)
        if value is None:
            return None
        try:
            return read(value)
        except QuantityError as error:
            raise DocumentError(f"{self.path}.{name}", str(error)) from error

    def sub(self, name: str) -> Reader | None:
        """An object inside, or None where it is absent."""
        value = self._value.get(name)
        return None if value is None else Reader(value, f"{self.path}.{name}", self.unsupported)

    def need(self, name: str) -> Reader:
        """An object inside that must be there."""
        found = self.sub(name)
        if found is None:
            raise DocumentError(f"{self.path}.{name}", "is missing")
        return found

    def each(self, name: str) -> Iterator[Reader]:
        """The objects of a list."""
        value = self._value.get(name)
        if value is None:
            return
        if not isinstance(value, (list, tuple)):
            raise self.wrong(name, "a list", value)
        for index, inner in enumerate(value):
            yield Reader(inner, f"{self.path}.{name}[{index}]", self.unsupported)

    def items(self, name: str) -> Iterator[tuple[str, Reader]]:
        """The objects of a map."""
        found = self.sub(name)
        if found is None:
            return
        for key, inner in found.raw.items():
            yield key, Reader(inner, f"{found.path}[{key}]", self.unsupported)

    def wrong(self, name: str, wanted: str, value: object) -> DocumentError:
        """The error of a field of another type."""
        return DocumentError(f"{self.path}.{name}", f"must be {wanted}, is {type(value).__name__}")


def document(value: object, kind: str, unsupported: list[str]) -> tuple[str, str, Reader]:
    """Name, namespace and reader of a whole document; its paths begin with ``Kind/name``."""
    whole = Reader(value, kind, unsupported)
    metadata = whole.sub("metadata")
    name = metadata.text("name") if metadata else ""
    namespace = metadata.text("namespace") if metadata else ""
    full = f"{namespace}/{name}" if namespace else name
    return name, namespace, Reader(value, f"{kind}/{full}", unsupported)
