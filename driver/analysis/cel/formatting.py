"""``"...".format([...])``: the clauses of cel-go's string library, at run time and, for constants, before it.

Numbers of ``%f`` and ``%e`` are written for en_US by upstream's ``golang.org/x/text``: groups of three, ``∞``, and
powers of ten with raised digits. There the digits after ``%.`` are the precision of ``%f``, but the width of ``%e``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from .errors import EvaluationError, UnsupportedError
from .gotext import atoi, general, quoted, special
from .times import Duration, Timestamp
from .tree import ListNode, MapNode, Node
from .types import Type
from .values import TypeValue, UInt, type_name

_PRECISION: Final = 6
_MOST: Final = 300
"""Digits after the point; what upstream's library does with more is its own secret."""
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXTS: Final = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
_RULES: Final = {
    "s": f"string clause can only be used on {_TEXTS}",
    "d": "decimal clause can only be used on integers",
    "f": "fixed-point clause can only be used on doubles",
    "e": "scientific clause can only be used on doubles",
    "b": "only integers and bools can be formatted as binary",
    "x": "only integers, byte buffers, and strings can be formatted as hex",
    "o": "octal clause can only be used on integers",
}
_TYPES: Final = {
    "s": frozenset(("list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration", "type",
                    "null")),
    "d": frozenset(("int", "uint")),
    "f": frozenset(("double", "string")),
    "e": frozenset(("double", "string")),
    "b": frozenset(("int", "uint", "bool")),
    "x": frozenset(("int", "uint", "string", "bytes")),
    "o": frozenset(("int", "uint")),
}  # fmt: skip

Clause = tuple[str, int | None]
"""A letter and the number between ``%.`` and it."""


def clauses(text: str) -> Iterator[str | Clause]:
    """The plain parts of a format and its clauses, in order; what is wrong is found only when it is reached.

    Raises:
        EvaluationError: a clause that does not exist or does not end.
    """
    at = 0
    while at < len(text):
        stop = text.find("%", at)
        if stop < 0:
            yield text[at:]
            return
        if stop > at:
            yield text[at:stop]
        if text.startswith("%", stop + 1):
            yield "%"
            at = stop + 2
            continue
        clause, at = _clause(text, stop + 1)
        yield clause


def _clause(text: str, at: int) -> tuple[Clause, int]:
    number: int | None = None
    if text.startswith(".", at):
        end = at + 1
        while end < len(text) and text[end].isascii() and text[end].isdigit():
            end += 1
        if end >= len(text):
            raise EvaluationError("could not find end of precision specifier")
        number, at = atoi(text[at + 1 : end]), end
    letter = text[at : at + 1]
    if letter == "":
        return ("", None), at
    if letter not in "sdfebxXo":
        raise EvaluationError(f"could not parse formatting clause: unrecognized formatting clause {quoted(letter)}")
    return (letter, number), at + 1


def run(text: str, args: list[object]) -> str:
    """The text with its clauses filled in.

    Raises:
        EvaluationError: a clause without a value, or with one of a type that it does not write.
        UnsupportedError: more digits than this evaluator writes as upstream does.
    """
    made, used = [], 0
    for part in clauses(text):
        if isinstance(part, str):
            made.append(part)
            continue
        if used >= len(args):
            raise EvaluationError(f"index {used} out of range")
        made.append(_write(part, args[used]))
        used += 1
    return "".join(made)


def _write(clause: Clause, value: object) -> str:
    letter, number = clause
    if letter == "":
        raise EvaluationError("unexpected end of string")
    kind = letter.lower()
    if letter in "fe":
        return _number(letter, number, value)
    if kind == "s":
        return string(value)
    if isinstance(value, bool):
        if kind == "b":
            return "1" if value else "0"
    elif isinstance(value, int):
        return format(value, letter)
    elif kind == "x" and isinstance(value, (str, bytes)):
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        return data.hex().upper() if letter == "X" else data.hex()
    raise _refused(kind, type_name(value))


