"""Tokens to a tree: the grammar of CEL with optional field and index syntax, by precedence climbing."""

from __future__ import annotations

from typing import Final

from . import macros
from .errors import CompileError, UnsupportedError
from .lexer import RESERVED, Token, tokens
from .tree import Call, Ident, ListNode, Literal, MapNode, Node, Select, qualified

MAX_DEPTH: Final = 250
"""How deep expressions may nest, as upstream's parser allows."""

_LEVELS: Final = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
                  "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}  # fmt: skip
_WRAPPED: Final = ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "List", "String", "UInt32", "UInt64", "")
_MESSAGES: Final = frozenset(
    [
        *(f"google.protobuf.{kind}Value" for kind in _WRAPPED),
        *(f"google.protobuf.{kind}" for kind in ("Any", "Duration", "Empty", "Struct", "Timestamp")),
        "kubernetes.DRADevice",
    ]
)
"""What upstream lets an expression make by ``name{field: value}``."""
_CONSTANTS: Final = {"true": ("bool", True), "false": ("bool", False), "null": ("null", None)}


def parse(source: str, *, quoted: bool = True) -> Node:
    """The tree of an expression, macros expanded; ``quoted`` says whether fields may be written in backquotes.

    Raises:
        CompileError: not an expression; the position is where the parser stopped.
        UnsupportedError: nested more deeply than this parser can follow.
    """
    parser = _Parser(source, quoted)
    try:
        tree = parser.expression()
    except RecursionError as error:
        raise UnsupportedError("the expression is nested more deeply than this parser can follow", source) from error
    if parser.now.kind != "end":
        raise parser.unexpected()
    return tree


def _balanced(name: str, terms: list[Node], marks: list[int]) -> Node:
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    left, right = _balanced(name, terms[:middle], marks), _balanced(name, terms[middle:], marks[middle:])
    return Call(marks[middle - 1], name, [left, right])


