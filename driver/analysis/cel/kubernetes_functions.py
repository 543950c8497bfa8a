"""What Kubernetes adds to CEL: quantities, versions, addresses, URLs, named formats, and the authorizer's functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from .. import quantity
from ..quantity import Quantity, QuantityError
from . import network, urls
from .errors import EvaluationError
from .formats import Format, named
from .overloads import Overload, declare, one, traversal
from .values import Optional, semver, size, tolerant_semver


def _to_quantity(text: str) -> Quantity:
    try:
        return quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(str(error)) from error


def _is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except QuantityError:
        return False
    return True


def _is_semver(text: str, tolerant: bool = False) -> bool:
    try:
        _to_semver(text, tolerant)
    except EvaluationError:
        return False
    return True


def _to_semver(text: str, tolerant: bool = False) -> object:
    return tolerant_semver(text) if tolerant else semver(text)


def _as_integer(value: Quantity) -> int:
    if not value.integer:
        raise EvaluationError("cannot convert value to integer")
    return value.nanos // quantity.NANO


def _order(one: int, other: int) -> int:
    return (one > other) - (one < other)


def _quantities() -> list[Overload]:
    it = "kubernetes.Quantity"
    return [
        declare(f"quantity(string) -> {it}", _to_quantity, traversal()),
        declare("isQuantity(string) -> bool", _is_quantity, traversal()),
        declare(f"sign({it}) -> int", lambda a: _order(a.nanos, 0)),
        declare(f"*isGreaterThan({it}, {it}) -> bool", lambda a, b: a.nanos > b.nanos),
        declare(f"*isLessThan({it}, {it}) -> bool", lambda a, b: a.nanos < b.nanos),
        declare(f"*compareTo({it}, {it}) -> int", lambda a, b: _order(a.nanos, b.nanos)),
        declare(f"*asApproximateFloat({it}) -> double", lambda a: a.nanos / quantity.NANO),
        declare(f"*asInteger({it}) -> int", _as_integer),
        declare(f"*isInteger({it}) -> bool", lambda a: a.integer),
        declare(f"*add({it}, {it}) -> {it}", quantity.add),
        declare(f"*add({it}, int) -> {it}", lambda a, b: quantity.add(a, quantity.whole(b, quantity.EXPONENT))),
        declare(f"*sub({it}, {it}) -> {it}", quantity.subtract),
        declare(f"*sub({it}, int) -> {it}", lambda a, b: quantity.subtract(a, quantity.whole(b, quantity.EXPONENT))),
    ]


def _versions() -> list[Overload]:
    it = "kubernetes.Semver"
    return [
        declare(f"semver(string) -> {it}", _to_semver, traversal()),
        declare(f"semver(string, bool) -> {it}", _to_semver, traversal()),
        declare("isSemver(string) -> bool", _is_semver, traversal()),
        declare("isSemver(string, bool) -> bool", _is_semver, traversal()),
        declare(f"*isGreaterThan({it}, {it}) -> bool", lambda a, b: a > b),
        declare(f"*isLessThan({it}, {it}) -> bool", lambda a, b: a < b),
        declare(f"*compareTo({it}, {it}) -> int", lambda a, b: (a > b) - (a < b)),
        declare(f"*major({it}) -> int", lambda a: a.major),
        declare(f"*minor({it}) -> int", lambda a: a.minor),
        declare(f"*patch({it}) -> int", lambda a: a.patch),
    ]


def _inside(args: list[object], _: object) -> int:
    return math.ceil(2 * size(args[0]) * 0.1)


def _covered(args: list[object], result: object) -> int:
    return _inside(args, result) + math.ceil(size(args[0]) * 0.1) + 1


def _reading(cost: Callable[[list[object], object], int]) -> Callable[[list[object], object], int]:
    """The cost, and that of reading the second argument first."""
    return lambda args, result: cost(args, result) + math.ceil(size(args[1]) * 0.1)


def _networks() -> list[Overload]:
    one, net = "net.IP", "net.CIDR"
    return [
        declare("isIP(string) -> bool", network.is_ip, traversal()),
        declare(f"ip(string) -> {one}", network.ip, traversal()),
        declare("ip.isCanonical(string) -> bool", lambda text: str(network.ip(text)) == text, traversal(factor=2)),
        declare(f"*family({one}) -> int", lambda a: a.address.version),
        declare(f"*isUnspecified({one}) -> bool", lambda a: a.address.is_unspecified),
        declare(f"*isLoopback({one}) -> bool", lambda a: a.address.is_loopback),
        declare(f"*isLinkLocalMulticast({one}) -> bool", network.IP.is_link_local_multicast),
        declare(f"*isLinkLocalUnicast({one}) -> bool", lambda a: a.address.is_link_local),
        declare(f"*isGlobalUnicast({one}) -> bool", network.IP.is_global_unicast),
        declare(f"string({one}) -> string", str),
        declare("isCIDR(string) -> bool", network.is_cidr, traversal()),
        declare(f"cidr(string) -> {net}", network.cidr, traversal()),
        declare(
            f"*containsIP({net}, string) -> bool",
            lambda a, b: a.contains(network.ip(b).address),
            _reading(_inside),
            _inside,
        ),
        declare(f"*containsIP({net}, {one}) -> bool", lambda a, b: a.contains(b.address), _inside, _inside),
        declare(
            f"*containsCIDR({net}, string) -> bool",
            lambda a, b: a.covers(network.cidr(b)),
            _reading(_covered),
            _covered,
        ),
        declare(f"*containsCIDR({net}, {net}) -> bool", network.Cidr.covers, _covered, _covered),
        declare(f"*ip({net}) -> {one}", lambda a: network.IP(a.address)),
        declare(f"*prefixLength({net}) -> int", lambda a: a.bits),
        declare(f"*masked({net}) -> {net}", network.Cidr.masked),
        declare(f"string({net}) -> string", str),
    ]


def _urls(release: int) -> list[Overload]:
    it = "kubernetes.URL"
    strict = release >= 36
    return [
        declare(f"url(string) -> {it}", lambda text: urls.parse(text, strict), traversal()),
        declare("isURL(string) -> bool", lambda text: not urls.problem(text, strict)),
        declare(f"*getScheme({it}) -> string", lambda url: url.scheme),
        declare(f"*getHost({it}) -> string", lambda url: url.host),
        declare(f"*getHostname({it}) -> string", lambda url: url.hostname),
        declare(f"*getPort({it}) -> string", lambda url: url.port),
        declare(f"*getEscapedPath({it}) -> string", urls.Url.escaped_path),
        declare(f"*getQuery({it}) -> map(string, list(string))", urls.Url.parameters),
    ]


def _validate(format_: Format, text: str) -> Optional:
    problems = format_.check(text)
    return Optional(problems, True) if problems else Optional()


def _pattern(args: list[object], _: object) -> int:
    length = args[0].length if isinstance(args[0], Format) else 1
    return math.ceil((1 + size(args[1])) * 0.1) * math.ceil(length * 0.25)


def _formats(release: int) -> list[Overload]:
    it = "kubernetes.NamedFormat"
    known = named(release)
    return [
        declare(
            f"format.named(string) -> optional({it})",
            lambda name: Optional(known[name], True) if name in known else Optional(),
        ),
        declare(f"*validate({it}, string) -> optional(list(string))", _validate, _pattern),
        *(declare(f"format.{name}() -> {it}", lambda format_=format_: format_) for name, format_ in known.items()),
    ]


_AUTHORIZER: Final = """
*path(Authorizer, string) -> PathCheck
*group(Authorizer, string) -> GroupCheck
*serviceAccount(Authorizer, string, string) -> Authorizer
*resource(GroupCheck, string) -> ResourceCheck
*subresource(ResourceCheck, string) -> ResourceCheck
*namespace(ResourceCheck, string) -> ResourceCheck
*name(ResourceCheck, string) -> ResourceCheck
*fieldSelector(ResourceCheck, string) -> ResourceCheck
*labelSelector(ResourceCheck, string) -> ResourceCheck
*check(PathCheck, string) -> Decision
*check(ResourceCheck, string) -> Decision
*errored(Decision) -> bool
*error(Decision) -> string
*allowed(Decision) -> bool
*reason(Decision) -> string
"""
"""Declared upstream, but DRA has no authorizer: they compile where the receiver's type is open, and no run gets in."""


def _never(*_: object) -> object:
    raise EvaluationError("no such overload")


def _check_cost(_: list[object], __: object) -> int:
    return 350_000


def _selector_cost(args: list[object], _: object) -> int:
    """Reading a selector, and two things made for each of its requirements, which have two characters at least."""
    return 10 + math.ceil(size(args[1]) * 0.1) + math.ceil(size(args[1]) * 0.5) * 50


_COSTS: Final = {"check": _check_cost, "fieldSelector": _selector_cost, "labelSelector": _selector_cost}


def _authorizer() -> list[Overload]:
    found = []
    for line in filter(None, _AUTHORIZER.split("\n")):
        whole = re.sub(r"\b[A-Z]\w+", lambda name: f"kubernetes.authorization.{name[0]}", line)
        cost = _COSTS.get(line[1 : line.index("(")], one)
        found.append(declare(whole, _never, cost, cost))
    return found


def declarations(release: int) -> list[Overload]:
    """All of them as Kubernetes 1.<release> has them."""
    return [*_quantities(), *_versions(), *_networks(), *_urls(release), *_formats(release), *_authorizer()]
