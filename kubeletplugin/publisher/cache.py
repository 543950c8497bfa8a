"""What the API server holds, as far as we know: lists and watch events, and our own writes before the watch shows them.

Own writes are remembered so that a slow watch cannot make us create a slice twice. Everything is keyed by UID and
ordered by resourceVersion, which the API server promises to be comparable numbers for one resource (KEP-5504).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from kubeletplugin.api import JSON
from kubeletplugin.client import WatchEvent
from kubeletplugin.publisher.plan import pool_of

_MAX_GONE = 4096


class Change(msgspec.Struct, frozen=True):
    """What others did: the pools that are touched, and whether a slice vanished (the Node may have, too)."""

    pools: frozenset[str] = frozenset()
    lost: bool = False


class SliceCache:
    """The slices of one driver on one node. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, JSON] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._leaving: set[str] = set()

    def pool(self, name: str) -> list[JSON]:
        """All slices of a pool."""
        with self._lock:
            return [document for document in self._slices.values() if pool_of(document) == name]

    def pools(self) -> frozenset[str]:
        """Names of all pools that have slices."""
        with self._lock:
            return frozenset(pool_of(document) for document in self._slices.values())

    def replace(self, items: Iterable[JSON], version: str) -> Change:
        """Take a whole list of resource version ``version``; own writes that are newer than it stay.

        What is gone by now stays gone for a watch that is behind the list, and for late answers to own writes.
        """
        listed = {_uid(document): document for document in items}
        touched: set[str] = set()
        lost = False
        with self._lock:
            for uid, document in list(self._slices.items()):
                if uid not in listed and not _newer(_version(document), version):
                    del self._slices[uid]
                    self._mark_gone(uid)
                    touched.add(pool_of(document))
                    lost = True
            for document in listed.values():
                touched |= self._take(document)
        return Change(frozenset(touched), lost)

    def apply(self, event: WatchEvent) -> Change:
        """Take one event of the watch."""
        document = event.object
        with self._lock:
            if event.type in ("ADDED", "MODIFIED"):
                return Change(frozenset(self._take(document)))
            if event.type == "DELETED":
                # The answer to our own write may come only now, and must not bring the slice back.
                self._mark_gone(_uid(document))
                known = self._slices.pop(_uid(document), None)
                if known is not None and _uid(document) not in self._leaving:
                    return Change(frozenset({pool_of(known)}), lost=True)
        return Change()

    def stored(self, document: JSON) -> None:
        """We wrote it; ``document`` is the server's answer."""
        with self._lock:
            self._take(document)

    def deleting(self, document: JSON) -> None:
        """We are about to delete it: its event may come before the answer, and is no news."""
        with self._lock:
            self._leaving.add(_uid(document))

    def kept(self, document: JSON) -> None:
        """The deletion failed."""
        with self._lock:
            self._leaving.discard(_uid(document))

    def deleted(self, document: JSON) -> None:
        """We deleted it, or found it gone."""
        with self._lock:
            self._leaving.discard(_uid(document))
            self._slices.pop(_uid(document), None)
            self._mark_gone(_uid(document))

    def _mark_gone(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > _MAX_GONE:
            self._gone.popitem(last=False)

    def _take(self, document: JSON) -> set[str]:
        """The pools that this touches; empty where we knew it already."""
        uid = _uid(document)
        known = self._slices.get(uid)
        if uid in self._gone or (known is not None and not _newer(_version(document), _version(known))):
            return set()
        self._slices[uid] = document
        return {pool_of(document)} | ({pool_of(known)} if known is not None else set())


def _uid(document: JSON) -> str:
    return str(document["metadata"]["uid"])


def _version(document: JSON) -> str:
    return str(document["metadata"].get("resourceVersion", ""))


def _newer(version: str, than: str) -> bool:
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than
