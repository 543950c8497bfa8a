"""The webhook: in order, at a pace, tried again, in nobody's way."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from kubeletplugin.webhook import MAX_QUEUED, Webhook

WAIT = 20.0


class Service:
    """A service that answers as it is told."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[bytes] = []
        self.condition = threading.Condition()
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.hold.wait(WAIT)
                with outer.condition:
                    outer.bodies.append(body)
                    status = outer.answers.pop(0) if outer.answers else 200
                    outer.condition.notify_all()
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Keep the tests' output clean."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, WAIT)

    def texts(self) -> list[str]:
        return [line for body in self.bodies for line in json.loads(body)["text"].splitlines()]

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


class Told:
    """Counts outcomes, and lets one wait for them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.condition = threading.Condition()

    def __call__(self, outcome: str, count: int) -> None:
        with self.condition:
            self.counts[outcome] = self.counts.get(outcome, 0) + count
            self.condition.notify_all()

    def until(self, outcome: str, count: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: self.counts.get(outcome, 0) >= count, WAIT), self.counts


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_text_arrives_as_slack_takes_it(service: Service, told: Told) -> None:
    hook = Webhook(service.url, told=told, prefix="node-a: ", pause=0.01)
    hook.start()
    hook.post("GPU lost")
    told.until("ok", 1)
    hook.stop()
    assert [json.loads(body) for body in service.bodies] == [{"text": "node-a: GPU lost"}]


def test_texts_that_wait_go_together_in_their_order(service: Service, told: Told) -> None:
    service.hold.clear()
    hook = Webhook(service.url, told=told, pause=0.01)
    hook.start()
    for number in range(30):
        hook.post(str(number))
    service.hold.set()
    told.until("ok", 30)
    hook.stop()
    assert service.texts() == [str(number) for number in range(30)]
    assert len(service.bodies) <= 4


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_in_trouble_is_tried_again(service: Service, told: Told, status: int) -> None:
    service.answers = [status, status, 200]
    hook = Webhook(service.url, told=told, pause=0.01)
    hook.start()
    hook.post("a")
    told.until("ok", 1)
    hook.stop()
    assert told.counts == {"retried": 2, "ok": 1}


@pytest.mark.parametrize("status", [301, 400, 403, 404])
def test_one_that_says_no_is_not_tried_again_and_not_followed(service: Service, told: Told, status: int) -> None:
    service.answers = [status]
    hook = Webhook(service.url, told=told, pause=0.01)
    hook.start()
    hook.post("a")
    told.until("dropped", 1)
    hook.post("b")
    told.until("ok", 1)
    hook.stop()
    assert service.texts() == ["a", "b"]


def test_posting_never_waits_and_what_finds_no_room_is_counted(service: Service, told: Told) -> None:
    service.hold.clear()
    hook = Webhook(service.url, told=told, pause=0.01)
    for _ in range(MAX_QUEUED + 5):
        hook.post("x")
    assert told.counts == {"dropped": 5}
    service.hold.set()
    hook.start()
    told.until("ok", MAX_QUEUED)
    hook.stop()


def test_the_address_is_in_no_log(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    hook = Webhook("http://127.0.0.1:1/secret-token", told=told, pause=0.001)
    hook.start()
    hook.post("a")
    told.until("dropped", 1)
    hook.stop()
    assert "did not take 1 messages" in caplog.text
    assert "secret-token" not in caplog.text


def test_the_end_does_not_wait_for_a_service_that_does_not_answer(told: Told) -> None:
    hook = Webhook("http://127.0.0.1:1/", told=told, pause=60)
    hook.start()
    hook.post("a")
    told.until("retried", 1)
    hook.stop(WAIT)
    assert not hook._thread.is_alive()
    hook.post("late")
    assert told.counts["dropped"] == 2
