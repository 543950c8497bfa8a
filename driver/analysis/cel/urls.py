"""URLs in expressions: read, taken apart and written as Go's ``net/url`` does it, which Kubernetes' library wraps.

Texts are UTF-8 for Go; a byte that is none stands here as a lone surrogate (``surrogateescape``).
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_address
from typing import Final

from .errors import EvaluationError
from .gotext import quoted

_WORD: Final = frozenset((string.ascii_letters + string.digits + "-_.~").encode())
_PATH: Final = _WORD | frozenset(b"$&+,/:;=@")
_HOST: Final = _WORD | frozenset(b"!$&'()*+,;=:[]<>\"")
_USER: Final = _WORD | frozenset(b"$&+,;=")
_FRAGMENT: Final = _WORD | frozenset(b"!$&()*+,/:;=?@")
_SUBDELIMS: Final = frozenset(b"!$&'()*+,;=:@[]%")
"""Left as they stand in a path or fragment that was written so."""
_USERINFO: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+\-.]*(?=:)", re.ASCII)
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_MOST_PARAMETERS: Final = 10_000


class UrlError(Exception):
    """Why a text is no URL, in Go's words without the URL."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL; ``raw_path`` and ``raw_fragment`` keep how they were written where that is not how Go would write them."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    host: str = ""
    path: str = ""
    raw_path: str = ""
    query: str | None = None
    fragment: str = ""
    raw_fragment: str = ""
    slashes: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        authority = self.slashes and (self.user is not None or self.host or self.path)
        start = f"{self.scheme}:" if self.scheme else ""
        if self.opaque:
            start += self.opaque
        else:
            if authority:
                start += "//" + ("" if self.user is None else f"{self.user}@") + _escape(self.host, _HOST)
            path = self.escaped_path()
            if path and not path.startswith("/") and self.host:
                start += "/"
            elif not start and ":" in path.partition("/")[0]:
                start += "./"
            start += path
        start += "" if self.query is None else f"?{self.query}"
        return start + (f"#{_as_written(self.raw_fragment, self.fragment, _FRAGMENT)}" if self.fragment else "")

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        host = self._host_and_port()[0]
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @property
    def port(self) -> str:
        """The port as written, or nothing."""
        return self._host_and_port()[1]

    def _host_and_port(self) -> tuple[str, str]:
        host, colon, port = self.host.rpartition(":")
        return (host, port) if colon and _PORT.fullmatch(f":{port}") else (self.host, "")

    def escaped_path(self) -> str:
        """The path as it was written if it was written well, else as Go writes it."""
        return "*" if self.path == "*" and not self.raw_path else _as_written(self.raw_path, self.path, _PATH)

    def parameters(self) -> dict[str, list[str]]:
        """The query by name; parameters that are no parameters are left out."""
        found: dict[str, list[str]] = {}
        pairs = (self.query or "").split("&")
        for pair in pairs if len(pairs) <= _MOST_PARAMETERS else ():
            name, _, value = pair.partition("=")
            if not pair or ";" in pair:
                continue
            try:
                name, value = _unescape(name.replace("+", " ")), _unescape(value.replace("+", " "))
            except UrlError:
                continue
            found.setdefault(name, []).append(value)
        return found


def _as_written(raw: str, text: str, plain: frozenset[int]) -> str:
    if raw and all(byte in plain or byte in _SUBDELIMS for byte in _bytes(raw)):
        return raw
    return _escape(text, plain)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _escape(text: str, plain: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in _bytes(text))


def _unescape(text: str) -> str:
    """Decode ``%41``.

    Raises:
        UrlError: a percent sign without two digits after it.
    """
    data = _bytes(text)
    at = data.find(b"%")
    while at >= 0:
        if not _ESCAPE.match(data, at):
            raise UrlError(f"invalid URL escape {quoted(data[at : at + 3].decode('utf-8', 'surrogateescape'))}")
        at = data.find(b"%", at + 3)
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), data).decode("utf-8", "surrogateescape")


