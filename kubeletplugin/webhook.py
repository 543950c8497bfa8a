"""Posts short texts to a webhook from a thread of its own: Slack's ``{"text": ...}``, which many services take.

Nobody waits for it. What the queue cannot hold is dropped and counted; texts that wait go out together; a service that
does not answer is tried again with growing pauses, one that says no (4xx) is not.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kubeletplugin.backoff import Backoff

if TYPE_CHECKING:
    import urllib3

log = logging.getLogger(__name__)

MAX_QUEUED = 256
MAX_TOGETHER = 20
MAX_TEXT = 3000
"""Characters of one text. Slack cuts at 40,000 for a message."""
PAUSE = 1.0
"""Seconds between two posts: Slack takes one a second."""
TIMEOUT = 10.0
ATTEMPTS = 8
RETRY_CAP = 60.0

Outcome = Callable[[str, int], None]


class Webhook:
    """One address. Safe for threads.

    Args:
        url: http or https; a secret, never logged.
        told: called with ``ok``, ``retried`` or ``dropped`` and how many texts it is about.
        prefix: before each message, for example the node's name.
    """

    def __init__(
        self, url: str, *, told: Outcome = lambda _outcome, _count: None, prefix: str = "", pause: float = PAUSE
    ) -> None:
        self._url = url
        self._told = told
        self._prefix = prefix
        self._pause = pause
        self._condition = threading.Condition()
        self._queue: deque[str] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def post(self, text: str) -> None:
        """Queue a text; returns at once."""
        with self._condition:
            full = self._stopping or len(self._queue) >= MAX_QUEUED
            if not full:
                self._queue.append(text[:MAX_TEXT])
                self._condition.notify_all()
        if full:
            self._told("dropped", 1)

    def stop(self, timeout: float = 3.0) -> None:
        """Post what is queued, for at most ``timeout`` seconds, without trying again."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                texts = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_TOGETHER))]
            try:
                sent = self._deliver(texts)
            except Exception:
                log.exception("a message for the webhook cannot be posted")
                sent = False
            self._told("ok" if sent else "dropped", len(texts))
            self._wait(self._pause)

    def _wait(self, seconds: float) -> bool:
        """False when the end has come meanwhile."""
        with self._condition:
            return not self._condition.wait_for(lambda: self._stopping, seconds)

    def _deliver(self, texts: list[str]) -> bool:
        import urllib3

        body = msgspec.json.encode({"text": "\n".join(f"{self._prefix}{text}" for text in texts)})
        backoff = Backoff(self._pause, RETRY_CAP)
        problem: str | None = None
        with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
            for _ in range(ATTEMPTS):
                problem, again = self._attempt(pool, body)
                if problem is None:
                    return True
                if not again:
                    break
                self._told("retried", len(texts))
                if not self._wait(backoff.next()):
                    break
        log.warning("the webhook did not take %d messages: %s", len(texts), problem)
        return False

    def _attempt(self, pool: urllib3.PoolManager, body: bytes) -> tuple[str | None, bool]:
        """What went wrong (None: nothing), and whether another attempt may help."""
        from urllib3.exceptions import HTTPError

        try:
            # No redirect: a webhook has none, and the texts are meant for this address.
            answer = pool.request(
                "POST", self._url, body=body, headers={"Content-Type": "application/json"}, redirect=False
            )
        except HTTPError as error:
            return type(error).__name__, True  # its text may hold the address, which is a secret
        if answer.status < 300:
            return None, False
        return f"HTTP {answer.status}", answer.status == 429 or answer.status >= 500
