"""The formats of names in the Kubernetes API. Each function gives the server's complaints about a text, or none."""

from __future__ import annotations

import re

from kubeletplugin.validation.fields import Errors, check_all, invalid, required, too_long

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_NAME_PART})?"
_C_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"

_label = re.compile(_LABEL)
_subdomain = re.compile(_SUBDOMAIN)
_name_part = re.compile(_NAME_PART)
_label_value = re.compile(_LABEL_VALUE)
_c_identifier = re.compile(_C_IDENTIFIER)

_PRE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD = "[0-9a-zA-Z-]+"
_NUMBER = r"(0|[1-9]\d*)"
_semver = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII)

_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME_PART}')"
)

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
DRIVER_NAME_LENGTH = 63
ATTRIBUTE_ID_LENGTH = 32
POOL_NAME_LENGTH = 253


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def dns_label(text: str) -> list[str]:
    """RFC 1123 label: at most 63 of a-z, 0-9 and ``-``."""
    messages = []
    if _bytes(text) > LABEL_LENGTH:
        messages.append(f"must be no more than {LABEL_LENGTH} characters")
    if not _label.fullmatch(text):
        if re.fullmatch(_SUBDOMAIN, text):
            messages.append("must not contain dots")
        else:
            messages.append(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
                "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
                f"'{_LABEL}')"
            )
    return messages


def dns_subdomain(text: str) -> list[str]:
    """RFC 1123 subdomain: labels joined by dots, at most 253."""
    messages = []
    if _bytes(text) > SUBDOMAIN_LENGTH:
        messages.append(f"must be no more than {SUBDOMAIN_LENGTH} characters")
    if not _subdomain.fullmatch(text):
        messages.append(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            f"'{_SUBDOMAIN}')"
        )
    return messages


def label_key(text: str) -> list[str]:
    """A label or taint key: an optional domain, a slash, a name part of at most 63."""
    prefix, slash, name = text.rpartition("/")
    messages: list[str] = []
    if "/" in prefix:
        return [
            f"a valid label key {_NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    if slash:
        if not prefix:
            messages.append("prefix part must be non-empty")
        else:
            messages += [f"prefix part {message}" for message in dns_subdomain(prefix)]
    return messages + _name_messages(name)


def _name_messages(name: str) -> list[str]:
    messages = []
    if not name:
        messages.append("name part must be non-empty")
    elif _bytes(name) > LABEL_LENGTH:
        messages.append(f"name part must be no more than {LABEL_LENGTH} bytes")
    if not _name_part.fullmatch(name):
        messages.append(f"name part {_NAME_RULE}")
    return messages


def label_value(text: str) -> list[str]:
    """A label or taint value: empty, or at most 63 of letters, digits, ``-``, ``_`` and ``.``."""
    messages = []
    if _bytes(text) > LABEL_LENGTH:
        messages.append(f"must be no more than {LABEL_LENGTH} bytes")
    if not _label_value.fullmatch(text):
        messages.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
            f"validation is '{_LABEL_VALUE}')"
        )
    return messages


def is_semver(text: str) -> bool:
    """Whether the text is a version of semver.org 2.0.0, strictly: 570.124.06 and 12.8 are not."""
    return _semver.fullmatch(text) is not None


def check_driver_name(field: str, name: str) -> Errors:
    """A DRA driver's name: a subdomain of at most 63; upper case is let pass with a warning."""
    if not name:
        return [required(field)]
    errors: Errors = [too_long(field, DRIVER_NAME_LENGTH)] if _bytes(name) > DRIVER_NAME_LENGTH else []
    return errors + check_all(field, name, dns_subdomain(name.lower()))


def check_pool_name(field: str, name: str) -> Errors:
    """Subdomains joined by slashes, at most 253 in all."""
    if not name:
        return [required(field)]
    errors: Errors = [too_long(field, POOL_NAME_LENGTH)] if _bytes(name) > POOL_NAME_LENGTH else []
    for part in name.split("/"):
        errors += check_all(field, part, dns_subdomain(part))
    return errors


def check_qualified_name(field: str, name: str) -> Errors:
    """The name of an attribute or capacity: ``id`` or ``domain/id``; more than one slash is let pass (a known gap)."""
    parts = name.split("/")
    if len(parts) == 1:
        return check_c_identifier(field, name)
    if len(parts) > 2:
        return []
    domain, identifier = parts
    errors = check_driver_name(field, domain) if domain else [invalid(field, "", "the domain must not be empty")]
    if identifier:
        return errors + check_c_identifier(field, identifier)
    return [*errors, invalid(field, "", "the name must not be empty")]


def check_c_identifier(field: str, name: str) -> Errors:
    """Letters, digits and underscores, no digit first, at most 32."""
    errors: Errors = [too_long(field, ATTRIBUTE_ID_LENGTH)] if _bytes(name) > ATTRIBUTE_ID_LENGTH else []
    if not _c_identifier.fullmatch(name):
        errors.append(
            invalid(
                field,
                name,
                "a valid C identifier must start with alphabetic character or '_', followed by a string of "
                "alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for "
                f"validation is '{_C_IDENTIFIER}')",
            )
        )
    return errors
