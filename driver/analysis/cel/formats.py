"""The named formats of Kubernetes' ``format`` library: what each demands, and what it says of a text that is wrong.

The texts are values of expressions (``format.dns1123Label().validate(x).value()``) and therefore upstream's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from . import times, urls

Check = Callable[[str], list[str]]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_KEY})?"
_ENDS: Final = "and must start and end with an alphanumeric character"
_KEY_TEXT: Final = f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_BASE64: Final = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE: Final = re.compile("([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile("([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})")


@dataclass(frozen=True, slots=True)
class Format:
    """A format; ``length`` is the length of a pattern that its cost is counted with."""

    name: str
    length: int
    check: Check

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def _refused(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{each}', " for each in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(text: str, most: int, unit: str) -> list[str]:
    return [f"must be no more than {most} {unit}"] if _length(text) > most else []


def _length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _label(text: str) -> list[str]:
    found = _too_long(text, 63, "characters")
    if re.fullmatch(_LABEL, text):
        return found
    if re.fullmatch(_SUBDOMAIN, text):
        return [*found, "must not contain dots"]
    rule = f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS}"
    return [*found, _refused(rule, _LABEL, "my-name", "123-abc")]


def _subdomain(text: str, unit: str = "characters") -> list[str]:
    found = _too_long(text, 253, unit)
    if re.fullmatch(_SUBDOMAIN, text):
        return found
    rule = f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ENDS}"
    return [*found, _refused(rule, _SUBDOMAIN, "example.com")]


def _label_1035(text: str) -> list[str]:
    found = _too_long(text, 63, "characters")
    if re.fullmatch(_LABEL_1035, text):
        return found
    rule = (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character"
    )
    return [*found, _refused(rule, _LABEL_1035, "my-name", "abc-123")]


def _qualified(what: str, unit: str) -> Check:
    def check(text: str) -> list[str]:
        rule = _refused(_KEY_TEXT, _KEY, "MyName", "my.name", "123-abc")
        *prefixes, name = text.split("/")
        if len(prefixes) > 1:
            return [f"{what} {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
        found = [f"prefix part {each}" for prefix in prefixes for each in _prefix(prefix, unit)]
        if not name:
            found.append("name part must be non-empty")
        found += [f"name part {each}" for each in _too_long(name, 63, unit)]
        return found if re.fullmatch(_KEY, name) else [*found, f"name part {rule}"]

    return check


def _prefix(text: str, unit: str) -> list[str]:
    return _subdomain(text, unit) if text else ["must be non-empty"]


def _label_value(unit: str) -> Check:
    def check(text: str) -> list[str]:
        found = _too_long(text, 63, unit)
        rule = f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
        wrong = [] if re.fullmatch(_VALUE, text) else [_refused(rule, _VALUE, "MyValue", "my_value", "12345")]
        return found + wrong

    return check


def _begins(check: Check) -> Check:
    """The beginning of a name, which may end with a dash because something follows."""

    def run(text: str) -> list[str]:
        data = text.encode("utf-8", "replace")
        masked = data[:-2] + b"a" if len(data) > 1 and data.endswith(b"-") else data
        return check(masked.decode("utf-8", "replace"))

    return run


def _either(fine: Callable[[str], bool], text: str) -> Check:
    return lambda value: [] if fine(value) else [text]


def is_date(text: str) -> bool:
    """Whether the text is a day of the calendar, as ``2021-01-31``."""
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return 1 <= month <= 12 and 1 <= day <= times.month_length(year, month)


def is_datetime(text: str) -> bool:
    """Whether the text is a date, a "T" and a time with a zone; a second "T" and what follows it is not looked at."""
    date, *rest = text.lower().split("t")
    found = _TIME.fullmatch(rest[0]) if rest and is_date(date) else None
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def _uri(strict: bool) -> Check:
    return lambda text: [each for each in (urls.problem(text, strict),) if each]


@lru_cache(maxsize=8)
def named(release: int) -> MappingProxyType[str, Format]:
    """All formats of Kubernetes 1.<release> by the name that expressions use."""
    what, unit = ("a valid label key", "bytes") if release >= 36 else ("a qualified name", "characters")
    entries: list[tuple[str, str, int, Check]] = [
        ("dns1123Label", "DNS1123Label", 30, _label),
        ("dns1123Subdomain", "DNS1123Subdomain", 60, _subdomain),
        ("dns1035Label", "DNS1035Label", 30, _label_1035),
        ("qualifiedName", "QualifiedName", 60, _qualified(what, unit)),
        ("dns1123LabelPrefix", "DNS1123LabelPrefix", 30, _begins(_label)),
        ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", 60, _begins(_subdomain)),
        ("dns1035LabelPrefix", "DNS1035LabelPrefix", 30, _begins(_label_1035)),
        ("labelValue", "LabelValue", 40, _label_value(unit)),
        ("uri", "URI", 1103, _uri(release >= 36)),
        ("uuid", "uuid", 70, _either(lambda text: bool(_UUID.fullmatch(text)), "does not match the UUID format")),
        ("byte", "byte", 84, _either(lambda text: bool(_BASE64.fullmatch(text)), "invalid base64")),
        ("date", "date", 71, _either(is_date, "invalid date")),
        ("datetime", "datetime", 71, _either(is_datetime, "invalid datetime")),
    ]
    return MappingProxyType({name: Format(shown, length, check) for name, shown, length, check in entries})
