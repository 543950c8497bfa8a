"""Runs a handler on the claims of one RPC: in order per claim, within the kubelet's patience, with an answer for each.

The kubelet waits 45 s (``defaultClientCallTimeout``) and then tells the user nothing but "deadline exceeded". Here the
RPC's thread waits for a worker thread a little shorter than that and says what is being waited for; the work goes on,
keeps its turn, and the kubelet's next call finds it done or stands behind it.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from kubeletplugin.api import Claim, ClaimRef, Handler, Observer, PreparedDevice, PrepareError
from kubeletplugin.claims import ClaimReader, check_ref, fetch_claim
from kubeletplugin.locks import ClaimQueues, Turn
from kubeletplugin.operation import operation_id

if TYPE_CHECKING:
    from kubeletplugin.instancelock import InstanceLock
    from kubeletplugin.metadata import MetadataWriter

log = logging.getLogger(__name__)

FETCH_TIMEOUT = 15.0
"""Seconds for the API server to give a claim, so that there is time left to say that it did not."""

Outcome: TypeAlias = Sequence[PreparedDevice] | PrepareError | None
"""Devices for a prepared claim, ``None`` for an unprepared one."""

Work: TypeAlias = Callable[[list[ClaimRef]], Mapping[str, Outcome]]


def encodable(text: str) -> str:
    """The text with what UTF-8 cannot carry (lone surrogates, from undecodable bytes) replaced."""
    return text.encode("utf-8", "replace").decode()


class Call(msgspec.Struct, frozen=True):
    """One RPC: when it came, until when an answer is of use, and whether the caller is still there."""

    kind: str
    """``prepare`` or ``unprepare``."""
    arrived: float
    """Monotonic seconds, before any wait for a thread."""
    deadline: float
    """Monotonic seconds."""
    is_active: Callable[[], bool]

    def remaining(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())


class ClaimCalls:
    """Prepare and Unprepare over a driver's handler.

    Args:
        driver_name: for messages.
        handler: the driver.
        reader: gets claims.
        observer: told how each claim's part of a call ended.
        workers: handler calls of each kind that may run at once.
        metadata: writes what containers are to know of devices; ``None``: nothing is handed out.
        lock: held around each handler call; ``None``: calls about different claims run side by side.
    """

    def __init__(
        self,
        driver_name: str,
        handler: Handler,
        reader: ClaimReader,
        observer: Observer,
        *,
        workers: int,
        metadata: MetadataWriter | None = None,
        lock: InstanceLock | None = None,
    ) -> None:
        self._metadata = metadata
        self._lock = lock
        self._driver_name = driver_name
        self._handler = handler
        self._reader = reader
        self._observer = observer
        self._queues = ClaimQueues()
        # A Prepare may wait for what only an Unprepare frees, so neither ever stands in the other's way.
        self._workers = {
            kind: ThreadPoolExecutor(workers, thread_name_prefix=f"dra-{kind}") for kind in ("prepare", "unprepare")
        }
        self._fetchers = ThreadPoolExecutor(workers, thread_name_prefix="dra-fetch")

    def prepare(self, refs: Sequence[ClaimRef], call: Call) -> dict[str, Outcome]:
        """Prepares the claims; keyed by UID, with an entry for every claim, bad ones too."""
        return self._run(refs, call, lambda batch: self._prepare_batch(batch, call))

    def unprepare(self, refs: Sequence[ClaimRef], call: Call) -> dict[str, Outcome]:
        """Undoes it. Asks nobody but the handler: the claim may be gone, the API server away."""
        return self._run(refs, call, lambda batch: self._alone(call, lambda: self._unprepare_batch(batch)))

    def is_busy(self) -> bool:
        """Whether any claim is being worked on, or waited for."""
        return len(self._queues) > 0

    def drain(self, timeout: float) -> bool:
        """Waits until no handler call runs; ``False`` after ``timeout`` seconds."""
        return self._queues.wait_idle(timeout)

    def close(self) -> None:
        """Takes no more work. A handler call that still runs is left to itself."""
        if self._lock is not None:
            self._lock.close()
        for pool in self._workers.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._fetchers.shutdown(wait=False, cancel_futures=True)

    def _run(self, refs: Sequence[ClaimRef], call: Call, work: Work) -> dict[str, Outcome]:
        outcomes, accepted = _sort_out(refs)
        started: dict[str, float] = {}
        waiting = {
            turn.uid: turn for turn in self._queues.enter(accepted, f"{call.kind}, operation {operation_id.get()}")
        }
        try:
            while waiting and (ready := self._queues.wait_any(list(waiting.values()), call.remaining())):
                for turn in ready:
                    started[turn.uid] = time.monotonic()
                    del waiting[turn.uid]
                outcomes |= self._run_batch([accepted[turn.uid] for turn in ready], ready, call, work)
        finally:
            for uid, turn in waiting.items():
                outcomes[uid] = self._busy(accepted[uid])
                self._queues.leave(turn)
        self._report(outcomes, started, call)
        return outcomes

    def _run_batch(self, batch: list[ClaimRef], turns: list[Turn], call: Call, work: Work) -> dict[str, Outcome]:
        """Runs the work in a worker thread that gives the turns up when it ends, even after the deadline."""
        context = contextvars.copy_context()
        try:
            future = self._workers[call.kind].submit(context.run, self._work_and_leave, batch, turns, call, work)
        except RuntimeError:  # the pool is shut down
            return self._shutting_down(batch, turns)
        try:
            return future.result(call.remaining())
        except TimeoutError:
            return self._late(batch, turns, call, future)
        except CancelledError:  # the pool was shut down before the work began
            return self._shutting_down(batch, turns)

    def _shutting_down(self, batch: list[ClaimRef], turns: list[Turn]) -> dict[str, Outcome]:
        self._leave(turns)
        error = PrepareError(f"{self._driver_name} is shutting down", reason="ShuttingDown")
        return {ref.uid: error for ref in batch}

    def _work_and_leave(self, batch: list[ClaimRef], turns: list[Turn], call: Call, work: Work) -> dict[str, Outcome]:
        try:
            if not call.is_active():
                # The kubelet has given up. Starting now could undo what its next call has done.
                log.info("the kubelet no longer waits for this %s, leaving it", call.kind)
                return {ref.uid: _abandoned(ref, call) for ref in batch}
            outcomes = self._guarded(batch, call, work)
            if call.remaining() == 0:
                log.warning("%s of %s ended after its deadline", call.kind, ", ".join(map(str, batch)))
            return outcomes
        finally:
            self._leave(turns)

    def _guarded(self, batch: list[ClaimRef], call: Call, work: Work) -> dict[str, Outcome]:
        """The handler's word on every claim of the batch, or an error in its place."""
        try:
            answer = work(batch)
        except PrepareError as error:
            return {ref.uid: error for ref in batch}
        except Exception as error:
            log.exception("%s of %s failed", call.kind, ", ".join(map(str, batch)))
            if len(batch) > 1:  # one by one, so that only the claim that brings the handler down fails
                return {uid: one for ref in batch for uid, one in self._guarded([ref], call, work).items()}
            return {batch[0].uid: self._internal(f"{type(error).__name__}: {error}")}
        uids = {ref.uid for ref in batch}
        if extra := sorted(set(answer) - uids):
            log.error("the handler answered for claims that nobody asked about: %s", ", ".join(extra))
        return {uid: answer[uid] if uid in answer else self._internal("no answer for this claim") for uid in uids}

    def _prepare_batch(self, batch: list[ClaimRef], call: Call) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        claims: list[Claim] = []
        for ref, fetched in zip(batch, self._fetch(batch, call), strict=True):
            if isinstance(fetched, PrepareError):
                outcomes[ref.uid] = fetched
            else:
                claims.append(fetched)
        if claims and not call.is_active():
            outcomes |= {claim.ref.uid: _abandoned(claim.ref, call) for claim in claims}
        elif claims:
            outcomes |= self._alone(call, lambda: self._prepare_claims(claims))
        return {uid: outcome for uid, outcome in outcomes.items() if outcome is not None}

    def _prepare_claims(self, claims: list[Claim]) -> Mapping[str, Outcome]:
        answers = self._handler.prepare(claims)
        return dict(answers) | {
            claim.ref.uid: self._with_metadata(claim, answers.get(claim.ref.uid)) for claim in claims
        }

    def _alone(self, call: Call, work: Callable[[], Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
        """Under the lock of all instances where there is one. The API server was asked before: it may be slow."""
        if self._lock is None:
            return work()
        from kubeletplugin.instancelock import InstanceBusyError

        try:
            with self._lock.hold(call.remaining):
                if not call.is_active():
                    raise PrepareError(f"{call.kind} was given up by the kubelet", reason="Abandoned")
                return work()
        except InstanceBusyError as error:
            raise PrepareError(str(error), reason="InstanceBusy") from error

    def _with_metadata(self, claim: Claim, outcome: Outcome) -> Outcome:
        """The devices with the CDI names that bring the metadata of each request into containers.

        A claim whose metadata cannot be written is not prepared (KEP-5304): a program would look for it in vain.
        """
        if self._metadata is None or outcome is None or isinstance(outcome, PrepareError):
            return outcome
        from kubeletplugin.metadata import MetadataError  # by drivers that have metadata only

        try:
            names = self._metadata.write(claim, outcome)
        except MetadataError as error:
            return PrepareError(str(error), reason="MetadataFailed")
        devices = []
        for device in outcome:
            # One mount is enough for each request, wherever it is asked for: the first device brings it.
            bases = dict.fromkeys(request.partition("/")[0] for request in device.requests)
            extra = tuple(names.pop(base) for base in bases if base in names)
            devices.append(msgspec.structs.replace(device, cdi_device_ids=(*device.cdi_device_ids, *extra)))
        return devices

    def _unprepare_batch(self, batch: list[ClaimRef]) -> Mapping[str, Outcome]:
        answers: dict[str, Outcome] = dict(self._handler.unprepare(batch))
        if self._metadata is None:
            return answers
        from kubeletplugin.metadata import MetadataError

        for ref in batch:
            if ref.uid in answers and answers[ref.uid] is None:
                try:
                    self._metadata.remove(ref)
                except MetadataError as error:
                    answers[ref.uid] = PrepareError(str(error), reason="MetadataFailed")
        return answers

    def _fetch(self, batch: list[ClaimRef], call: Call) -> list[Claim | PrepareError]:
        def fetch(ref: ClaimRef) -> Claim | PrepareError:
            try:
                return fetch_claim(self._reader, ref, min(FETCH_TIMEOUT, call.remaining()))
            except PrepareError as error:
                return error

        if len(batch) == 1:
            return [fetch(batch[0])]
        return list(self._fetchers.map(fetch, batch))

    def _late(
        self, batch: list[ClaimRef], turns: list[Turn], call: Call, future: Future[dict[str, Outcome]]
    ) -> dict[str, Outcome]:
        waited = time.monotonic() - call.arrived
        if future.cancel():
            self._leave(turns)
            text = "was not begun, all workers are busy"
        else:
            text = "still runs and goes on; the kubelet asks again"
        log.warning("%s of %s not done after %.0f s", call.kind, ", ".join(map(str, batch)), waited)
        error = PrepareError(f"{call.kind} {text} (operation {operation_id.get()})", reason="DeadlineExceeded")
        return {ref.uid: error for ref in batch}

    def _busy(self, ref: ClaimRef) -> PrepareError:
        holder = self._queues.holder(ref.uid)
        who = "another call"
        if holder is not None:
            who = f"an earlier call ({holder.label}, since {time.monotonic() - holder.since:.0f} s)"
        return PrepareError(f"{who} still works on claim {ref}; the kubelet asks again", reason="ClaimBusy")

    def _internal(self, what: str) -> PrepareError:
        return PrepareError(
            f"internal error in {self._driver_name}: {what} (see its log, operation {operation_id.get()})",
            reason="InternalError",
        )

    def _leave(self, turns: list[Turn]) -> None:
        for turn in turns:
            self._queues.leave(turn)

    def _report(self, outcomes: Mapping[str, Outcome], started: Mapping[str, float], call: Call) -> None:
        now = time.monotonic()
        for uid, outcome in outcomes.items():
            if isinstance(outcome, PrepareError):
                reason = outcome.reason
                log.warning("%s of claim uid %s failed (%s): %s", call.kind, uid, reason, encodable(str(outcome)))
            else:
                reason = "ok"
                log.debug("%s of claim uid %s done after %.3f s", call.kind, uid, now - call.arrived)
            self._observer.rpc(
                call.kind,
                seconds=now - call.arrived,
                queued_seconds=started.get(uid, now) - call.arrived,
                outcome=reason,
            )


def _abandoned(ref: ClaimRef, call: Call) -> PrepareError:
    return PrepareError(f"{call.kind} of claim {ref} was given up by the kubelet", reason="Abandoned")


def _sort_out(refs: Sequence[ClaimRef]) -> tuple[dict[str, Outcome], dict[str, ClaimRef]]:
    """Errors for malformed references, and the good ones by UID; a claim that is named twice counts once."""
    outcomes: dict[str, Outcome] = {}
    accepted: dict[str, ClaimRef] = {}
    for ref in refs:
        other = accepted.get(ref.uid, ref)
        if other != ref:
            outcomes[ref.uid] = PrepareError(
                f"claim uid {ref.uid} is named twice, as {other} and as {ref}",
                reason="MalformedRequest",
                permanent=True,
            )
            continue
        try:
            check_ref(ref)
        except PrepareError as error:
            outcomes[ref.uid] = error
        else:
            accepted[ref.uid] = ref
    return outcomes, {uid: ref for uid, ref in accepted.items() if uid not in outcomes}
