"""Claims that no longer exist are unprepared: those that were deleted while the node was off, or with their namespace,
or made anew under the same name, and that the kubelet did not come back for.

The kubelet's own Unprepare always goes first: a claim must have been found gone twice, a grace apart. What cannot be
found out (no answer from the API server, no right, a claim without a name) is not gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from driver.prepare import ClaimError, ClaimRecord, ClaimRef
from kubeletplugin.api import ClaimRef as ApiRef
from kubeletplugin.api import PrepareError
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.claims import check_ref, claim_path
from kubeletplugin.credentials import CredentialsError

log = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""Between the look that finds a claim gone and the one that acts on it."""
TIMEOUT = 10.0


class UnknownError(Exception):
    """It cannot be found out whether a claim exists; the message says why."""


class Reader(Protocol):
    """The one thing that is needed of the API server; ``KubeClient`` has it."""

    def get(self, path: str, *, timeout: float | None = None) -> dict[str, Any]:
        """The object at the path."""


class Swept(msgspec.Struct, frozen=True):
    """One claim that was unprepared, or could not be."""

    ref: ClaimRef
    why: str
    error: str | None


def why_gone(reader: Reader, ref: ClaimRef, driver_name: str, pool_name: str) -> str | None:
    """Why a claim is no claim of this node any more: ``deleted``, ``replaced`` or ``deallocated``; None: it is one.

    Raises:
        UnknownError: that cannot be found out now.
    """
    api_ref = ApiRef(ref.namespace, ref.name, ref.uid)
    try:
        check_ref(api_ref)  # a record that was made up from a CDI file may have no name
        document = reader.get(claim_path(api_ref), timeout=TIMEOUT)
    except ApiError as error:
        # A proxy, or a server without this API, says 404 as well.
        about = error.details.get("kind"), error.details.get("name")
        if error.status == 404 and error.reason == "NotFound" and about == ("resourceclaims", ref.name):
            return "deleted"
        raise UnknownError(str(error)) from error
    except (ApiUnreachableError, CredentialsError, PrepareError) as error:
        raise UnknownError(str(error)) from error
    uid = _at(document, "metadata", "uid")
    if document.get("kind") != "ResourceClaim" or not isinstance(uid, str):
        raise UnknownError("the answer is no ResourceClaim")
    if uid != ref.uid:
        return "replaced"
    results = _at(document, "status", "allocation", "devices", "results")
    here = [
        one
        for one in (results if isinstance(results, list) else ())
        if isinstance(one, dict) and one.get("driver") == driver_name and one.get("pool") == pool_name
    ]
    return None if here else "deallocated"


def _at(document: Mapping[str, Any], *keys: str) -> object:
    value: object = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Reconciler:
    """The thread that looks.

    Args:
        reader: the API server.
        records: the claims that are prepared, or under way.
        unprepare: undoes claims.
        told: called with what was done.
        period: seconds between two looks at all claims.
        grace: seconds between finding a claim gone and acting on it.
    """

    def __init__(
        self,
        reader: Reader,
        records: Callable[[], Sequence[ClaimRecord]],
        unprepare: Callable[[Sequence[ClaimRef]], Mapping[str, ClaimError | None]],
        *,
        driver_name: str,
        pool_name: str,
        told: Callable[[Sequence[Swept]], None] = lambda _swept: None,
        period: float,
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._records = records
        self._unprepare = unprepare
        self._names = driver_name, pool_name
        self._told = told
        self._period = period
        self._grace = grace
        self._clock = clock
        self._gone_since: dict[str, float] = {}
        self._unknown: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self) -> None:
        """Begin with a look at once."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End; a look under way is left behind."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def look(self) -> tuple[Swept, ...]:
        """Ask about every claim once, and unprepare those that have been gone for the grace."""
        ready: dict[str, tuple[ClaimRef, str]] = {}
        gone: set[str] = set()
        unknown: dict[str, str] = {}
        records = self._records()
        for record in records:
            if self._stopping.is_set():
                return ()
            ref = record.ref
            try:
                why = why_gone(self._reader, ref, *self._names)
            except UnknownError as error:
                unknown[ref.uid] = str(error)
                continue
            if why is not None:
                gone.add(ref.uid)
                since = self._gone_since.setdefault(ref.uid, self._clock())
                if self._clock() - since >= self._grace:
                    ready[ref.uid] = ref, why
        known = {record.ref.uid for record in records}
        self._gone_since = {
            uid: at for uid, at in self._gone_since.items() if uid in gone or (uid in unknown and uid in known)
        }
        self._say_unknown(unknown)
        return self._sweep(ready)

    def _sweep(self, ready: Mapping[str, tuple[ClaimRef, str]]) -> tuple[Swept, ...]:
        if not ready:
            return ()
        answers = self._unprepare([ref for ref, _ in ready.values()])
        swept = []
        for uid, (ref, why) in ready.items():
            error = answers.get(uid)
            if error is None:
                self._gone_since.pop(uid, None)
                log.info("claim %s was unprepared: the API server says it is %s", ref, why)
            else:
                log.warning("claim %s is %s by the API server's word and cannot be unprepared: %s", ref, why, error)
            swept.append(Swept(ref, why, None if error is None else str(error)))
        self._told(swept)
        return tuple(swept)

    def _say_unknown(self, unknown: Mapping[str, str]) -> None:
        """Once for each claim and silence: an API server that is away is no news every few minutes."""
        for uid in unknown.keys() - self._unknown:
            log.info("whether claim uid %s still exists cannot be found out: %s", uid, unknown[uid])
        self._unknown = frozenset(unknown)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                log.exception("looking for claims that are gone failed; it is tried again")
            pause = min(self._period, self._grace) if self._gone_since else self._period
            if self._stopping.wait(pause):
                return
