"""Server-side apply for ``status.devices`` of claims, as far as drivers meet it: who says what of a claim.

The rules are those of structured-merge-diff: entries are keyed by driver, pool, device and share; a manager that does
not repeat what it applied loses it, unless others say it too; a different value of somebody else is a conflict, or is
taken over by force. Conditions are one field by type here, where the real server looks into each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kubeletplugin.api import JSON
from kubeletplugin.testing.status import StatusError

Key: TypeAlias = tuple[tuple[str, str], ...]
FieldPath: TypeAlias = tuple[Key, tuple[str, ...]]

_KEYS = ("device", "driver", "pool", "shareID")
_DETAILED = {"networkData"}


@dataclass(slots=True)
class _Manager:
    """What one manager says; ``applied`` tells apply from update, which are two managers even under one name."""

    name: str
    applied: bool
    fields: set[FieldPath] = field(default_factory=set)


class Ownership:
    """Who says what in which claim. Used under the store's lock."""

    def __init__(self) -> None:
        self.managers: dict[str, list[_Manager]] = {}

    def apply(self, old: JSON, entries: list[JSON], manager: str, *, force: bool) -> tuple[list[JSON], Ownership]:
        """The list after an apply, and who says what then; nothing is changed here until that is adopted.

        Raises:
            StatusError: 409 for a conflict without ``force``, 500 for an entry that is there twice.
        """
        after = copy.deepcopy(self)
        uid = str(old["metadata"]["uid"])
        managers = after.managers.setdefault(uid, [])
        own = next((one for one in managers if one.name == manager and one.applied), None)
        if own is None:
            own = _Manager(manager, applied=True)
            managers.append(own)
        stored = {_key(entry): copy.deepcopy(entry) for entry in _devices(old)}
        wanted = _unique(entries)
        said = {path: value for key, entry in wanted.items() for path, value in _fields(key, entry)}
        known = {path: value for key, entry in stored.items() for path, value in _fields(key, entry)}
        others = [one for one in managers if one is not own]
        differing = {path for path, value in said.items() if path in known and known[path] != value}
        _check_conflicts(others, differing, force=force)
        for one in others:
            one.fields -= differing
        gone = own.fields - said.keys() - {path for one in others for path in one.fields}
        for key, steps in sorted(gone, key=lambda path: -len(path[1])):
            _remove(stored, key, steps)
        for key, entry in wanted.items():
            _merge(stored.setdefault(key, {}), entry)
        own.fields = set(said)
        return list(stored.values()), after

    def updated(self, old: JSON, new: JSON, manager: str) -> None:
        """Somebody wrote the whole status: what is different now is theirs, and what is gone is nobody's."""
        uid = str(new["metadata"]["uid"])
        before = {path: value for entry in _devices(old) for path, value in _fields(_key(entry), entry)}
        after = {path: value for entry in _devices(new) for path, value in _fields(_key(entry), entry)}
        changed = {path for path, value in after.items() if path not in before or before[path] != value}
        managers = self.managers.setdefault(uid, [])
        for one in managers:
            one.fields = (one.fields & after.keys()) - changed
        own = next((one for one in managers if one.name == manager and not one.applied), None)
        if own is None and changed:
            managers.append(_Manager(manager, applied=False, fields=changed))
        elif own is not None:
            own.fields |= changed


def _check_conflicts(others: Iterable[_Manager], differing: set[FieldPath], *, force: bool) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{one.name}" with subresource "status"'
            + ("" if one.applied else " using resource.k8s.io/v1"),
            "field": _text(path),
        }
        for one in others
        for path in sorted(one.fields & differing)
    ]
    if causes and not force:
        count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
        text = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
        raise StatusError(409, "Conflict", f"Apply failed with {count}: {text}", {"causes": causes})


def _devices(claim: JSON) -> list[JSON]:
    return list((claim.get("status") or {}).get("devices") or ())


def _key(entry: JSON) -> Key:
    return tuple((name, str(entry[name])) for name in _KEYS if entry.get(name) is not None)


def _unique(entries: list[JSON]) -> dict[Key, JSON]:
    found: dict[Key, JSON] = {}
    for entry in entries:
        key = _key(entry)
        if key in found:
            text = f"failed to create typed patch object: .status.devices: duplicate entries for key {_key_text(key)}"
            raise StatusError(500, "", text)
        found[key] = entry
    return found


def _fields(key: Key, entry: JSON) -> list[tuple[FieldPath, Any]]:
    """Everything that can have a manager of its own, the entry itself included."""
    found: list[tuple[FieldPath, Any]] = [((key, ()), None)]
    for name, value in entry.items():
        if name in _KEYS or value is None:
            continue
        if name == "conditions":
            found += [((key, (name, str(one.get("type")))), one) for one in value]
        elif name in _DETAILED and isinstance(value, dict):
            found += [((key, (name, part)), content) for part, content in value.items()]
        else:
            found.append(((key, (name,)), value))
    return found


def _remove(stored: dict[Key, JSON], key: Key, steps: tuple[str, ...]) -> None:
    entry = stored.get(key)
    if entry is None:
        return
    if not steps:
        if not [name for name in entry if name not in _KEYS and entry[name]]:
            del stored[key]
    elif steps[0] == "conditions":
        entry["conditions"] = [one for one in entry.get("conditions") or () if one.get("type") != steps[1]] or None
    elif len(steps) == 2:
        entry[steps[0]].pop(steps[1], None)
        if not entry[steps[0]]:
            del entry[steps[0]]
    else:
        entry.pop(steps[0], None)


def _merge(entry: JSON, applied: JSON) -> None:
    for name, value in applied.items():
        if name == "conditions":
            kinds = {one.get("type"): one for one in [*(entry.get("conditions") or ()), *(value or ())]}
            entry["conditions"] = list(kinds.values()) or None
        elif name in _DETAILED and isinstance(entry.get(name), dict) and isinstance(value, dict):
            entry[name] |= value
        else:
            entry[name] = value


def _key_text(key: Key) -> str:
    return "[" + ",".join(f'{name}="{value}"' for name, value in key) + "]"


def _text(path: FieldPath) -> str:
    key, steps = path
    text = f".status.devices{_key_text(key)}"
    if steps and steps[0] == "conditions":
        return f'{text}.conditions[type="{steps[1]}"]'
    return ".".join((text, *steps))
