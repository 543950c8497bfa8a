"""Random selectors, made from a seed alone: mostly well typed, sometimes not, over the device of ``selectors``."""

from __future__ import annotations

import random
from collections.abc import Callable

_STRINGS = ("'gpu'", "'a'", "''", "'1.2.3'", "'80Gi'", "'x,y'", "'Gpu 7'")
_PATTERNS = (
    "'^g'",
    "'[a-z]+$'",
    "'p.?u'",
    "'(a|b)'",
    "'\\\\d'",
    "'(?i)G(?-i)p'",
    "'(?U)a+?'",
    "'[[:^alpha:]]'",
    "'a**'",
)
_ATTRIBUTES = ("type", "n", "ok", "ver", "names", "nope")


_TIMES = ("timestamp('2024-02-29T23:59:59.5Z')", "timestamp('2020-01-01T01:00:00+05:30')", "timestamp(0)")
_ZONES = ("'UTC'", "'Europe/Berlin'", "'-08:00'", "'5:30'", "'Nowhere'", "")
_CLAUSES = ("%s", "%d", "%f", "%.2f", "%e", "%x", "%b", "%o", "%%", "%", "é")
_URLS = ("'http://a:80/b?c=d#e'", "'/x%2fy'", "'mailto:a@b'", "'http://[::1]:8/'", "'HTTP://u:p@a'", "'x'", "'//a/b'")
_FORMATS = ("dns1123Label", "dns1123Subdomain", "dns1035LabelPrefix", "qualifiedName", "labelValue", "uri", "uuid",
            "byte", "date", "datetime")  # fmt: skip
KINDS = ("boolean", "number", "string", "version", "quantity", "strings", "attribute", "time", "span", "url", "numbers")