class _Parser:
    def __init__(self, source: str, quoted: bool) -> None:
        self._source, self._quoted = source, quoted
        self._tokens = tokens(source)
        self._at = 0
        self._depth = 0

    @property
    def now(self) -> Token:
        return self._tokens[self._at]

    def unexpected(self) -> CompileError:
        text = self.now.text or "the end of the expression"
        return CompileError(f"Syntax error: unexpected {text}", self._source, self.now.position)

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CompileError(f"expression recursion limit exceeded: {MAX_DEPTH}", self._source, self.now.position)
        condition = self._binary(1)
        mark = self.now
        if self._take("?"):
            truthy = self._binary(1)
            self._expect(":")
            condition = Call(mark.position, "_?_:_", [condition, truthy, self.expression()])
        self._depth -= 1
        return condition

    def _binary(self, level: int) -> Node:
        left = self._unary()
        while True:
            operator = self.now
            mine = _LEVELS.get(operator.text, 0) if operator.kind in ("operator", "ident") else 0
            if mine < level:
                return left
            if operator.text in ("&&", "||"):
                left = self._chain(operator.text, mine, left)
                continue
            self._at += 1
            right = self._binary(mine + 1)
            name = "@in" if operator.text == "in" else f"_{operator.text}_"
            left = Call(operator.position, name, [left, right])

    def _chain(self, operator: str, level: int, first: Node) -> Node:
        """``a && b && c ...`` as a balanced tree: the meaning is the same and many conditions do not nest deeply."""
        terms, marks = [first], []
        while self.now.kind == "operator" and self.now.text == operator:
            marks.append(self.now.position)
            self._at += 1
            terms.append(self._binary(level + 1))
        return _balanced(f"_{operator}_", terms, marks)

    def _unary(self) -> Node:
        mark = self.now
        if mark.kind == "operator" and mark.text in "!-":
            count = 0
            while self._take(mark.text):
                count += 1
            if mark.text == "-" and count == 1 and self.now.kind in ("int", "double"):
                return self._member(self._negative())
            operand = self._unary_operand(mark.text)
            return operand if count % 2 == 0 else Call(mark.position, f"{mark.text}_", [operand])
        return self._member(self._primary())

    def _unary_operand(self, operator: str) -> Node:
        if self.now.kind == "operator" and self.now.text in "!-" and self.now.text != operator:
            raise self.unexpected()
        return self._member(self._primary())

    def _negative(self) -> Node:
        token = self.now
        self._at += 1
        return Literal(token.position, token.kind, -token.value if isinstance(token.value, (int, float)) else 0)

    def _primary(self) -> Node:
        token = self.now
        if token.kind in ("int", "uint", "double", "string", "bytes"):
            self._at += 1
            if token.kind == "int" and token.value == 2**63:
                raise CompileError("invalid int literal", self._source, token.position)
            return Literal(token.position, token.kind, token.value)
        if self._take("("):
            inner = self.expression()
            self._expect(")")
            return inner
        if self._take("["):
            return self._list(token.position)
        if self._take("{"):
            return self._map(token.position)
        return self._name(token)

    def _name(self, token: Token) -> Node:
        dotted = self._take(".")
        name = self.now
        if name.kind != "ident":
            raise self.unexpected()
        self._at += 1
        if not dotted and name.text in _CONSTANTS:
            return Literal(name.position, *_CONSTANTS[name.text])
        if name.text in RESERVED or name.text == "in":
            raise CompileError(f"reserved identifier: {name.text}", self._source, name.position)
        if self._take("("):
            return self._call(name, None)
        return Ident(token.position, name.text)

    def _member(self, operand: Node) -> Node:
        while True:
            token = self.now
            if self._take("."):
                operand = self._select(operand, token)
            elif self._take("["):
                optional = self._take("?")
                index = self.expression()
                self._expect("]")
                operand = Call(token.position, "_[?_]" if optional else "_[_]", [operand, index])
            elif token.text == "{" and token.kind == "operator" and isinstance(operand, (Ident, Select)):
                raise self._message(qualified(operand), token)
            else:
                return operand

    def _message(self, name: str, token: Token) -> CompileError:
        if name in _MESSAGES:
            return UnsupportedError(f"messages ({name}{{...}}) are not supported", self._source, token.position)
        return CompileError(f"undeclared reference to '{name}' (in container '')", self._source, token.position)

    def _select(self, operand: Node, dot: Token) -> Node:
        optional = self._take("?")
        name = self.now
        if name.kind not in ("ident", "quoted") or name.text in ("true", "false", "null", "in"):
            raise self.unexpected()
        if name.kind == "quoted" and not self._quoted:
            raise CompileError("unsupported syntax: '`'", self._source, name.position)
        self._at += 1
        if not optional and name.kind == "ident" and self._take("("):
            return self._call(name, operand)
        return Select(dot.position, operand, name.text, optional=optional)

    def _call(self, name: Token, target: Node | None) -> Node:
        args = []
        while not self._take(")"):
            args.append(self.expression())
            if self.now.text != ")":
                self._expect(",")
                if self.now.text == ")":
                    raise self.unexpected()
        expanded = macros.expand(name.text, target, args, name.position, self._source)
        return expanded or Call(name.position, name.text, args, target)

    def _list(self, position: int) -> Node:
        entries: list[Node] = []
        optional: set[int] = set()
        while not self._take("]"):
            if self._take("?"):
                optional.add(len(entries))
            entries.append(self.expression())
            if self.now.text != "]":
                self._expect(",")
        return ListNode(position, entries, frozenset(optional))

    def _map(self, position: int) -> Node:
        entries: list[tuple[Node, Node]] = []
        optional: set[int] = set()
        while not self._take("}"):
            if self._take("?"):
                optional.add(len(entries))
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
            if self.now.text != "}":
                self._expect(",")
        return MapNode(position, entries, frozenset(optional))

    def _take(self, text: str) -> bool:
        if self.now.kind == "operator" and self.now.text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self.unexpected()
