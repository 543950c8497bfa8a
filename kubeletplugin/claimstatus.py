"""What a driver says about devices in the status of claims (KEP-4817), written behind everybody's back.

Server-side apply, one field manager for the driver: its own entries are replaced, those of other drivers are not
touched, and an instance goes on with what the one before it said. Nobody waits for this: a pod does not start later
because its claim's status cannot be written. The newest word about a claim counts, older ones that were not written
yet are forgotten.

An API server that applies writes the whole object anew, with the keys of opaque configuration in alphabetical order;
where the claim has them in another, it takes that for a change of the allocation and refuses (1.34 to 1.37). A merge
patch leaves their order, so it takes the place of the apply there. Neither leaves white space between them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from kubeletplugin.api import JSON, ClaimRef, DeviceStatus
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.backoff import Backoff
from kubeletplugin.claims import claim_path
from kubeletplugin.client import KubeClient
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.publisher.queue import PoolQueue

log = logging.getLogger(__name__)

RETRY_CAP = 60.0
PACE = 0.1
"""Seconds before each write. Claims come in bursts, and an apply costs the API server more than all else that a
claim's preparation asks of it: nobody waits for the status, so it does not compete with the answer to the kubelet, nor
with pods that start."""
FORBIDDEN_RETRY = 600.0
"""Seconds after which a server that forbade it is asked again: somebody may have mended the role."""
_POINTLESS = frozenset({400, 404, 413, 422})
"""The claim is gone, is another one by now, or has no such device any more: the word has no place to go."""

_SHOWN = 200
"""Characters of an error in which older servers repeat the whole allocation, byte for byte in numbers."""

Word = tuple[ClaimRef, tuple[DeviceStatus, ...]]


class ClaimStatusWriter:
    """Writes ``status.devices`` from a thread of its own.

    Args:
        client: needs ``patch`` on ``resourceclaims/status``, and from Kubernetes 1.36 on ``associated-node:patch`` on
            ``resourceclaims/driver`` with the driver's name as resource name.
        driver_name: ``driver`` of all entries and field manager.
        on_failure: told of each word that could not be written, and whether it is tried again.
    """

    def __init__(
        self,
        client: KubeClient,
        driver_name: str,
        *,
        on_failure: Callable[[ClaimRef, str, bool], None] | None = None,
    ) -> None:
        self._client = client
        self._driver_name = driver_name
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._words: dict[str, Word] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._queue = PoolQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._stopping = threading.Event()

    def report(self, ref: ClaimRef, devices: Sequence[DeviceStatus]) -> None:
        """Say exactly this about the claim's devices from now on; nothing, where ``devices`` is empty. Returns at once.

        The API server forgets all of it by itself when the claim is deallocated.
        """
        with self._lock:
            if self._closed:
                return
            self._words[ref.uid] = (ref, tuple(devices))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)
                self._thread.start()
        self._queue.add(ref.uid)

    def settled(self, timeout: float | None) -> bool:
        """Wait until nothing is left to write; False after ``timeout`` seconds."""
        return self._queue.wait_for(lambda: not self._words, timeout)

    def stop(self) -> None:
        """End the thread. What is not written yet is left to the next instance, which prepares the claims again."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._queue.close()
        self._stopping.set()
        if thread is not None:
            thread.join(timeout=10.0)

    def _run(self) -> None:
        while (uid := self._queue.take()) is not None:
            self._stopping.wait(PACE)
            try:
                with self._lock:
                    word = self._words.get(uid)
                if word is not None:
                    self._write(uid, word)
            finally:
                self._queue.done()

    def _write(self, uid: str, word: Word) -> None:
        ref, devices = word
        try:
            try:
                self._apply(ref, devices)
            except ApiError as error:
                if not _is_reordering(error):
                    raise
                self._merge(ref, devices)
        except ApiError as error:
            self._failed(uid, word, _explain(error, self._driver_name), error)
        except (ApiUnreachableError, CredentialsError) as error:
            self._failed(uid, word, str(error), None)
        except Exception as error:
            log.exception("the status of claim %s cannot be written", ref)
            self._failed(uid, word, f"{type(error).__name__}: {error}", None)
        else:
            self._done(uid, word)

    def _apply(self, ref: ClaimRef, devices: Sequence[DeviceStatus]) -> None:
        body = document(self._driver_name, ref, devices)
        self._client.apply(f"{claim_path(ref)}/status", body, field_manager=self._driver_name)

    def _merge(self, ref: ClaimRef, devices: Sequence[DeviceStatus]) -> None:
        """The same by a merge patch, which replaces the list as a whole: others' entries are repeated as they are, and
        a claim that has changed meanwhile (409) is tried again later."""
        claim = self._client.get(claim_path(ref))
        if is_said(self._driver_name, claim, devices):
            return
        others = [one for one in claim["status"].get("devices") or () if one.get("driver") != self._driver_name]
        ours = [_entry(self._driver_name, device) for device in devices]
        version = claim["metadata"]["resourceVersion"]
        self._client.request(
            "PATCH",
            f"{claim_path(ref)}/status",
            query={"fieldManager": self._driver_name},
            body={"metadata": {"uid": ref.uid, "resourceVersion": version}, "status": {"devices": [*others, *ours]}},
            content_type="application/merge-patch+json",
        )

    def _failed(self, uid: str, word: Word, message: str, error: ApiError | None) -> None:
        status = error.status if error is not None else None
        forbidden = error is not None and _is_forbidden(error)
        again = forbidden or status not in _POINTLESS
        log.warning("the status of claim %s was not written: %s", word[0], message)
        if again:
            delay = self._backoffs.setdefault(uid, Backoff(0.5, RETRY_CAP)).next()
            if error is not None:
                delay = max(delay, error.retry_after or 0.0, FORBIDDEN_RETRY if forbidden else 0.0)
            self._queue.add(uid, delay)
        else:
            self._done(uid, word)
        if self._on_failure is not None:
            self._on_failure(word[0], message, again)

    def _done(self, uid: str, word: Word) -> None:
        with self._lock:
            if self._words.get(uid) is word:  # else there is a newer word, and it is in the queue
                del self._words[uid]
            self._backoffs.pop(uid, None)
        self._queue.wake()