def _unescape_host(text: str, *, zone: bool = False) -> str:
    """Decode a host: escapes are for what is no ASCII, and in a zone for what a host may hold anyway.

    Raises:
        UrlError: another escape, or a character that no host has.
    """
    decoded = _unescape(text)
    for found in _ESCAPE.finditer(_bytes(text)):
        value = int(found[1], 16)
        fine = value in _HOST or value in b" %" if zone else value >= 0x80 or value == ord("%")
        if not fine:
            raise UrlError(f"invalid URL escape {quoted(found[0].decode())}")
    for byte in _ESCAPE.sub(b"", _bytes(text)):
        if byte < 0x80 and byte not in _HOST:
            raise UrlError(f"invalid character {quoted(chr(byte))} in host name")
    return decoded


def parse(text: str, strict: bool = True) -> Url:
    """Read an absolute URL or an absolute path, as ``url()`` does.

    ``strict`` refuses http and https hosts with several colons, which Go does since 1.26.

    Raises:
        EvaluationError: the text is neither.
    """
    try:
        _parse(text, strict, request=True)
        before, _, fragment = text.partition("#")
        url = _parse(before, strict, request=False)
        decoded = _unescape(fragment)
    except UrlError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {_told(text, error)}") from error
    raw = "" if _escape(decoded, _FRAGMENT) == fragment else fragment
    return replace(url, fragment=decoded, raw_fragment=raw)


def problem(text: str, strict: bool = True) -> str:
    """Why the text is no absolute URL and no absolute path, or nothing."""
    try:
        _parse(text, strict, request=True)
    except UrlError as error:
        return _told(text, error)
    return ""


def _told(text: str, error: UrlError) -> str:
    return f"parse {quoted(text)}: {error}"


def _parse(text: str, strict: bool, *, request: bool) -> Url:
    if any(byte < 0x20 or byte == 0x7F for byte in _bytes(text)):
        raise UrlError("net/url: invalid control character in URL")
    if not text and request:
        raise UrlError("empty url")
    if text == "*":
        return Url(path="*")
    scheme, rest = _scheme(text)
    query: str | None = None
    if "?" in rest:
        rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, rest, query=query)
        if request:
            raise UrlError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise UrlError("first path segment in URL cannot contain colon")
    user, host = None, ""
    slashes = rest.startswith("//") and bool(scheme or not (request or rest.startswith("///")))
    if slashes:
        authority, slash, rest = rest[2:].partition("/")
        user, host = _authority(authority, strict and scheme in ("http", "https"))
        rest = slash + rest
    path = _unescape(rest)
    raw = "" if _escape(path, _PATH) == rest else rest
    return Url(scheme, "", user, host, path, raw, query, slashes=slashes)


def _scheme(text: str) -> tuple[str, str]:
    if text.startswith(":"):
        raise UrlError("missing protocol scheme")
    found = _SCHEME.match(text)
    return (found.group().lower(), text[found.end() + 1 :]) if found else ("", text)


def _authority(text: str, strict: bool) -> tuple[str | None, str]:
    before, at, host = text.rpartition("@")
    host = _host(host, strict)
    if not at:
        return None, host
    if not _USERINFO.fullmatch(before):
        raise UrlError("net/url: invalid userinfo")
    name, colon, password = before.partition(":")
    return _escape(_unescape(name), _USER) + colon + _escape(_unescape(password), _USER), host


def _host(text: str, strict: bool) -> str:
    if "[" not in text:
        port = text[(text.index if strict else text.rindex)(":") :] if ":" in text else ""
        if not _PORT.fullmatch(port):
            raise UrlError(f"invalid port {quoted(port)} after host")
        return _unescape_host(text)
    if text.rindex("[") > 0:
        raise UrlError("invalid IP-literal")
    if "]" not in text:
        raise UrlError("missing ']' in host")
    address, _, port = text[1:].rpartition("]")
    if not _PORT.fullmatch(port):
        raise UrlError(f"invalid port {quoted(port)} after host")
    name, percent, zone = address.partition("%25")
    decoded = _unescape_host(name) + (_unescape_host(percent + zone, zone=True) if percent else "")
    try:
        literal = ip_address(decoded)
    except ValueError as error:
        raise UrlError(f"invalid host: ParseAddr({quoted(decoded)}): unable to parse IP") from error
    if isinstance(literal, IPv4Address):
        raise UrlError("invalid IP-literal")
    return f"[{decoded}]{port}"
