"""Reading one mapping of a profile strictly: each value checked, each error naming its field, nothing left unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from native.mock.layout import Text
from native.mock.pcie import ProfileError

_MISSING = object()


class Fields:
    """A mapping under a path. Getters take a key out; ``done`` complains about the keys that nobody took."""

    def __init__(self, mapping: object, path: str = "") -> None:
        if not isinstance(mapping, Mapping):
            raise ProfileError(path or "profile", f"a mapping is expected, not {type(mapping).__name__}")
        self._left: dict[Any, Any] = dict(mapping)
        self.path = path

    def where(self, key: str) -> str:
        """The full name of a field."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, default: Any = _MISSING) -> Any:
        """The raw value.

        Raises:
            ProfileError: it is missing and has no default.
        """
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise ProfileError(self.where(key), "is missing")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        """A string; a YAML number is refused because it may have lost digits (``1.10``)."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise ProfileError(self.where(key), f"{value!r} is not a string (put it in quotes)")
        return value

    def number(self, key: str, default: Any = _MISSING, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """An integer, or -1 for an explicit ``null``."""
        value = self.take(key, default)
        if value is None:
            return -1
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ProfileError(self.where(key), f"{value!r} is not a whole number from {low} to {high}")
        return value

    def flag(self, key: str, default: Any = _MISSING) -> int:
        """1, 0, or -1 for an explicit ``null`` ("the board does not have it")."""
        value = self.take(key, default)
        if value is None:
            return -1
        if not isinstance(value, bool):
            raise ProfileError(self.where(key), f"{value!r} is neither true, false nor null")
        return int(value)

    def choice(self, key: str, choices: Mapping[str, int], default: Any = _MISSING) -> int:
        """The number that a word stands for, or -1 for an explicit ``null``."""
        value = self.take(key, default)
        if value is None:
            return -1
        if not isinstance(value, str) or value not in choices:
            raise ProfileError(self.where(key), f"{value!r} is none of {', '.join(choices)}")
        return choices[value]

    def string(self, key: str, default: Any = _MISSING) -> Text:
        """What a string getter shall give: text, ``{hex: "ff fe"}`` for foreign bytes, or null.

        ``unterminated: true`` beside ``text`` or ``hex`` makes the getter fill the whole buffer without a NUL.
        """
        value = self.take(key, default)
        if value is None:
            return Text(absent=True)
        if isinstance(value, str):
            return _checked(self.where(key), value.encode())
        inner = Fields(value, self.where(key))
        unterminated = inner.flag("unterminated", False) == 1
        raw = inner.take("hex", None)
        if raw is None:
            data = inner.text("text").encode()
        else:
            try:
                data = bytes.fromhex(str(raw))
            except ValueError as error:
                raise ProfileError(inner.where("hex"), f"{raw!r} is not hexadecimal") from error
        inner.done()
        return _checked(self.where(key), data, unterminated=unterminated)

    def section(self, key: str, default: Any = _MISSING) -> Fields:
        """A mapping below this one."""
        return Fields(self.take(key, default), self.where(key))

    def sequence(self, key: str, default: Any = _MISSING) -> list[Any]:
        """A list."""
        value = self.take(key, default)
        if not isinstance(value, list):
            raise ProfileError(self.where(key), "a list is expected")
        return value

    def names(self) -> list[Any]:
        """The keys that nobody took yet."""
        return list(self._left)

    def peek(self, key: str) -> Any:
        """The raw value, left in place; None where there is none."""
        return self._left.get(key)

    def rest(self) -> dict[Any, Any]:
        """Everything that nobody took yet, taken."""
        rest, self._left = self._left, {}
        return rest

    def done(self) -> None:
        """End of the mapping.

        Raises:
            ProfileError: a key was never read: it is unknown here, or misspelt.
        """
        if self._left:
            raise ProfileError(self.where(str(min(self._left, key=str))), "is unknown here")


def _checked(where: str, data: bytes, *, unterminated: bool = False) -> Text:
    if len(data) > 120:
        raise ProfileError(where, f"{len(data)} bytes, at most 120")
    return Text(data, unterminated=unterminated)
