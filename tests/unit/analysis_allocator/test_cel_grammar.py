"""How expressions are read: tokens, precedence, macros, and types found by unification."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import compile_selector
from driver.analysis.cel.errors import CompileError
from driver.analysis.cel.lexer import tokens
from driver.analysis.cel.overloads import declare
from driver.analysis.cel.parser import MAX_DEPTH, parse
from driver.analysis.cel.tree import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from driver.analysis.cel.types import DYN, INT, STRING, Substitution, Type, list_of, map_of, read


def shown(node: Node) -> str:
    """The tree with every operator in brackets, to see what belongs to what."""
    if isinstance(node, Literal):
        return repr(node.value)
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select):
        mark = "?" if node.optional else ""
        text = f"{shown(node.operand)}.{mark}{node.name}"
        return f"has({text})" if node.test else text
    if isinstance(node, ListNode):
        return f"[{', '.join(map(shown, node.entries))}]"
    if isinstance(node, MapNode):
        return "{" + ", ".join(f"{shown(key)}: {shown(value)}" for key, value in node.entries) + "}"
    if isinstance(node, Fold):
        return f"fold({shown(node.range)}, {node.variable}, {shown(node.step)})"
    assert isinstance(node, Call)
    parts = [shown(each) for each in node.args]
    return (
        f"{shown(node.target)}.{node.function}({', '.join(parts)})"
        if node.target
        else f"({node.function} {' '.join(parts)})"
    )


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * 3", "(_+_ 1 (_*_ 2 3))"),
        ("(1 + 2) * 3", "(_*_ (_+_ 1 2) 3)"),
        ("1 - 2 - 3", "(_-_ (_-_ 1 2) 3)"),
        ("a || b && c", "(_||_ a (_&&_ b c))"),
        ("a && b || c", "(_||_ (_&&_ a b) c)"),
        ("a == b && c != d", "(_&&_ (_==_ a b) (_!=_ c d))"),
        ("a ? b : c ? d : e", "(_?_:_ a b (_?_:_ c d e))"),
        ("!a.b", "(!_ a.b)"),
        ("!!a", "a"),
        ("!!!a", "(!_ a)"),
        ("--1", "1"),
        ("-1", "-1"),
        ("- 1", "-1"),
        ("-a", "(-_ a)"),
        ("-1.5", "-1.5"),
        ("a in b", "(@in a b)"),
        ("1 in [1] == true", "(_==_ (@in 1 [1]) True)"),
        ("a.b.c(1)[2].?d", "(_[_] a.b.c(1) 2).?d"),
        ("a[?1]", "(_[?_] a 1)"),
        ("has(a.b)", "has(a.b)"),
        ("[1, 2,]", "[1, 2]"),
        ("{'a': 1, 'b': 2}", "{'a': 1, 'b': 2}"),
        (".a", "a"),
        ("a // the rest\n + b", "(_+_ a b)"),
        ("x.all(y, y > 0)", "fold(x, y, (_&&_ @result (_>_ y 0)))"),
        ("x.exists(y, y)", "fold(x, y, (_||_ @result y))"),
        ("x.map(y, y + 1)", "fold(x, y, (_+_ @result [(_+_ y 1)]))"),
        ("x.filter(y, y)", "fold(x, y, (_?_:_ y (_+_ @result [y]) @result))"),
        ("x.has(y)", "x.has(y)"),
        ("a.`b-c`", "a.b-c"),
    ],
)
def test_operators_bind_as_the_grammar_says(text: str, tree: str) -> None:
    assert shown(parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12", "int", 12),
        ("0x1F", "int", 31),
        ("12u", "uint", 12),
        ("0xFFU", "uint", 255),
        ("1.5", "double", 1.5),
        (".5", "double", 0.5),
        ("1e3", "double", 1000.0),
        ("1.5E-1", "double", 0.15),
        ("'a'", "string", "a"),
        ('"a"', "string", "a"),
        ("'''a'b\n'''", "string", "a'b\n"),
        ('"""a"b"""', "string", 'a"b'),
        (r"'\n\t\\\''", "string", "\n\t\\'"),
        (r"r'\n'", "string", r"\n"),
        (r"R'\n'", "string", r"\n"),
        (r"'\x41\u00e9\U0001F600\101'", "string", "Aé😀A"),
        (r"b'\xff\377'", "bytes", b"\xff\xff"),
        ("b'é'", "bytes", "é".encode()),
        (r"br'\n'", "bytes", rb"\n"),
    ],
)
def test_literals_are_read_with_their_type(text: str, kind: str, value: object) -> None:
    first, end = tokens(text)
    assert (first.kind, first.value, end.kind) == (kind, value, "end")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "(",
            ")",
            "[1",
            "{1",
            "{1: }",
            "1 +",
            "a b",
            "a.",
            "a..b",
            "a?b",
            "a ? b",
            "f(,)",
            "f(1,)",
            "'a",
            '"a\n"',
        ),
        *(r"'\q'", r"'\xZZ'", r"'\u12'", "#", "a & b", "1 = 1", "99999999999999999999", "18446744073709551616u"),
        *("a.1", "true.x.", "in", "!-1", "a{b: 1}", "has(a)", "has(a.?b)", "x.all(1, true)", "x.all(@result, true)"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_position(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse(text)
    assert 0 <= caught.value.position <= len(text)


def test_expressions_nest_only_so_deep() -> None:
    compile_selector("(" * 50 + "true" + ")" * 50, 37)
    with pytest.raises(CompileError, match=r"nested more deeply|recursion limit"):
        compile_selector("(" * (MAX_DEPTH + 1) + "true" + ")" * (MAX_DEPTH + 1), 37)


def test_a_thousand_conditions_in_a_row_do_not_nest() -> None:
    for operator in ("&&", "||"):
        assert compile_selector(f" {operator} ".join(["true"] * 1000), 37).matches({})


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail_otherwise(text: str) -> None:
    with contextlib.suppress(CompileError):
        assert isinstance(parse(text), Node)


@given(st.text())
def test_a_string_literal_gives_its_text_back(text: str) -> None:
    escaped = "".join(f"\\U{ord(each):08x}" for each in text if not 0xD800 <= ord(each) < 0xE000)
    expected = "".join(each for each in text if not 0xD800 <= ord(each) < 0xE000)
    assert tokens(f"'{escaped}'")[0].value == expected


def test_types_are_read_with_their_parameters() -> None:
    assert read("map(string, list(A))") == map_of(STRING, list_of(Type("A")))
    assert str(read("map(string, list(int))")) == "map(string, list(int))"


@pytest.mark.parametrize(
    ("given_", "wanted", "fits"),
    [
        ("int", "int", True),
        ("int", "string", False),
        ("dyn", "string", True),
        ("any", "string", True),
        ("string", "dyn", True),
        ("list(int)", "list(A)", True),
        ("list(int)", "list(string)", False),
        ("list(dyn)", "list(string)", True),
        ("map(string, int)", "map(A, B)", True),
        ("map(string, int)", "list(A)", False),
        ("null", "int", False),
        ("null", "duration", True),
    ],
)
def test_one_type_stands_for_another_or_does_not(given_: str, wanted: str, fits: bool) -> None:
    assert Substitution().all_assignable([read(given_)], [read(wanted)]) is fits


def test_a_parameter_means_the_same_in_all_places() -> None:
    types = Substitution()
    first, second, result = types.fresh([Type("A"), list_of(Type("A")), Type("A")])
    assert types.all_assignable([INT, list_of(INT)], [first, second])
    assert types.settled(result) == INT
    assert not types.all_assignable([STRING], [first])
    assert types.settled(first) == INT


def test_what_stays_unknown_is_known_only_to_the_run() -> None:
    types = Substitution()
    assert types.settled(types.unknown()) == DYN


def test_a_parameter_is_never_part_of_itself() -> None:
    types = Substitution()
    parameter = types.unknown()
    assert not types.all_assignable([list_of(parameter)], [parameter])


def test_a_signature_guards_what_a_run_gives_it() -> None:
    overload = declare("*f(string, list(A), dyn) -> int", len)
    assert (overload.name, overload.member, overload.result) == ("f", True, INT)
    assert overload.accepts(["a", [1], None])
    assert not overload.accepts([1, [1], None])
    assert not overload.accepts(["a", [1]])
    with pytest.raises(ValueError, match="no signature"):
        declare("f", len)