def _refused(kind: str, name: str) -> EvaluationError:
    return EvaluationError(f"error during formatting: {_RULES[kind]}, was given {name}")


def _number(letter: str, number: int | None, value: object) -> str:
    if isinstance(value, str):
        value = _WORDS.get(value, value)
    if not isinstance(value, float):
        raise _refused(letter, type_name(value))
    if number is not None and number > _MOST:
        raise UnsupportedError(f"a format with %.{number}{letter}: more than {_MOST} digits are not supported")
    if letter == "f":
        return _infinite(value) or format(value or 0.0, f",.{_PRECISION if number is None else number}f")
    text = _infinite(value)
    if not text:
        mantissa, _, power = format(value or 0.0, f".{_PRECISION}e").partition("e")
        text = f"{mantissa}×10{power.removeprefix('+').translate(_RAISED)}"
    return text.rjust(_PRECISION if number is None else number)


def _infinite(value: float) -> str:
    return special(value).replace("+Inf", "∞").replace("Inf", "∞")


def string(value: object) -> str:
    """What ``%s`` writes.

    Raises:
        EvaluationError: a value that has no text, or bytes that are none.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, Timestamp, Duration)):
        return str(int(value)) if isinstance(value, UInt) else str(value)
    if isinstance(value, float):
        return general(value)
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        pairs = sorted((_key(key), _literal(inner)) for key, inner in value.items())
        return "{" + ", ".join(f"{key}:{inner}" for key, inner in pairs) + "}"
    raise _refused("s", type_name(value))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EvaluationError(
            "error during formatting: could not convert argument to string: invalid UTF-8 in bytes"
        ) from error


def _literal(value: object) -> str:
    """A value inside a list or map, as CEL would be given it."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f"b{quoted(_decoded(value))}"
    if isinstance(value, Timestamp):
        return f'timestamp("{value}")'
    if isinstance(value, Duration):
        return f'duration("{value}")'
    if isinstance(value, float):
        return f'"{special(value)}"' if special(value) else f"{value:.{_PRECISION}f}"
    if value is None or isinstance(value, (bool, int, list, tuple, dict, TypeValue)):
        return string(value)
    raise EvaluationError(f"error during formatting: no formatting function for {type_name(value)}")


def _key(value: object) -> str:
    if isinstance(value, (str, int)):
        return _literal(value)
    raise EvaluationError(f"error during formatting: no formatting function for map key of type {type_name(value)}")


def problem(text: str, args: ListNode, type_of: Callable[[Node], Type]) -> tuple[Node | None, str]:
    """What upstream's validator says of a constant format and a literal list: the value concerned, and why."""
    used = 0
    try:
        for part in clauses(text):
            if isinstance(part, str):
                continue
            if part[0] == "":
                return None, "unexpected end of string"
            if used >= len(args.entries):
                return None, f"index {used} out of range"
            kind, node = part[0].lower(), args.entries[used]
            wrong = _untold(node, type_of) if kind == "s" else _mistyped(kind, node, type_of)
            if wrong is not None:
                return wrong, f"error during formatting: {_RULES[kind]}, was given {type_of(wrong)}"
            used += 1
    except EvaluationError as error:
        return None, str(error)
    if used < len(args.entries):
        return None, f"too many arguments supplied to string.format (expected {used}, got {len(args.entries)})"
    return None, ""


def _mistyped(kind: str, node: Node, type_of: Callable[[Node], Type]) -> Node | None:
    name = type_of(node).name
    return None if name == "dyn" or name in _TYPES[kind] else node


def _untold(node: Node, type_of: Callable[[Node], Type]) -> Node | None:
    """The first value in a literal that ``%s`` has no text for."""
    if _mistyped("s", node, type_of):
        return node
    inside: list[Node] = []
    if isinstance(node, ListNode):
        inside = node.entries
    elif isinstance(node, MapNode):
        inside = [each for pair in node.entries for each in pair]
    return next((wrong for each in inside if (wrong := _untold(each, type_of)) is not None), None)