def document(driver_name: str, ref: ClaimRef, devices: Sequence[DeviceStatus]) -> JSON:
    """What is applied. The UID keeps it from a claim that was made anew under the same name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": {"devices": [_entry(driver_name, device) for device in devices]},
    }


def is_said(driver_name: str, claim: JSON, devices: Sequence[DeviceStatus]) -> bool:
    """Whether the claim's status, as the API server gave it, says just this: then there is nothing to write."""
    status = claim.get("status") or {}
    found = [
        {name: value for name, value in entry.items() if value is not None}
        for entry in status.get("devices") or ()
        if entry.get("driver") == driver_name
    ]
    wanted = [_entry(driver_name, device) for device in devices]
    return len(found) == len(wanted) and all(entry in found for entry in wanted)


def _entry(driver_name: str, device: DeviceStatus) -> JSON:
    fields = {
        "driver": driver_name,
        "pool": device.pool,
        "device": device.device,
        "shareID": device.share_id,
        "conditions": list(device.conditions) or None,
        "data": device.data,
        "networkData": device.network_data,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _is_forbidden(error: ApiError) -> bool:
    """A missing right on ``resourceclaims/driver`` is answered as an invalid object (422) that names the right."""
    return error.status == 403 or (error.status == 422 and "resourceclaims/driver" in error.message)


def _is_reordering(error: ApiError) -> bool:
    """Whether the server has read something else than it has stored, and calls that a change of the allocation."""
    return error.status == 422 and "status.allocation" in error.message


def _explain(error: ApiError, driver_name: str) -> str:
    if _is_reordering(error):
        return (
            "the API server takes the white space in the claim's opaque configuration for a change of its allocation,"
            " whoever writes the status; whoever makes the claim must write the configuration's JSON without white"
            f" space, as kubectl does ({error.message[:_SHOWN]})"
        )
    if not _is_forbidden(error):
        return error.message
    return (
        f"{error.message}: the ClusterRole needs patch on resourceclaims/status, and associated-node:patch on"
        f" resourceclaims/driver with the resource name {driver_name} (Kubernetes 1.36 on)"
    )
