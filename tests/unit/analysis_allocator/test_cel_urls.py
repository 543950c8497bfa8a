"""URLs of expressions: what is one, its parts, and when two are equal."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import EvaluationError, urls

LABELS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty url"),
        ("x", "invalid URI for request"),
        (":x", "missing protocol scheme"),
        ("1a://b", "invalid URI for request"),
        ("http://a\x01/", "invalid control character in URL"),
        ("http://a b/", "invalid character \" \" in host name"),
        ("http://a:b/", 'invalid port ":b" after host'),
        ("http://a:1:2/", 'invalid port ":1:2" after host'),
        ("http://[::1", "missing ']' in host"),
        ("http://[::1]x/", 'invalid port "x" after host'),
        ("http://[x]/", "unable to parse IP"),
        ("http://[1.2.3.4]/", "invalid IP-literal"),
        ("http://a[::1]/", "invalid IP-literal"),
        ("http://u\"@a/", "invalid userinfo"),
        ("http://a/%zz", 'invalid URL escape "%zz"'),
        ("http://a/%4", 'invalid URL escape "%4"'),
        ("http://a%41b/%", 'invalid URL escape "%41"'),
        ("http://a%20b/", 'invalid URL escape "%20"'),
        ("http://[fe80::1%25%01]/", 'invalid URL escape "%01"'),
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_the_reason(text: str, why: str) -> None:
    told = urls.problem(text)
    assert told.startswith("parse ")
    assert why in told
    with pytest.raises(EvaluationError, match="URL parse error"):
        urls.parse(text)


@pytest.mark.parametrize(
    "text",
    ["/", "*", "//", "x:", "mailto:a@b", "http://", "http://:80/", "http://a:/", "http://[::1]:80/", "http://a?b#c",
     "http://[fe80::1%25en0]/", "ftp://a:1:2/", "http://a%c3%bc/", "http://aü/", "http://u:p@a/", "/a:b"],
)  # fmt: skip
def test_absolute_urls_and_absolute_paths_are_urls(text: str) -> None:
    assert urls.problem(text) == ""
    urls.parse(text)


def test_hosts_with_several_colons_were_let_in_until_go_1_26() -> None:
    assert urls.problem("http://a:1:2/", strict=False) == ""
    assert urls.parse("http://a:1:2/", strict=False).port == "2"


def test_a_url_has_parts() -> None:
    url = urls.parse("HTTP://User:p%20w@EXAMPLE.com:80/a%2fb/é?x=1&y=2&x=3&z#frag%20x")
    assert (url.scheme, url.host, url.hostname, url.port) == ("http", "EXAMPLE.com:80", "EXAMPLE.com", "80")
    assert url.escaped_path() == "/a/b/%C3%A9"
    assert url.parameters() == {"x": ["1", "3"], "y": ["2"], "z": [""]}
    assert str(url) == "http://User:p%20w@EXAMPLE.com:80/a/b/%C3%A9?x=1&y=2&x=3&z#frag%20x"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("a=%zz&b=1", {"b": ["1"]}),
        ("a=1;b=2&c=3", {"c": ["3"]}),
        ("&&a", {"a": [""]}),
        ("=1", {"": ["1"]}),
        ("a+b=c+d%2Be", {"a b": ["c d+e"]}),
        ("a=1=2", {"a": ["1=2"]}),
        ("a=%e9", {"a": ["\udce9"]}),
        ("&".join(["a"] * 10_001), {}),
    ],
)
def test_parameters_that_are_none_are_left_out(query: str, found: dict[str, list[str]]) -> None:
    assert urls.parse(f"/?{query}").parameters() == found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("HTTP://a", "http://a", True),
        ("http://A", "http://a", False),
        ("http://a/b#", "http://a/b", True),
        ("http://a/b?", "http://a/b", False),
        ("http://a/b%2fc", "http://a/b/c", False),
        ("http://a/b%41", "http://a/bA", False),
        ("file:///a", "file:/a", False),
        ("http://", "http:", True),
        ("http://u@a", "http://a", False),
    ],
)
def test_urls_are_equal_where_go_writes_them_equally(one: str, other: str, same: bool) -> None:
    assert (urls.parse(one) == urls.parse(other)) is same


@given(LABELS, LABELS, st.integers(0, 65535), LABELS)
def test_a_plain_url_is_written_as_it_was_read(scheme: str, host: str, port: int, path: str) -> None:
    text = f"s{scheme}://{host}:{port}/{path}"
    url = urls.parse(text)
    assert str(url) == text
    assert (url.scheme, url.hostname, url.port, url.path) == (f"s{scheme}", host, str(port), f"/{path}")


@given(TEXTS)
def test_a_path_means_the_same_after_it_is_written_and_read_again(text: str) -> None:
    path = "/" + text.replace("%", "").replace("?", "").replace("#", "")
    url = urls.parse(f"http://a{path}")
    again = urls.parse(str(url))
    assert again.path == url.path
    assert again.escaped_path() == url.escaped_path()
    assert url.escaped_path().isascii()


@given(st.text(max_size=20))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    for candidate in (text, f"http://{text}", f"http://a/{text}"):
        if urls.problem(candidate):
            with pytest.raises(EvaluationError):
                urls.parse(candidate)
        else:
            assert str(candidate) == candidate


def test_a_lone_surrogate_is_replaced_as_it_is_where_json_is_decoded() -> None:
    assert urls.parse("/\ud800").escaped_path() == "/%EF%BF%BD"
