"""Inputs that nobody meant to write: valid ones, changed at random, and the classic traps. Same seed, same inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

LONG = 10_240
MAX_INPUT = 200_000

NASTY_NUMBERS: tuple[Any, ...] = (-1, 0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, 0.1, True)
NASTY_TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "../../etc/passwd",
    "/",
    "..",
    "%s%n",
    '\n{"level":"info"}',
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "é" * 65,
    "x" * LONG,
    "9" * 5000,
    "1e999999",
    "-1e-999999",
    "0x10",
    "NaN",
    "Infinity",
    "null",
    "1" * 300 + "Gi",
    "*",
    "a=b",
    "a,b",
    "$(id)",
    "`id`",
    "'",
    '"',
    "\\",
    "٣",
    "1_000",
    "٠٠٠٠:1b:00.0",
    "0000:1b:00.0\n",
)
NASTY_VALUES: tuple[Any, ...] = (*NASTY_NUMBERS, *NASTY_TEXTS, None, [], {}, [[]], {"": None}, [None] * 300)
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"\0",
    b"\xff",
    b"\xc3\x28",
    b"\n",
    b"---\n",
    b"&a [*a]",
    b"!!python/object:os",
    b"1e999999",
    b"9" * 5000,
    b"-",
    b"+",
    b"..",
    b"NaN",
    b"null",
    b"\\ud800",
    b"<<: *x",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"%",
)


def traps() -> list[bytes]:
    """What every parser must survive."""
    laughs = ["a0: &a0 [lol, lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    merges = ["b0: &b0 {x: 1}"] + [f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    return [
        b"",
        b"\0" * 64,
        b"\xff" * 64,
        bytes(range(256)),
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"[" * 500 + b"]" * 500,
        b"- " * 5_000,
        b"{a: " * 3_000,
        b'{"a":1,"a":2}',
        b"1e999999",
        b"-1e999999",
        b"9" * 10_000,
        b"0." + b"9" * 10_000,
        b"(" * 20_000,
        b"!" * 20_000,
        b"a." * 20_000,
        b"x" * LONG,
        b'"' + b"\\u0000" * 2_000 + b'"',
        b'"\\ud800"',
        b"NaN",
        b"\n" * 20_000,
        b"a\r\nb\r\n",
        "\n".join(laughs).encode(),
        "\n".join(merges).encode(),
        b"a: &a [*a]",
        b"--- " * 3_000,
        b'{"items":[' + b"{}," * 5_000,
        b"? " * 3_000,
        b"key: |\n" + b" " * 10_000,
        b"2026-02-30T99:99:99Z",
        b"\x80" * 3,
    ]


class Mutator:
    """Makes inputs of a corpus."""

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        self._corpus = [*corpus] or [b""]
        self._chance = random.Random(seed)
        self._traps = traps()

    def inputs(self, count: int) -> list[bytes]:
        """The corpus, the traps, and so many mutations."""
        return [*self._corpus, *self._traps, *(self.one() for _ in range(count))]

    def one(self) -> bytes:
        """One mutation."""
        data = self._chance.choice(self._corpus)
        if self._chance.random() < 0.6 and (changed := self._structured(data)) is not None:
            data = changed
            if self._chance.random() < 0.7:
                return data
        for _ in range(self._chance.choice([1, 1, 2, 4, 12])):
            data = self._bytes(data)[:MAX_INPUT]
        return data

    def _bytes(self, data: bytes) -> bytes:
        chance = self._chance
        at = chance.randint(0, len(data))
        end = min(len(data), at + chance.choice([1, 1, 4, 16, 256]))
        match chance.randrange(8):
            case 0 if data:
                place = chance.randrange(len(data))
                return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
            case 1:
                return data[:at] + data[end:]
            case 2:
                return data[:at] + data[at:end] * chance.choice([2, 3, 100]) + data[end:]
            case 3:
                return data[:at] + chance.choice(TOKENS) + data[at:]
            case 4:
                return data[:at] + chance.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass") + data[end:]
            case 5:
                return data[:at]
            case 6:
                other = chance.choice(self._corpus)
                return data[:at] + other[chance.randint(0, len(other)) :]
            case _:
                return data[:at] + chance.randbytes(chance.choice([1, 2, 8, 64])) + data[end:]

    def _structured(self, data: bytes) -> bytes | None:
        """The same JSON document with one value changed; None where it is none."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        for _ in range(self._chance.choice([1, 1, 1, 3])):
            document = self._changed(document)
        return json.dumps(document).encode()

    def _changed(self, value: Any, depth: int = 0) -> Any:
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.85:
            key = chance.choice(sorted(value))
            kind = chance.randrange(8)
            if kind == 0:
                return {name: item for name, item in value.items() if name != key}
            if kind == 1:
                return {**value, chance.choice(NASTY_TEXTS): value[key]}
            if kind == 2:
                return {(name.swapcase() if name == key else name): item for name, item in value.items()}
            return {**value, key: self._changed(value[key], depth + 1)}
        if isinstance(value, list) and value and chance.random() < 0.85:
            place = chance.randrange(len(value))
            if chance.random() < 0.2:
                return value * chance.choice([2, 50])
            return [*value[:place], self._changed(value[place], depth + 1), *value[place + 1 :]]
        if chance.random() < 0.05:
            return _deep(value, chance.choice([40, 900]))
        return chance.choice(NASTY_VALUES)


def _deep(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value
