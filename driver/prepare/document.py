"""Reading JSON that somebody else wrote: every step knows its path, and a wrong turn says where and what was met.

Works on parsed values (dict, list, str, int, float, bool, None). Nothing here recurses, so depth cannot hurt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

_SHOWN = 48
_LONGEST_PATH = 300

_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (tuple, "a list"),
    (dict, "an object"),
)


class DocumentError(ValueError):
    """A value is missing or of the wrong kind.

    Attributes:
        path: where, as a JSON path ("status.allocation.devices.results[0].device").
        problem: what, without the path.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{_harmless(path) or 'the document'}: {problem}")
        self.path = path
        self.problem = problem


def type_name(value: object) -> str:
    """``a string``, ``an object``, ``null``: what a value is, for people."""
    if value is None:
        return "null"
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), f"a {type(value).__name__}")


def shown(value: object) -> str:
    """A short, harmless rendering for a message: strings and numbers quoted and cut, containers by kind only."""
    if isinstance(value, str):
        return ascii(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very large number"
    if isinstance(value, int | float):
        return str(value)
    return type_name(value)


def _harmless(path: str) -> str:
    """A path for a message: its keys are other people's, and may be long or steer a terminal."""
    cut = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def suggestion(word: str, known: Collection[str]) -> str:
    """``; did you mean "interval"?`` for a word that is nearly one of ``known``, else what is known."""
    folded = {name.casefold(): name for name in known}
    import difflib  # for a user's misspelling only

    close = difflib.get_close_matches(word[:64].casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{folded[close[0]]}"?'
    return f"; known here: {', '.join(sorted(known))}" if known else ""


class Cursor(msgspec.Struct, frozen=True):
    """A value in a document and the way to it."""

    value: object
    path: str = ""

    def error(self, problem: str) -> DocumentError:
        """An error about this value."""
        return DocumentError(self.path, problem)

    def as_object(self) -> Mapping[str, object]:
        """The value as an object with string keys, else DocumentError."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be an object, is {type_name(self.value)}")
        for key in self.value:
            if not isinstance(key, str):
                raise self.error(f"has a key that is no string: {shown(key)}")
        return self.value

    def find(self, key: str) -> Cursor | None:
        """The member of that name; None where it is absent or null."""
        value = self.as_object().get(key)
        return None if value is None else Cursor(value, f"{self.path}.{key}" if self.path else key)

    def get(self, key: str) -> Cursor:
        """The member of that name; DocumentError where it is absent or null."""
        found = self.find(key)
        if found is None:
            raise DocumentError(f"{self.path}.{key}" if self.path else key, "is missing")
        return found

    def elements(self) -> Iterator[Cursor]:
        """The elements of a list."""
        if not isinstance(self.value, list | tuple):
            raise self.error(f"must be a list, is {type_name(self.value)}")
        for index, value in enumerate(self.value):
            yield Cursor(value, f"{self.path}[{index}]")

    def members(self) -> Iterator[tuple[str, Cursor]]:
        """The members of an object whose keys are data (a map)."""
        for key, value in self.as_object().items():
            yield key, Cursor(value, f"{self.path}[{shown(key)}]")

    def text(self) -> str:
        """The value as a string."""
        if not isinstance(self.value, str):
            raise self.error(f"must be a string, is {type_name(self.value)}")
        return self.value

    def boolean(self) -> bool:
        """The value as a boolean."""
        if not isinstance(self.value, bool):
            raise self.error(f"must be true or false, is {type_name(self.value)} ({shown(self.value)})")
        return self.value

    def integer(self) -> int:
        """The value as a whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error(f"must be a whole number, is {type_name(self.value)} ({shown(self.value)})")
        return self.value
