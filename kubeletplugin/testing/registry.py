"""Create, read, update, delete and list as kube-apiserver does them, over a store. No HTTP."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

from kubeletplugin.api import JSON
from kubeletplugin.testing.apply import Ownership
from kubeletplugin.testing.gates import DEFAULT_GATES
from kubeletplugin.testing.kinds import Context, Kind, timestamp
from kubeletplugin.testing.schema import without_empty
from kubeletplugin.testing.status import already_exists, bad_request, conflict, invalid_object, not_found
from kubeletplugin.testing.store import Key, Store
from kubeletplugin.validation import validate_metadata, validate_metadata_update
from kubeletplugin.validation.fields import invalid, required

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM = random.Random()  # noqa: S311 (a name, no secret)
_MAX_GENERATED_BASE = 58
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class Registry:
    """The objects of one API server."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.gates: frozenset[str] = DEFAULT_GATES
        self._ownership = Ownership()

    def create(self, kind: Kind, namespace: str, sent: JSON, *, dry_run: bool = False) -> JSON:
        """POST. Raises ``StatusError``."""
        _check_type(kind, sent)
        metadata = self._new_metadata(kind, namespace, sent.get("metadata") or {})
        prepared = kind.prepare(sent, None, "", self._context())
        document = _document(kind, metadata, prepared)
        faults = validate_metadata(metadata) + kind.validate(document, None, "")
        if faults:
            raise invalid_object(kind.kind, kind.group, metadata.get("name", ""), faults)
        document = without_empty(document)
        key = Key(kind.collection, namespace, metadata["name"])
        with self.store.lock:
            if self.store.get(key) is not None:
                raise already_exists(kind.plural, kind.group, key.name)
            return document if dry_run else self.store.put(key, document)

    def _new_metadata(self, kind: Kind, namespace: str, sent: JSON) -> JSON:
        metadata = {
            name: sent[name]
            for name in ("name", "generateName", "labels", "annotations", "ownerReferences", "finalizers")
            if sent.get(name)
        }
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(_RANDOM.choices(_ALPHABET, k=5))
            metadata["name"] = metadata["generateName"][:_MAX_GENERATED_BASE] + suffix
        if kind.namespaced:
            metadata["namespace"] = namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp()
        if kind.counts_generation:
            metadata["generation"] = 1
        return metadata

    def get(self, kind: Kind, namespace: str, name: str) -> JSON:
        """GET of one object. Raises ``StatusError``."""
        document = self.store.get(Key(kind.collection, namespace, name))
        if document is None:
            raise not_found(kind.plural, kind.group, name)
        return document

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        sent: JSON,
        *,
        subresource: str = "",
        dry_run: bool = False,
        manager: str = "",
    ) -> JSON:
        """PUT by a field manager. Raises ``StatusError``."""
        _check_type(kind, sent)
        sent_name = (sent.get("metadata") or {}).get("name", name)
        if sent_name != name:
            text = f"the name of the object ({sent_name}) does not match the name on the URL ({name})"
            raise bad_request(text)
        with self.store.lock:
            old = self.get(kind, namespace, name)
            self._check_versions(kind, old, sent.get("metadata") or {})
            key = Key(kind.collection, namespace, name)
            stored = self._replace(kind, key, old, sent, subresource, dry_run=dry_run)
            if kind.kind == "ResourceClaim" and not dry_run:
                self._ownership.updated(old, stored, manager)
            return stored

    def apply(
        self, kind: Kind, namespace: str, name: str, sent: JSON, *, manager: str, force: bool, dry_run: bool = False
    ) -> JSON:
        """PATCH of a claim's status by server-side apply; only ``status.devices`` is taken. Raises ``StatusError``."""
        _check_type(kind, sent)
        if not manager:
            fault = required("fieldManager", "is required for apply patch")
            raise invalid_object("PatchOptions", "meta.k8s.io", "", [fault])
        metadata = sent.get("metadata") or {}
        if metadata.get("managedFields") is not None:
            raise bad_request("metadata.managedFields must be nil")
        with self.store.lock:
            old = self.get(kind, namespace, name)
            if metadata.get("uid") not in (None, old["metadata"]["uid"]):
                faults = [invalid("metadata.uid", metadata["uid"], "field is immutable")]
                raise invalid_object(kind.kind, kind.group, name, faults)
            self._check_versions(kind, old, metadata)
            entries = (sent.get("status") or {}).get("devices") or []
            devices, ownership = self._ownership.apply(old, entries, manager, force=force)
            document = {**old, "status": {**(old.get("status") or {}), "devices": devices}}
            key = Key(kind.collection, namespace, name)
            stored = self._replace(kind, key, old, document, "status", dry_run=dry_run)
            if not dry_run:
                self._ownership = ownership
            return stored

    def merge(
        self, kind: Kind, namespace: str, name: str, patch: JSON, *, subresource: str = "", dry_run: bool = False
    ) -> JSON:
        """PATCH with a merge patch (RFC 7386). Raises ``StatusError``."""
        with self.store.lock:
            old = self.get(kind, namespace, name)
            merged: JSON = _merge(old, patch)
            self._check_versions(kind, old, merged["metadata"])
            return self._replace(kind, Key(kind.collection, namespace, name), old, merged, subresource, dry_run=dry_run)

    def _check_versions(self, kind: Kind, old: JSON, metadata: JSON) -> None:
        name, uid, version = old["metadata"]["name"], metadata.get("uid"), metadata.get("resourceVersion")
        if uid and uid != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise conflict(kind.plural, kind.group, name, why)
        if version and version != old["metadata"]["resourceVersion"]:
            raise conflict(kind.plural, kind.group, name, _MODIFIED)

    def _replace(self, kind: Kind, key: Key, old: JSON, sent: JSON, subresource: str, *, dry_run: bool) -> JSON:
        metadata = _updated_metadata(old["metadata"], sent.get("metadata") or {}, subresource)
        document = _document(kind, metadata, kind.prepare(sent, old, subresource, self._context()))
        faults = validate_metadata_update(metadata, old["metadata"]) + kind.validate(document, old, subresource)
        if faults:
            raise invalid_object(kind.kind, kind.group, key.name, faults)
        document = dict(without_empty(document))
        if kind.counts_generation and document.get("spec") != old.get("spec"):
            document["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1
        if document == old or dry_run:
            return document
        if "deletionTimestamp" in document["metadata"] and not document["metadata"].get("finalizers"):
            return self.store.remove(key)
        return self.store.put(key, document)

    def delete(self, kind: Kind, namespace: str, name: str, options: JSON, *, dry_run: bool = False) -> JSON:
        """DELETE of one object; returns what was deleted. Raises ``StatusError``."""
        key = Key(kind.collection, namespace, name)
        with self.store.lock:
            document = self.get(kind, namespace, name)
            metadata, wanted = document["metadata"], options.get("preconditions") or {}
            for field, word, event in (
                ("uid", "UID", "deleted and then recreated"),
                ("resourceVersion", "ResourceVersion", "modified"),
            ):
                value = wanted.get(field)
                if value is not None and value != metadata[field]:
                    why = (
                        f"the {word} in the precondition ({value}) does not match the {word} in record "
                        f"({metadata[field]}). The object might have been {event}"
                    )
                    raise conflict(kind.kind, kind.group, name, why)
            if dry_run:
                return document
            if metadata.get("finalizers"):
                marked = {**metadata, "deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": 0}
                return (
                    document
                    if "deletionTimestamp" in metadata
                    else self.store.put(key, {**document, "metadata": marked})
                )
            return self.store.remove(key)

    def delete_collection(self, kind: Kind, namespace: str | None, matches: Callable[[JSON], bool]) -> list[JSON]:
        """DELETE of all that ``matches``; returns what was deleted."""
        with self.store.lock:
            found = [key for key, document in self.store.select(kind.collection, namespace) if matches(document)]
            return [self.delete(kind, key.namespace, key.name, {}) for key in found if self.store.get(key) is not None]

    def select(self, kind: Kind, namespace: str | None, matches: Callable[[JSON], bool]) -> JSON:
        """GET of a collection: items without kind and apiVersion, as the API server gives them."""
        with self.store.lock:
            found = [document for _, document in self.store.select(kind.collection, namespace) if matches(document)]
            revision = self.store.revision
        return list_document(kind, found, revision)

    def _context(self) -> Context:
        return Context(self.gates, timestamp)


def list_document(kind: Kind, documents: list[JSON], revision: int) -> JSON:
    """A List object."""
    items = [{name: part for name, part in entry.items() if name not in ("kind", "apiVersion")} for entry in documents]
    return {
        "kind": f"{kind.kind}List",
        "apiVersion": kind.api_version,
        "metadata": {"resourceVersion": str(revision)},
        "items": items,
    }


def field_matcher(kind: Kind, selector: str) -> Callable[[JSON], bool]:
    """The predicate of a field selector. Raises ``StatusError`` for one that the kind does not support."""
    terms: list[tuple[Callable[[JSON], str], str, bool]] = []
    for term in filter(None, selector.split(",")):
        name, operator, value = term.partition("=")
        if not operator:
            raise bad_request(f"invalid selector: '{selector}'; can't understand '{term}'")
        equal = not name.endswith("!")
        read = kind.selectable.get(name.removesuffix("!"))
        if read is None:
            where = f"{kind.api_version}, Kind={kind.kind}" if kind.group else f"{kind.version}, Kind={kind.kind}"
            raise bad_request(f"field label not supported for {where}: {name.removesuffix('!')}")
        terms.append((read, value.removeprefix("="), equal))
    return lambda document: all((read(document) == value) is equal for read, value, equal in terms)


def _check_type(kind: Kind, sent: Any) -> None:
    if not isinstance(sent, dict):
        text = f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind"
        raise bad_request(text)
    sent_kind, sent_version = sent.get("kind") or kind.kind, sent.get("apiVersion") or kind.api_version
    if (sent_kind, sent_version) != (kind.kind, kind.api_version):
        text = f'{sent_kind} in version "{sent_version.rpartition("/")[2]}" cannot be handled as a {kind.kind}: '
        raise bad_request(f'{text}no kind "{sent_kind}" is registered for version "{sent_version}" in scheme')
    if not isinstance(sent.get("metadata") or {}, dict):
        raise bad_request(f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: metadata is no object')


def _document(kind: Kind, metadata: JSON, body: JSON) -> JSON:
    return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata, **body}


def _updated_metadata(old: JSON, sent: JSON, subresource: str) -> JSON:
    """What a client may change is taken over, the rest stays. Status updates change no metadata."""
    if subresource:
        return dict(old)
    metadata = dict(old)
    for name in ("labels", "annotations", "ownerReferences", "finalizers"):
        metadata.pop(name, None)
        if sent.get(name):
            metadata[name] = sent[name]
    return metadata


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result
