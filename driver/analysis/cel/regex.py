"""RE2 patterns on Python's engine: translated, rejected where RE2 rejects them, or reported as not known here."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from .errors import EvaluationError, UnsupportedError

_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
    "upper": "A-Z", "word": r"0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_GROUP: Final = re.compile(r"\(\?(?:P<[A-Za-z_]\w*>|<[A-Za-z_]\w*>|[imsU]*(?:-[imsU]+)?[:)])", re.ASCII)
_PLAIN_ESCAPES: Final = frozenset("dDwWbBafnrtv") | frozenset(r"\.+*?()|[]{}^$/-!\"#%&',:;<=>@`~ _")


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
        return re.compile(_Translator(pattern).run(), re.ASCII)
    except RecursionError as error:
        raise PatternError("expression nests too deeply") from error
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._out = pattern, 0, [""]

    def run(self) -> str:
        while self._at < len(self._pattern):
            self._step()
        return "".join(self._out)

    def _step(self) -> None:
        character = self._pattern[self._at]
        if character == "\\":
            self._escape(in_class=False)
        elif character == "[":
            self._class()
        elif character == "(":
            self._group()
        elif character == "$":
            self._put(r"\Z" if not self._multiline() else "$")
        elif character in "*+?}" and self._pattern[self._at + 1 : self._at + 2] == "+":
            raise PatternError(f"invalid nested repetition operator: `{character}+`")
        else:
            self._put(character)

    def _multiline(self) -> bool:
        return bool(re.search(r"\(\?[is]*m", self._pattern))

    def _put(self, text: str, length: int = 1) -> None:
        self._out.append(text)
        self._at += length

    def _group(self) -> None:
        rest = self._pattern[self._at :]
        if not rest.startswith("(?"):
            self._put("(")
            return
        found = _GROUP.match(rest)
        if found is None:
            raise PatternError(f"invalid or unsupported Perl syntax: `{rest[:3]}`")
        text = found.group()
        if "U" in text or (text.endswith(")") and self._at > 0):
            raise UnsupportedError(f"the pattern's flags {text} are not supported: write them at the start, without U")
        self._put(text.replace("(?<", "(?P<"), len(text))

    def _escape(self, *, in_class: bool) -> None:
        rest = self._pattern[self._at :]
        kind = rest[1:2]
        if kind == "":
            raise PatternError("trailing backslash at end of expression")
        if kind in "zA" and not in_class:
            self._put(r"\Z" if kind == "z" else r"\A", 2)
        elif kind == "s":
            self._put(r"\t\n\f\r " if in_class else r"[\t\n\f\r ]", 2)
        elif kind == "S" and not in_class:
            self._put(r"[^\t\n\f\r ]", 2)
        elif kind == "x" and (found := re.match(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})", rest)):
            self._put(re.escape(chr(int(found[1] or found[2], 16))), found.end())
        elif kind in _PLAIN_ESCAPES:
            self._put(rest[:2] if kind not in "!\"#%&',:;<=>@`~ _/" else re.escape(kind), 2)
        elif kind in "pPQC01234567S":
            if kind in "1234567":
                raise PatternError(f"invalid escape sequence: `\\{kind}`")
            raise UnsupportedError(f"the pattern's \\{kind} is not supported")
        else:
            raise PatternError(f"invalid escape sequence: `\\{kind}`")

    def _class(self) -> None:
        self._put("[")
        if self._pattern.startswith("^", self._at):
            self._put("^")
        first = True
        while first or not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise PatternError("missing closing ]")
            rest = self._pattern[self._at :]
            found = re.match(r"\[:(\^?)([a-z]+):\]", rest)
            if found:
                if found[1] or found[2] not in _POSIX:
                    raise UnsupportedError(f"the pattern's {found.group()} is not supported")
                self._put(_POSIX[found[2]], found.end())
            elif rest[0] == "\\":
                self._escape(in_class=True)
            else:
                self._put(re.escape(rest[0]) if rest[0] in "[]&~|" else rest[0])
            first = False
        self._put("]")


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
    """All matches, or the first ``limit``."""
    found = [match.group() for match in _pattern(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]
