"""Characters to tokens: the lexical part of the CEL grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .errors import CompileError

RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)

_DIGITS = r"[0-9]+(?:[eE][+-]?[0-9]+)"
_FRACTION = r"[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?"
_NUMBER = rf"0[xX][0-9a-fA-F]+[uU]?|{_FRACTION}|{_DIGITS}|[0-9]+[uU]?"
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\r\n\f]+|//[^\n]*)
  | (?P<string>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"|'''|"|'))
  | (?P<number>{_NUMBER})
  | (?P<ident>[_a-zA-Z][_a-zA-Z0-9]*)
  | (?P<quoted>`[a-zA-Z0-9_.\-/ ]+`)
  | (?P<operator>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,\[\](){{}}])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'",
                   '"': '"', "`": "`", "?": "?"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ident, quoted, int, uint, double, string, bytes, operator or end; ``position`` an offset."""

    kind: str
    text: str
    value: object
    position: int


def tokens(source: str) -> list[Token]:
    """All tokens, an ``end`` token last.

    Raises:
        CompileError: a character or literal that CEL does not have.
    """
    found, position = [], 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise CompileError(f"Syntax error: token recognition error at: {source[position]!r}", source, position)
        kind = match.lastgroup
        if kind == "string":
            token, position = _string(source, position, match.group())
            found.append(token)
            continue
        if kind != "space":
            found.append(_plain(source, kind or "", match.group(), position))
        position = match.end()
    found.append(Token("end", "", None, len(source)))
    return found


def _plain(source: str, kind: str, text: str, position: int) -> Token:
    if kind == "number":
        return _number(source, text, position)
    if kind == "quoted":
        return Token("quoted", text[1:-1], None, position)
    return Token(kind, text, None, position)


def _number(source: str, text: str, position: int) -> Token:
    lower = text.lower()
    if not lower.startswith("0x") and ("." in lower or "e" in lower):
        return Token("double", text, float(text), position)
    unsigned = lower.endswith("u")
    digits = lower.removesuffix("u")
    significant = digits.removeprefix("0x").lstrip("0")
    if len(significant) > len(str(2**64)):  # Python reads no number of thousands of digits
        raise CompileError(f"invalid {'u' * unsigned}int literal", source, position)
    number = int(significant or "0", 16 if digits.startswith("0x") else 10)
    if number > (2**64 - 1 if unsigned else 2**63):
        raise CompileError(f"invalid {'u' * unsigned}int literal", source, position)
    return Token("uint" if unsigned else "int", text, number, position)


def _string(source: str, start: int, opening: str) -> tuple[Token, int]:
    quote = opening.lstrip("rRbB")
    prefix = opening[: len(opening) - len(quote)].lower()
    raw, as_bytes = "r" in prefix, "b" in prefix
    position, parts = start + len(opening), []
    while not source.startswith(quote, position):
        if position >= len(source) or (len(quote) == 1 and source[position] in "\r\n"):
            raise CompileError("Syntax error: a string is not closed", source, start)
        if source[position] == "\\" and not raw:
            text, position = _escape(source, position, as_bytes)
            parts.append(text)
        else:
            character = source[position]
            parts.append(character.encode() if as_bytes else character)
            position += 1
    end = position + len(quote)
    if as_bytes:
        return Token(
            "bytes", source[start:end], b"".join(p if isinstance(p, bytes) else p.encode() for p in parts), start
        ), end
    return Token("string", source[start:end], "".join(str(part) for part in parts), start), end


def _escape(source: str, position: int, as_bytes: bool) -> tuple[str | bytes, int]:
    kind = source[position + 1 : position + 2]
    if kind in _ESCAPES:
        return _ESCAPES[kind], position + 2
    lengths = {"x": 2, "X": 2, "u": 4, "U": 8}
    if kind in lengths:
        first, length, base = position + 2, lengths[kind], 16
    elif kind in "0123":
        first, length, base = position + 1, 3, 8
    else:
        raise CompileError(f"Syntax error: invalid escape \\{kind}", source, position)
    digits = source[first : first + length]
    try:
        code = int(digits if len(digits) == length else "", base)
        if as_bytes and kind not in "uU":
            return bytes([code]), first + length
        return chr(code), first + length
    except (ValueError, OverflowError) as error:
        raise CompileError(f"Syntax error: invalid escape \\{kind}{digits}", source, position) from error
