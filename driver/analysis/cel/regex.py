"""RE2 patterns on Python's engine: parsed as Go's ``regexp/syntax`` parses them, and written out for ``re``.

Every part is written so that it needs no flag from outside: letters, ``.``, ``^`` and ``$`` carry theirs with them.
What RE2 refuses is refused. Scripts (``p{Greek}``) are not known, since Python has no table of them.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from .errors import EvaluationError, UnsupportedError

Ranges = tuple[tuple[int, int], ...]

_LAST: Final = sys.maxunicode
_MOST: Final = 1000
"""How often something may be repeated, nested repetitions multiplied."""
_POSIX: Final[dict[str, Ranges]] = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": ((48, 57),), "graph": ((33, 126),),
    "lower": ((97, 122),), "print": ((32, 126),), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)), "upper": ((65, 90),), "word": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
_PERL: Final[dict[str, Ranges]] = {
    "d": _POSIX["digit"], "w": _POSIX["word"], "s": ((9, 10), (12, 13), (32, 32)),
}  # fmt: skip
_CONTROLS: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_WORD: Final = "[0-9A-Za-z_]"
_BOUNDARY: Final = rf"(?:(?<!{_WORD})(?={_WORD})|(?<={_WORD})(?!{_WORD}))"
_NO_BOUNDARY: Final = rf"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))"
_COUNTED: Final = re.compile(r"\{([0-9]+)(,([0-9]*))?\}", re.ASCII)
_NAMED: Final = re.compile(r"\(\?P?<([A-Za-z0-9_]+)>", re.ASCII)
_FLAGS: Final = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])", re.ASCII)
_HEX: Final = re.compile(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})", re.ASCII)
_OCTAL: Final = re.compile(r"\\(0[0-7]{0,2}|[1-7][0-7]{1,2})", re.ASCII)
_CATEGORY: Final = re.compile(r"\\([pP])(?:\{(\^?)([A-Za-z_]+)\}|([A-Za-z]))", re.ASCII)


class PatternError(Exception):
    """RE2 would reject the pattern."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern for Python.

    Raises:
        PatternError: RE2 rejects it.
        UnsupportedError: RE2 accepts it, this translation does not know how.
    """
    try:
        return re.compile(_Translator(pattern).run())
    except RecursionError as error:
        raise UnsupportedError("the pattern nests more deeply than this translation can follow") from error
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error


@dataclass(slots=True)
class _Group:
    """A group that is open: the flags outside it, and what is written of it so far."""

    flags: frozenset[str]
    opening: str
    parts: list[str] = field(default_factory=list)
    worst: int = 1
    """The most repetitions within one another that are in it."""
    last: int = 0
    """The same of the last part; 0 where nothing is there that could be repeated."""
    repeated: bool = False
    """Whether the last part is a repetition, which cannot be repeated itself."""


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._flags: frozenset[str] = frozenset()
        self._groups = [_Group(self._flags, "")]

    def run(self) -> str:
        while self._at < len(self._pattern):
            self._step()
        if len(self._groups) > 1:
            raise PatternError(f"missing closing ): `{self._pattern}`")
        return "".join(self._groups[0].parts)

    def _step(self) -> None:
        character = self._pattern[self._at]
        if character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif character == "|":
            self._groups[-1].last = 0
            self._groups[-1].parts.append("|")
            self._groups[-1].repeated = False
            self._at += 1
        elif character in "*+?":
            self._repeat(character, 1, 1)
        elif character == "{" and (found := _COUNTED.match(self._pattern, self._at)):
            self._count(found)
        elif character == "[":
            self._class()
        elif character == "\\":
            self._escape()
        else:
            self._put(self._plain(character), 1)

    def _plain(self, character: str) -> str:
        if character == ".":
            return "(?s:.)" if "s" in self._flags else r"[^\n]"
        if character in "^$":
            return f"(?m:{character})" if "m" in self._flags else r"(?:\A)" if character == "^" else r"(?:\Z)"
        return self._literal(character)

    def _literal(self, text: str) -> str:
        written = re.escape(text)
        return f"(?i:{written})" if "i" in self._flags else written if len(text) == 1 else f"(?:{written})"

    def _put(self, text: str, length: int, worst: int = 1) -> None:
        group = self._groups[-1]
        group.parts.append(text)
        group.worst, group.last, group.repeated = max(group.worst, worst), worst, False
        self._at += length

    def _open(self) -> None:
        if len(self._groups) > _MOST:
            raise PatternError(f"expression nests too deeply: `{self._pattern}`")
        rest = self._pattern[self._at :]
        if not rest.startswith("(?"):
            self._groups.append(_Group(self._flags, "("))
            self._at += 1
            return
        if named := _NAMED.match(rest):
            self._groups.append(_Group(self._flags, "("))
            self._at += named.end()
            return
        found = _FLAGS.match(rest)
        if found is None:
            raise PatternError(f"invalid or unsupported Perl syntax: `{rest[:3]}`")
        before, self._flags = self._flags, (self._flags | set(found[1])) - set(found[2] or "")
        if found[3] == ":":
            self._groups.append(_Group(before, "(?:"))
        self._at += found.end()

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError(f"unexpected ): `{self._pattern}`")
        group = self._groups.pop()
        self._flags = group.flags
        self._put(f"{group.opening}{''.join(group.parts)})", 1, group.worst)

    def _count(self, found: re.Match[str]) -> None:
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else -1
        if least > _MOST or most > _MOST or 0 <= most < least:
            raise PatternError(f"invalid repeat count: `{found.group()}`")
        self._repeat(found.group(), len(found.group()), least if most < 0 else most)

    def _repeat(self, operator: str, length: int, times: int) -> None:
        group = self._groups[-1]
        if group.last == 0:
            raise PatternError(f"missing argument to repetition operator: `{operator}`")
        self._at += length
        lazy = self._pattern.startswith("?", self._at)
        self._at += lazy
        if group.repeated:
            raise PatternError(f"invalid nested repetition operator: `{operator}`")
        worst = group.last * times if times >= 2 else group.last
        if worst > _MOST:
            raise PatternError(f"invalid repeat count: `{operator}`")
        group.parts[-1] += operator + ("?" if lazy != ("U" in self._flags) else "")
        group.worst, group.last, group.repeated = max(group.worst, worst), worst, True

    def _escape(self) -> None:
        rest = self._pattern[self._at :]
        kind = rest[1:2]
        if kind == "Q":
            self._quoted(rest[2:])
        elif kind in ("A", "z"):
            self._put(r"(?:\A)" if kind == "A" else r"(?:\Z)", 2)
        elif kind in ("b", "B"):
            self._put(_BOUNDARY if kind == "b" else _NO_BOUNDARY, 2)
        elif (found := self._set(rest)) is not None:
            self._put(self._written(found[0]), found[1])
        else:
            code, length = _character(rest)
            self._put(self._literal(chr(code)), length)

    def _quoted(self, rest: str) -> None:
        text, end, _ = rest.partition(r"\E")
        for character in text:
            self._put(self._literal(character), 0)
        self._at += 2 + len(text) + len(end)

    def _set(self, rest: str) -> tuple[Ranges, int] | None:
        """The characters that an escape such as ``\\d`` or ``\\pL`` stands for, and its length."""
        kind = rest[1:2]
        if kind and kind in "dwsDWS":
            ranges = _PERL[kind.lower()]
            return ranges if kind.islower() else _complement(ranges), 2
        if not kind or kind not in "pP":
            return None
        found = _CATEGORY.match(rest)
        if found is None:
            raise PatternError(f"invalid character class range: `{rest[:2]}`")
        ranges = _category(found[3] or found[4])
        return _complement(ranges) if (kind == "P") != bool(found[2]) else ranges, found.end()

    def _class(self) -> None:
        start = self._at
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise PatternError(f"missing closing ]: `{self._pattern[start:]}`")
            ranges += self._member()
            first = False
        self._put(self._written(tuple(ranges), negated=negated), 1)

    def _member(self) -> Ranges:
        """One entry of a class, passed over."""
        rest = self._pattern[self._at :]
        if posix := re.match(r"\[:(\^?)([a-z]+):\]", rest):
            if posix[2] not in _POSIX:
                raise PatternError(f"invalid character class range: `{posix.group()}`")
            self._at += posix.end()
            return _complement(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]]
        found = self._set(rest) if rest[0] == "\\" else None
        if found is not None:
            self._at += found[1]
            return found[0]
        low = self._end()
        rest = self._pattern[self._at :]
        if not rest.startswith("-") or rest[1:2] in ("", "]"):
            return ((low, low),)
        self._at += 1
        high = self._end()
        if high < low:
            raise PatternError(f"invalid character class range: `{chr(low)}-{chr(high)}`")
        return ((low, high),)

    def _end(self) -> int:
        """A character of a class, passed over."""
        rest = self._pattern[self._at :]
        code, length = _character(rest) if rest.startswith("\\") else (ord(rest[0]), 1)
        self._at += length
        return code

    def _written(self, ranges: Ranges, *, negated: bool = False) -> str:
        text = "".join(_written(each) for each in ranges)
        whole = f"[{'^' * negated}{text}]" if text else (r"(?s:.)" if negated else r"[^\s\S]")
        return f"(?i:{whole})" if "i" in self._flags else whole


def _written(ends: tuple[int, int]) -> str:
    low, high = (f"\\U{code:08x}" for code in ends)
    return low if ends[0] == ends[1] else f"{low}-{high}"


def _character(rest: str) -> tuple[int, int]:
    """The code of an escaped character, and the length of the escape."""
    kind = rest[1:2]
    if kind == "":
        raise PatternError("trailing backslash at end of expression: ``")
    if found := _HEX.match(rest):
        code = int(found[1] or found[2], 16)
        if code <= _LAST:
            return code, found.end()
    elif found := _OCTAL.match(rest):
        return int(found[1], 8), found.end()
    elif kind in _CONTROLS:
        return _CONTROLS[kind], 2
    elif kind.isascii() and not kind.isalnum():
        return ord(kind), 2
    raise PatternError(f"invalid escape sequence: `\\{kind}`")


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found, following = [], 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return (*found, (following, _LAST)) if following <= _LAST else tuple(found)


@lru_cache(maxsize=64)
def _category(name: str) -> Ranges:
    """The characters of a general category (``L``, ``Lu``) or of ``Any``, by Python's table of Unicode."""
    if name == "Any":
        return ((0, _LAST),)
    known = {unicodedata.category(chr(code)) for code in range(0x3000)} - {"Cn"} | {"Co", "Cs"}
    if name not in known | {each[0] for each in known} - {"C"}:  # what C is changed with Go 1.25
        raise UnsupportedError(f"the pattern's \\p{{{name}}} is not supported: only general categories are known")
    found: list[tuple[int, int]] = []
    for code in range(_LAST + 1):
        category = unicodedata.category(chr(code))
        if not category.startswith(name):
            continue
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return tuple(found)


def _pattern(pattern: str) -> re.Pattern[str]:
    try:
        return compiled(pattern)
    except PatternError as error:
        raise EvaluationError(f"error parsing regexp: {error}") from error


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found anywhere in the text."""
    return _pattern(pattern).search(text) is not None


def find(text: str, pattern: str) -> str:
    """The first match, or an empty text."""
    found = _pattern(pattern).search(text)
    return found.group() if found else ""


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """All matches, or the first ``limit``; after an empty one the search goes on behind the next character, and an
    empty one right behind another does not count."""
    whole = _pattern(pattern)
    found: list[str] = []
    at, before = 0, -1
    while len(found) != limit and at <= len(text) and (match := whole.search(text, at)):
        if match.end() == at:
            counts, at = match.start() != before, at + 1
        else:
            counts, at = True, match.end()
        before = match.end()
        if counts:
            found.append(match.group())
    return found