class Grammar:
    """Writes expressions of a wanted type."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"cel:{seed}")

    def pick(self, options: tuple[str, ...]) -> str:
        """One of them."""
        return self._random.choice(options)

    def expression(self) -> str:
        """A selector."""
        return self.boolean(self._random.randint(1, 4))

    def of(self, kind: str, depth: int) -> str:
        """An expression of a type, now and then of another one."""
        if self._random.random() < 0.03:
            kind = self.pick(KINDS)
        made: Callable[[int], str] = getattr(self, kind)
        return made(depth - 1)

    def boolean(self, depth: int) -> str:
        """A condition."""
        if depth <= 0:
            return self.pick(("true", "false", "device.allowMultipleAllocations", 'device.attributes["d.io"].ok'))
        kind = self._random.randrange(19)

        def a(what: str) -> str:
            return self.of(what, depth)

        b = a
        makers: list[Callable[[], str]] = [
            lambda: f"({a('boolean')} && {b('boolean')})",
            lambda: f"({a('boolean')} || {b('boolean')})",
            lambda: f"!{a('boolean')}",
            lambda: f"({a('boolean')} ? {b('boolean')} : {a('boolean')})",
            lambda: f"({a('number')} {self.pick(('<', '<=', '>', '>=', '==', '!='))} {b('number')})",
            lambda: f"({a('string')} {self.pick(('==', '!=', '<'))} {b('string')})",
            lambda: f"{a('string')}.{self.pick(('startsWith', 'endsWith', 'contains'))}({b('string')})",
            lambda: f"{a('string')}.matches({self.pick(_PATTERNS)})",
            lambda: f"{a('version')}.{self.pick(('isGreaterThan', 'isLessThan'))}({b('version')})",
            lambda: f"{a('quantity')}.{self.pick(('isGreaterThan', 'isLessThan'))}({b('quantity')})",
            lambda: f"({a('string')} in {b('strings')})",
            lambda: f"{a('strings')}.{self.pick(('exists', 'all', 'exists_one'))}(x, x != {b('string')})",
            lambda: f"has({self.domain()}.{self.pick(_ATTRIBUTES)})",
            lambda: f"({self.of('attribute', depth)} == {self.of(self.pick(('string', 'number', 'boolean')), depth)})",
            lambda: f"({a('time')} {self.pick(('<', '<=', '>', '==', '!='))} {b('time')})",
            lambda: f"({a('span')} {self.pick(('<', '>=', '==', '!='))} {b('span')})",
            lambda: f"({a('url')} == {b('url')})",
            lambda: f"format.{self.pick(_FORMATS)}().validate({a('string')}).hasValue()",
            lambda: f"({a('numbers')} == {b('numbers')})",
        ]
        return makers[kind]()

    def domain(self) -> str:
        """The attributes of a domain."""
        name = self.pick(("d.io", "other.io", "nobody.io"))
        return f'device.attributes["{name}"]'

    def attribute(self, _: int) -> str:
        """An attribute of whatever type."""
        name = self.pick(_ATTRIBUTES)
        if self._random.random() < 0.2:
            default = self.pick(("1", "true", "'a'"))
            return f"{self.domain()}.?{name}.orValue({default})"
        return f"{self.domain()}.{name}"

    def number(self, depth: int) -> str:
        """An integer, or now and then another number."""
        if depth <= 0:
            return self.pick(("0", "1", "-3", "4", "1.5", "9223372036854775807", 'device.attributes["d.io"].n'))
        makers: list[Callable[[], str]] = [
            lambda: f"({self.of('number', depth)} {self.pick(('+', '-', '*', '/', '%'))} {self.of('number', depth)})",
            lambda: f"size({self.of(self.pick(('string', 'strings')), depth)})",
            lambda: f"int({self.of('string', depth)})",
            lambda: f"{self.of('version', depth)}.{self.pick(('major', 'minor', 'patch'))}()",
            lambda: f"{self.of('version', depth)}.compareTo({self.of('version', depth)})",
            lambda: f"{self.of('quantity', depth)}.compareTo({self.of('quantity', depth)})",
            lambda: f"{self.of('string', depth)}.indexOf({self.of('string', depth)})",
            lambda: f"sign({self.of('quantity', depth)})",
            lambda: (
                f"{self.of('time', depth)}.get{self.pick(('FullYear', 'DayOfYear', 'Date', 'Hours', 'Minutes'))}"
                f"({self.pick(_ZONES)})"
            ),
            lambda: f"{self.of('span', depth)}.get{self.pick(('Hours', 'Minutes', 'Seconds', 'Milliseconds'))}()",
            lambda: f"{self.of('numbers', depth)}.{self.pick(('sum', 'min', 'max'))}()",
        ]
        return self._random.choice(makers)()

    def string(self, depth: int) -> str:
        """A text."""
        if depth <= 0:
            return self.pick((*_STRINGS, "device.driver", 'device.attributes["d.io"].type'))
        makers: list[Callable[[], str]] = [
            lambda: f"({self.of('string', depth)} + {self.of('string', depth)})",
            lambda: f"{self.of('string', depth)}.{self.pick(('lowerAscii', 'upperAscii', 'trim'))}()",
            lambda: f"{self.of('string', depth)}.substring({self.pick(('0', '1', '2', '9'))})",
            lambda: f"{self.of('string', depth)}.replace({self.of('string', depth)}, {self.of('string', depth)})",
            lambda: f"string({self.of(self.pick(('number', 'boolean')), depth)})",
            lambda: f"{self.of('strings', depth)}.join({self.pick(_STRINGS)})",
            lambda: f"{self.of('strings', depth)}[{self.pick(('0', '1', '5'))}]",
            lambda: f"cel.bind(v, {self.of('string', depth)}, v + v)",
            lambda: f"string({self.of(self.pick(('time', 'span')), depth)})",
            lambda: f"{self.of('url', depth)}.get{self.pick(('Scheme', 'Host', 'Hostname', 'Port', 'EscapedPath'))}()",
            lambda: f"strings.quote({self.of('string', depth)})",
            lambda: self.formatted(depth),
        ]
        return self._random.choice(makers)()

    def formatted(self, depth: int) -> str:
        """A format with about as many values as it has clauses."""
        clauses = [self.pick(_CLAUSES) for _ in range(self._random.randint(0, 3))]
        values = [
            self.of(self.pick(("number", "string", "boolean", "time", "strings", "span")), depth)
            for each in clauses
            if each not in ("%%", "é")
        ]
        if self._random.random() < 0.1:
            values.append("1")
        text = "'" + " ".join(clauses) + "'"
        values = [f"dyn({each})" if self._random.random() < 0.4 else each for each in values]
        return f"{text if self._random.random() < 0.7 else f'({text} + device.driver)'}.format([{', '.join(values)}])"

    def time(self, depth: int) -> str:
        """A timestamp."""
        if depth <= 0 or self._random.random() < 0.4:
            return self.pick(_TIMES)
        makers: list[Callable[[], str]] = [
            lambda: f"({self.of('time', depth)} {self.pick(('+', '-'))} {self.of('span', depth)})",
            lambda: f"timestamp({self.of(self.pick(('number', 'string')), depth)})",
        ]
        return self._random.choice(makers)()

    def span(self, depth: int) -> str:
        """A duration."""
        if depth <= 0 or self._random.random() < 0.4:
            return self.pick(("duration('1h')", "duration('-1.5s')", "duration('0')", "duration('2562047h')"))
        makers: list[Callable[[], str]] = [
            lambda: f"({self.of('span', depth)} {self.pick(('+', '-'))} {self.of('span', depth)})",
            lambda: f"({self.of('time', depth)} - {self.of('time', depth)})",
            lambda: f"duration({self.of('string', depth)} + 's')",
        ]
        return self._random.choice(makers)()

    def url(self, depth: int) -> str:
        """A URL."""
        if depth <= 0 or self._random.random() < 0.6:
            return f"url({self.pick(_URLS)})"
        return f"url('http://a/' + {self.of('string', depth)})"

    def numbers(self, depth: int) -> str:
        """A list of integers."""
        if depth <= 0:
            return self.pick(("[3, 1, 2]", "[]", "lists.range(3)"))
        makers: list[Callable[[], str]] = [
            lambda: f"{self.of('numbers', depth)}.sortBy(x, {self.pick(('-x', 'x', 'x % 2', '[x]'))})",
            lambda: f"{self.of('numbers', depth)}.{self.pick(('sort', 'reverse', 'distinct'))}()",
            lambda: f"{self.of('numbers', depth)}.map(x, x + {self.of('number', depth)})",
            lambda: f"[{self.of('number', depth)}, {self.of('number', depth)}]",
            lambda: f"{self.of('numbers', depth)}.slice(0, {self.pick(('1', '2', '9'))})",
        ]
        return self._random.choice(makers)()

    def strings(self, depth: int) -> str:
        """A list of texts."""
        if depth <= 0:
            return self.pick(("['gpu', 'a']", "[]", "['a']", "[device.driver]"))
        makers: list[Callable[[], str]] = [
            lambda: f"[{self.of('string', depth)}, {self.of('string', depth)}]",
            lambda: f"{self.of('string', depth)}.split(',')",
            lambda: f"{self.of('strings', depth)}.filter(x, x != {self.of('string', depth)})",
            lambda: f"{self.of('strings', depth)}.map(x, x + {self.pick(_STRINGS)})",
            lambda: f"({self.of('strings', depth)} + {self.of('strings', depth)})",
            lambda: f"{self.of('strings', depth)}.{self.pick(('sort', 'distinct', 'reverse'))}()",
        ]
        return self._random.choice(makers)()

    def version(self, depth: int) -> str:
        """A semantic version."""
        if depth <= 0 or self._random.random() < 0.6:
            return self.pick(
                ("semver('1.2.3')", "semver('1.2.3-rc.1')", "semver('v2', true)", 'device.attributes["d.io"].ver')
            )
        return f"semver({self.of('string', depth)})"

    def quantity(self, depth: int) -> str:
        """A quantity."""
        if depth <= 0 or self._random.random() < 0.5:
            known = (
                'device.capacity["d.io"].memory',
                'device.capacity["other.io"].cores',
                'device.capacity["d.io"].nope',
            )
            return self.pick(("quantity('1Gi')", "quantity('1500m')", *known))
        return f"{self.of('quantity', depth)}.{self.pick(('add', 'sub'))}({self.of('quantity', depth)})"


def expression(seed: int) -> str:
    """The selector of a seed."""
    return Grammar(seed).expression()
