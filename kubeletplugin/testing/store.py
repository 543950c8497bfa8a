"""Objects in memory with one revision counter, a history for watches and garbage collection. No HTTP, no rules."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kubeletplugin.api import JSON


@dataclass(frozen=True, slots=True)
class Key:
    """Where an object is: collection (``resource.k8s.io/resourceslices``), namespace ("" if cluster-scoped), name."""

    collection: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Happening:
    """One change: ``before`` is None for a creation, ``after`` for a deletion."""

    revision: int
    key: Key
    before: JSON | None
    after: JSON | None


class Store:
    """Stored documents are never changed in place, so they may be read without the lock.

    Hold ``lock`` around read, check and write.
    """

    def __init__(self, history: int = 10_000) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._objects: dict[Key, JSON] = {}
        self._revision = 1
        self._history: deque[Happening] = deque(maxlen=history)
        self._compacted = 1
        self._held: int | None = None

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        with self.lock:
            return self._revision

    def get(self, key: Key) -> JSON | None:
        """One document."""
        with self.lock:
            return self._objects.get(key)

    def select(self, collection: str, namespace: str | None) -> list[tuple[Key, JSON]]:
        """All documents of a collection by name, of all namespaces where ``namespace`` is None."""
        with self.lock:
            found = [
                (key, document)
                for key, document in self._objects.items()
                if key.collection == collection and namespace in (None, key.namespace)
            ]
        return sorted(found, key=lambda entry: (entry[0].namespace, entry[0].name))

    def put(self, key: Key, document: JSON) -> JSON:
        """Store a document; returns it with its resourceVersion."""
        with self.changed:
            before = self._objects.get(key)
            self._revision += 1
            metadata = {**document["metadata"], "resourceVersion": str(self._revision)}
            stored = {**document, "metadata": metadata}
            self._objects[key] = stored
            self._record(Happening(self._revision, key, before, stored))
            self._collect()
            return stored

    def remove(self, key: Key) -> JSON:
        """Delete a document; returns it as its watchers see it, under the revision of the deletion."""
        with self.changed:
            before = self._objects.pop(key)
            self._revision += 1
            gone = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self._revision)}}
            self._record(Happening(self._revision, key, gone, None))
            self._collect()
            return gone

    def since(self, revision: int) -> tuple[list[Happening], bool]:
        """Changes after ``revision``, and whether all of them are still known."""
        with self.lock:
            known = revision >= self._compacted
            visible = self._revision if self._held is None else self._held
            return [entry for entry in self._history if revision < entry.revision <= visible], known

    def compact(self) -> None:
        """Forget the history: a watch from any earlier revision is answered with 410."""
        with self.lock:
            self._history.clear()
            self._compacted = self._revision

    def hold_watches(self) -> None:
        """Let no watch see a change until ``release_watches``: a watch cache that lags."""
        with self.lock:
            self._held = self._revision

    def release_watches(self) -> None:
        """Deliver what was held back."""
        with self.changed:
            self._held = None
            self.changed.notify_all()

    def _record(self, happening: Happening) -> None:
        if len(self._history) == self._history.maxlen:
            self._compacted = self._history[0].revision
        self._history.append(happening)
        self.changed.notify_all()

    def _collect(self) -> None:
        """What the garbage collector of kube-controller-manager does, at once: no owner left, no object."""
        uids = {document["metadata"]["uid"] for document in self._objects.values()}
        for key, document in list(self._objects.items()):
            owners = document["metadata"].get("ownerReferences") or ()
            if owners and not any(owner.get("uid") in uids for owner in owners) and key in self._objects:
                self.remove(key)


Matcher = Callable[[JSON], bool]


def as_event(happening: Happening, matches: Matcher) -> tuple[str, JSON] | None:
    """The watch event for a change as a selector sees it: objects that leave the selection are deleted for it."""
    was = happening.before is not None and matches(happening.before)
    now = happening.after is not None and matches(happening.after)
    if happening.after is not None and now:
        return ("MODIFIED" if was else "ADDED"), happening.after
    if happening.before is not None and was:
        document = happening.before
        metadata = {**document["metadata"], "resourceVersion": str(happening.revision)}
        return "DELETED", {**document, "metadata": metadata}
    return None
