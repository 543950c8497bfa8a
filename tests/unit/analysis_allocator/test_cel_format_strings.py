"""Named formats, ``string.format`` and quoting: what is written, and what is refused before or during a run."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import CompileError, EvaluationError, UnsupportedError, compile_selector, formats, formatting
from driver.analysis.cel.gotext import atoi, general, plain, quoted
from driver.analysis.cel.times import Duration, Timestamp
from driver.analysis.cel.values import TypeValue, UInt
from driver.analysis.quantity import parse


@pytest.mark.parametrize(
    ("text", "args", "written"),
    [
        ("%s-%d%%", ["a", 5], "a-5%"),
        ("%d %d", [-5, UInt(5)], "-5 5"),
        ("%b %b %b", [-5, UInt(5), True], "-101 101 1"),
        ("%x %X %x %X", [-255, UInt(255), "é", b"\xff"], "-ff FF c3a9 FF"),
        ("%o", [-8], "-10"),
        ("%f", [1234567.891], "1,234,567.891000"),
        ("%.2f", [2.675], "2.67"),
        ("%.0f", [0.5], "0"),
        ("%f", [-0.0], "0.000000"),
        ("%f %f %f", [math.inf, -math.inf, math.nan], "∞ -∞ NaN"),
        ("%f %f", ["Infinity", "NaN"], "∞ NaN"),
        ("%e", [1234.5], "1.234500×10⁰³"),
        ("%e", [-1e-100], "-1.000000×10⁻¹⁰⁰"),
        ("%.16e|", [1.0], "   1.000000×10⁰⁰|"),
        ("%e", [math.inf], "     ∞"),
        ("%s", [None], "null"),
        ("%s", [True], "true"),
        ("%s", [1e21], "1e+21"),
        ("%s", [b"abc"], "abc"),
        ("%s", [TypeValue("int")], "int"),
        ("%s", [Timestamp(0)], "1970-01-01T00:00:00Z"),
        ("%s", [Duration(1_500_000_000)], "1.5s"),
        ("%s", [[1, UInt(2), 1.5, "a\n", b"b", None, True]], '[1, 2, 1.500000, "a\\n", b"b", null, true]'),
        ("%s", [[Timestamp(0), Duration(1), math.inf]],
         '[timestamp("1970-01-01T00:00:00Z"), duration("0.000000001s"), "+Inf"]'),
        ("%s", [{"b": 1, "a": [True]}], '{"a":[true], "b":1}'),
        ("%s", [{10: "x", 2: "y"}], '{10:"x", 2:"y"}'),
        ("%.2s", ["abc"], "abc"),
        ("plain", [], "plain"),
    ],
)  # fmt: skip
def test_each_clause_writes_its_types(text: str, args: list[object], written: str) -> None:
    assert formatting.run(text, args) == written


@pytest.mark.parametrize(
    ("text", "args", "why"),
    [
        ("%s", [], "index 0 out of range"),
        ("%d", ["a"], "decimal clause can only be used on integers, was given string"),
        ("%d", [True], "was given bool"),
        ("%f", [1], "fixed-point clause can only be used on doubles, was given int"),
        ("%f", ["1.5"], "was given string"),
        ("%e", [True], "scientific clause"),
        ("%b", ["a"], "only integers and bools"),
        ("%x", [1.5], "formatted as hex, was given double"),
        ("%o", [True], "octal clause"),
        ("%s", [parse("1")], "was given kubernetes.Quantity"),
        ("%s", [[parse("1")]], "no formatting function for kubernetes.Quantity"),
        ("%s", [{None: 1}], "no formatting function for map key of type null_type"),
        ("%s", [b"\xff"], "invalid UTF-8"),
        ("%z", ["a"], 'unrecognized formatting clause "z"'),
        ("%5d", [5], 'unrecognized formatting clause "5"'),
        ("%.f", [1.5], "strconv.Atoi"),
        ("%.3", [1.5], "could not find end of precision"),
        ("%", ["a"], "unexpected end of string"),
    ],
)
def test_a_clause_that_does_not_fit_is_an_error(text: str, args: list[object], why: str) -> None:
    with pytest.raises(EvaluationError, match=re.escape(why)):
        formatting.run(text, args)


def test_more_digits_than_upstream_writes_alike_are_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="more than 300 digits"):
        formatting.run("%.301f", [0.1])
    assert len(formatting.run("%.300f", [0.1])) == 302


@pytest.mark.parametrize(
    ("expression", "where", "why"),
    [
        ("'%d'.format(['a']) == ''", "1:14", "decimal clause can only be used on integers, was given string"),
        ("'%s'.format([1, 2]) == ''", "1:6", "too many arguments supplied to string.format (expected 1, got 2)"),
        ("'%s %s'.format([1]) == ''", "1:9", "index 1 out of range"),
        ("'%z'.format([1]) == ''", "1:6", "unrecognized formatting clause"),
        ("'%'.format([1]) == ''", "1:5", "unexpected end of string"),
        ("'%s'.format([[1, [device]]]) == ''", "1:19", "was given kubernetes.DRADevice"),
        ("'%s'.format([{'a': optional.none()}]) == ''", "1:29", "string clause"),
    ],
)
def test_a_constant_format_is_looked_at_before_any_run(expression: str, where: str, why: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector(expression, 37)
    assert str(caught.value).startswith(where)
    assert why in str(caught.value)


def test_values_of_a_format_may_differ_in_type_and_those_of_other_lists_may_not() -> None:
    compile_selector("'%s %d'.format(['a', 1]) == 'a 1'", 37)
    compile_selector("'%s'.format([[1, 'a'].map(x, x)]) == ''", 37)
    with pytest.raises(CompileError, match="expected type 'string' but found 'int'"):
        compile_selector("['a', 1].size() == 2", 37)


def test_an_attribute_has_a_type_that_may_be_formatted_only_where_it_may_be_a_list() -> None:
    text = "'%s'.format([device.attributes['d.io'].model]) == 'a'"
    compile_selector(text, 37)
    with pytest.raises(CompileError, match="was given any"):
        compile_selector(text, 34)


SPECIMENS = {
    "dns1123Label": (["a", "a-b", "a" * 63], ["", "A", "-a", "a.b", "a" * 64, "é"]),
    "dns1123Subdomain": (["a.b", "a" * 63 + ".b"], ["", "a..b", "A.b", "a" * 254]),
    "dns1035Label": (["a1"], ["", "1a", "a.b", "a" * 64]),
    "qualifiedName": (["a", "a.b/C_d", "A"], ["", "/", "a/", "/a", "a/b/c", "A/b", "-", "a" * 64]),
    "dns1123LabelPrefix": (["a", "a-", "ab-"], ["-", "AB-", "a.b-", ""]),
    "dns1123SubdomainPrefix": (["a.b-"], ["..-", "AB-"]),
    "dns1035LabelPrefix": (["a-"], ["12-"]),
    "labelValue": (["", "A_.b"], ["-", "a b", "a" * 64]),
    "uri": (["http://a/b", "/x"], ["", "x", "http://a b"]),
    "uuid": (["123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"], ["", "x", "123e4567"]),
    "byte": (["aGVsbG8=", "aGVs"], ["", "aGVsbG8", "a_=="]),
    "date": (["2020-02-29", "0000-01-01"], ["", "2021-02-29", "2021-13-01", "2021-1-01", "2021-01-00"]),
    "datetime": (["2021-01-01T00:00:00Z", "2021-01-01t23:59:59.5+01:00", "2021-01-01T00:00:00Zt"],
                 ["", "2021-01-01", "2021-01-01T24:00:00Z", "2021-01-01 00:00:00Z", "2021-02-30T00:00:00Z"]),
}  # fmt: skip


def test_every_format_has_specimens() -> None:
    assert set(SPECIMENS) == set(formats.named(37)) == set(formats.named(34))


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_format_lets_its_own_in_and_says_of_others_why_not(name: str) -> None:
    fine, wrong = SPECIMENS[name]
    check = formats.named(37)[name].check
    assert [check(text) for text in fine] == [[]] * len(fine)
    for text in wrong:
        assert check(text), text
        assert all(each and isinstance(each, str) for each in check(text))


@pytest.mark.parametrize(
    ("release", "name", "text", "begins"),
    [
        (34, "qualifiedName", "a/b/c", "a qualified name must consist of"),
        (36, "qualifiedName", "a/b/c", "a valid label key must consist of"),
        (34, "labelValue", "a" * 64, "must be no more than 63 characters"),
        (36, "labelValue", "a" * 64, "must be no more than 63 bytes"),
        (37, "dns1123Label", "a" * 64, "must be no more than 63 characters"),
    ],
)
def test_what_a_format_says_is_what_its_release_says(release: int, name: str, text: str, begins: str) -> None:
    assert formats.named(release)[name].check(text)[0].startswith(begins)


def test_a_hosts_colons_count_only_where_the_release_is_built_with_a_go_that_counts_them() -> None:
    assert not formats.named(34)["uri"].check("http://a:1:2/")
    assert formats.named(36)["uri"].check("http://a:1:2/")


def test_formats_are_equal_by_name() -> None:
    assert formats.named(34)["uuid"] == formats.named(37)["uuid"] != formats.named(37)["byte"]
    assert len({formats.named(34)["uuid"], formats.named(37)["uuid"]}) == 1


@given(st.floats())
def test_a_number_is_the_same_after_it_is_written_and_read_again(number: float) -> None:
    for text in (general(number), plain(number)):
        again = float(text)
        assert math.isnan(again) if math.isnan(number) else again == number
        assert math.copysign(1, again) == math.copysign(1, number) or math.isnan(number)
    assert "e" not in plain(number)


@pytest.mark.parametrize(
    ("number", "text"),
    [(1e6, "1e+06"), (123456.0, "123456"), (1234567.0, "1.234567e+06"), (0.0001, "0.0001"), (0.00001, "1e-05"),
     (-0.0, "-0"), (1e100, "1e+100"), (100.0, "100")],
)  # fmt: skip
def test_numbers_have_an_exponent_where_go_gives_them_one(number: float, text: str) -> None:
    assert general(number) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\n\"\\", r'"a\n\"\\"'), ("é😀", '"é😀"'), ("\x01\x7f", r'"\x01\x7f"'), ("\u200b", r'"\u200b"'),
     ("\U000e0001", r'"\U000e0001"'), ("\udce9", r'"\xe9"')],
)  # fmt: skip
def test_a_text_is_quoted_as_go_quotes_it(text: str, shown: str) -> None:
    assert quoted(text) == shown


@pytest.mark.parametrize("text", ["", "+", "1_0", " 1", "x", "９", str(2**63)])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match=r"strconv\.Atoi"):
        atoi(text)
