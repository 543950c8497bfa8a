"""The evaluator's own behaviour: where errors point, versions, patterns, costs, and what it does not know."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import (
    CompileError,
    CostError,
    EvaluationError,
    UnsupportedError,
    attribute_value,
    compile_derived,
    compile_selector,
    device_value,
    network,
    regex,
)
from driver.analysis.cel.values import Semver, compare, equal, semver, tolerant_semver
from driver.analysis.quantity import parse

DEVICE = device_value(
    "gpu.example.com",
    {"model": {"string": "a"}, "n": {"int": 3}, "other.io/x": {"bool": True}, "links": {"strings": ["x", "y"]}},
    {"memory": parse("80Gi")},
    shareable=False,
    lists=True,
)


def matches(expression: str, release: int = 37) -> bool:
    return compile_selector(expression, release).matches(DEVICE)


@pytest.mark.parametrize(
    ("expression", "where", "text"),
    [
        ("device.nope", "1:7", "undefined field 'nope'"),
        ("nope == 1", "1:1", "undeclared reference to 'nope'"),
        ("true &&\n  device.nope", "2:9", "undefined field"),
        ("1 == ", "1:6", "unexpected the end of the expression"),
        ("true & true", "1:6", "token recognition error"),
        ("device.driver.nope()", "1:15", "undeclared reference to 'nope'"),
        ("device.driver + 1 == 2", "1:15", "found no matching overload for '_+_' applied to '(string, int)'"),
        ("[1, 'a'] == [1]", "1:5", "expected type 'int' but found 'string'"),
        ("1 + 1", "1:1", "must evaluate to bool"),
        ("'open", "1:1", "a string is not closed"),
        ("device.driver.matches('[')", "1:23", "invalid matches argument"),
        ("for == 1", "1:1", "reserved identifier: for"),
        ("has(device)", "1:1", "invalid argument to has() macro"),
        ("[1].all(1, true)", "1:9", "argument must be a simple name"),
        ("int('x') == 1", "1:1", "program instantiation failed"),
    ],
)
def test_an_expression_that_does_not_compile_says_where(expression: str, where: str, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector(expression, 37)
    assert str(caught.value).startswith(f"{where}: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("expression", ["google.protobuf.Int32Value{value: 1} == 1", "kubernetes.DRADevice{}.driver"])
def test_what_kubernetes_knows_and_this_does_not_is_told_apart_from_wrong(expression: str) -> None:
    with pytest.raises(UnsupportedError, match="not supported"):
        compile_selector(expression, 37)


@pytest.mark.parametrize("pattern", [r"\p{Greek}", r"[\p{Han}]", r"\pC", "(" * 900 + ")" * 900])
def test_a_pattern_that_only_re2_knows_is_told_apart_from_wrong(pattern: str) -> None:
    with pytest.raises(UnsupportedError):
        regex.compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?<!a)", r"\1", "[", "(", ")", "a**", "*a", "a++", "a{2}{3}", "(|*)", "\\", r"\y", r"\8", r"\C", r"\Z",
     "a{2,1}", "a{1001}", "(a{100}){11}", "[b-a]", r"[a-\d]", "[[:foo:]]", "(?P<n-x>a)", "(?i-)", "(?x)a",
     r"\x{110000}", r"\xZ", r"\p", "(" * 1001 + ")" * 1001],
)  # fmt: skip
def test_a_pattern_that_re2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(regex.PatternError):
        regex.compiled(pattern)


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("a\n", "a$", False),
        ("a\nb", "(?m)a$", True),
        ("A", "(?i)a", True),
        ("x.y", r"x\.y", True),
        ("é", r"\w", False),
        ("\v", r"\s", False),
        ("a-b", r"[a\-]+", True),
        ("b7", "[[:alpha:]][[:digit:]]", True),
        ("a]", r"[\]]", True),
        ("xy", "(?P<n>x)y", True),
        ("xy", "(?<n>x)y", True),
        ("é", r"\x{e9}", True),
        ("end", r"d\z", True),
        ("É", "(?i)é", True),
        ("\u212a", "(?i)k", True),
        ("aB", "a(?i)b|C", True),
        ("c", "a(?i)b|C", True),
        ("C", "(a(?i)b)c", False),
        ("日", r"^\pL$", True),
        ("7", r"[\PN]", False),
        ("é", "[[:^alpha:]]", True),
        ("a.b", r"\Qa.b\E", True),
        ("axb", r"\Qa.b", False),
        ("é", r"\bé", False),
        ("a{,3}", "a{,3}", True),
        ("a\x00", r"\0", True),
        ("]", "[]a]", True),
        ("", "^*$*", True),
    ],
)
def test_patterns_mean_what_they_mean_in_re2(text: str, pattern: str, found: bool) -> None:
    assert regex.matches(text, pattern) is found


@pytest.mark.parametrize(
    ("text", "pattern", "limit", "found"),
    [
        ("baac", "a*", -1, ["", "aa", ""]),
        ("ab", "a??", -1, ["", "", ""]),
        ("aXbaab", "(?U)a+", -1, ["a", "a", "a"]),
        ("aXbaab", "(?U)a+?", -1, ["a", "aa"]),
        ("abc", "[a-z]", 2, ["a", "b"]),
        ("abc", "[a-z]", 0, []),
        ("a\nb", "(?m)^", -1, ["", ""]),
        ("", "x*", -1, [""]),
    ],
)
def test_all_matches_are_those_that_go_finds(text: str, pattern: str, limit: int, found: list[str]) -> None:
    assert regex.find_all(text, pattern, limit) == found


@given(st.text(max_size=12))
def test_a_quoted_text_finds_itself(text: str) -> None:
    assert regex.matches(f"x{text}y", rf"x\Q{text}\Ey") or r"\E" in text


@given(st.text(max_size=30))
def test_no_pattern_makes_the_translation_fail_otherwise(pattern: str) -> None:
    with contextlib.suppress(regex.PatternError, UnsupportedError):
        assert isinstance(regex.compiled(pattern).search("abc"), re.Match | None)


def test_an_error_in_one_part_of_an_or_does_not_matter_if_another_is_true() -> None:
    assert matches('device.attributes["gpu.example.com"].nope == 1 || true')
    with pytest.raises(EvaluationError, match="no such key: nope"):
        matches('device.attributes["gpu.example.com"].nope == 1 || false')


def test_a_domain_nobody_published_is_empty_and_no_error() -> None:
    assert matches('device.attributes["nobody.io"].size() == 0 && !("x" in device.attributes["nobody.io"])')


def test_a_value_that_is_no_boolean_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="type conversion error from 'string' to 'bool'"):
        matches('device.attributes["gpu.example.com"].model')


def test_a_loop_that_costs_too_much_is_cut_short_even_inside_an_or() -> None:
    numbers = "[1,2,3,4,5,6,7,8,9,10]"
    loop = "".join(f"{numbers}.all({name}, " for name in "abcdef") + "true" + ")" * 6
    with pytest.raises(CostError):
        matches(f"{loop} || true")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('device.attributes["gpu.example.com"].model', "a"),
        ("[1, 2]", [1, 2]),
        ('semver("1.2.3")', Semver(1, 2, 3)),
        ('device.attributes["gpu.example.com"].links', ["x", "y"]),
    ],
)
def test_derived_attributes_have_a_value(expression: str, value: object) -> None:
    assert compile_derived(expression, 37).run(DEVICE)[0] == value


@pytest.mark.parametrize("expression", ["1.5", "{'a': 1}", "b'x'", "[[1]]", "quantity('1')"])
def test_derived_attributes_are_scalars_or_lists_of_them(expression: str) -> None:
    with pytest.raises(CompileError, match="must evaluate to a primitive scalar"):
        compile_derived(expression, 37)


def test_list_attributes_are_values_only_where_the_release_knows_them() -> None:
    assert attribute_value("links", {"strings": ["x"]}, lists=True) == ["x"]
    with pytest.raises(EvaluationError, match="attribute links: unsupported attribute value"):
        attribute_value("links", {"strings": ["x"]}, lists=False)


@pytest.mark.parametrize("document", [{}, {"float": 1.5}, {"version": "1.2"}, {"string": None}])
def test_an_attribute_without_a_known_value_is_an_error(document: dict[str, object]) -> None:
    with pytest.raises(EvaluationError, match="attribute x"):
        attribute_value("x", document, lists=True)


ORDER = [
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "1.1.0",
    "2.0.0",
]


def test_versions_are_ordered_as_semver_orders_them() -> None:
    read = [semver(each) for each in ORDER]
    assert sorted(read, key=str) != read
    assert sorted(sorted(read, key=str)) == read
    assert semver("1.0.0+a") == semver("1.0.0+b")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.x", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a..b", "v1.2.3", "1.2.3-é"]
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError):
        semver(text)


@pytest.mark.parametrize(
    ("text", "version"), [("v1", "1.0.0"), ("1.02", "1.2.0"), ("v01.2.3", "1.2.3"), ("1.2.3-rc", "1.2.3-rc")]
)
def test_short_versions_are_filled_up_on_demand(text: str, version: str) -> None:
    assert str(tolerant_semver(text)) == version


@given(st.tuples(*[st.integers(0, 2**63)] * 3))
def test_a_version_is_written_as_it_was_read(parts: tuple[int, int, int]) -> None:
    text = ".".join(map(str, parts))
    assert str(semver(text)) == text


SCALARS = st.one_of(
    st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=3), st.binary(max_size=3)
)


@given(SCALARS, SCALARS)
def test_equality_is_symmetric_and_never_mixes_booleans_with_numbers(one: object, other: object) -> None:
    assert equal(one, other) is equal(other, one)
    assert equal(one, one)
    if isinstance(one, bool) is not isinstance(other, bool):
        assert not equal(one, other)


@given(st.one_of(st.integers(), st.floats(allow_nan=False)), st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_numbers_are_ordered_across_their_types(one: float, other: float) -> None:
    assert compare(one, other) == -compare(other, one)


@pytest.mark.parametrize(("one", "other"), [(1, "a"), (True, 1), (None, None), ([1], [1]), (b"a", "a")])
def test_what_has_no_order_is_an_error(one: object, other: object) -> None:
    with pytest.raises(EvaluationError, match="no such overload"):
        compare(one, other)


@pytest.mark.parametrize("text", ["", "1.2.3", "01.2.3.4", "1.2.3.4/8", "::ffff:1.2.3.4", "fe80::1%eth0", "x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert not network.is_ip(text)
    with pytest.raises(EvaluationError):
        network.ip(text)


@pytest.mark.parametrize(
    "text", ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/-1", "x/8", "::/129"]
)
def test_what_is_no_network_is_refused(text: str) -> None:
    assert not network.is_cidr(text)
    with pytest.raises(EvaluationError):
        network.cidr(text)


@given(st.ip_addresses(v=4), st.integers(0, 32), st.integers(0, 32))
def test_a_network_covers_its_parts_and_contains_its_addresses(address: IPv4Address, bits: int, more: int) -> None:
    whole = network.cidr(f"{address}/{bits}")
    assert whole.contains(address)
    assert whole.covers(whole.masked())
    assert whole.covers(network.cidr(f"{address}/{max(bits, more)}"))
