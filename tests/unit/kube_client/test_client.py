"""The client against servers that are slow, limited, broken, or not Kubernetes at all."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.testing.apiserver import EmbeddedApiServer

NODES = "/api/v1/nodes"


class Scripted:
    """An HTTP server that answers with what a test gives it and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Any], None]] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[Any] = set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16

            def log_message(self, *args: Any) -> None:
                pass

            def do_any(self) -> None:
                outer.connections.add(self.client_address)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {key.lower(): value for key, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers, body))
                answer = outer.answers.pop(0) if outer.answers else reply(200, {})
                answer(self)

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.do_any)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def reply(code: int, body: Any, content_type: str = "application/json", **headers: str) -> Callable[[Any], None]:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)

    def answer(handler: Any) -> None:
        handler.send_response(code)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def hang_up(handler: Any) -> None:
    handler.close_connection = True


def stream(*lines: bytes, end: bool = True) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for line in lines:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        handler.wfile.write(b"0\r\n\r\n" if end else b"")
        handler.close_connection = not end

    return answer


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def client(scripted: Scripted) -> Iterator[KubeClient]:
    with KubeClient(scripted.url) as client:
        yield client


def test_a_request_carries_what_it_should(scripted: Scripted) -> None:
    with KubeClient(scripted.url, token="secret", user_agent="gpudra/1.0") as client:
        client.create("/apis/x/v1/things", {"a": "ä"}, query={"dryRun": "All", "fieldManager": "a b"})

    ((method, path, headers, body),) = scripted.requests
    assert (method, path) == ("POST", "/apis/x/v1/things?dryRun=All&fieldManager=a+b")
    assert headers["authorization"] == "Bearer secret"
    assert headers["user-agent"] == "gpudra/1.0"
    assert headers["content-type"] == "application/json"
    assert body == '{"a":"ä"}'.encode()


def test_a_path_prefix_of_the_server_is_kept(scripted: Scripted) -> None:
    with KubeClient(f"{scripted.url}/k8s/clusters/c-1/") as client:
        client.get("/version")

    assert scripted.requests[0][1] == "/k8s/clusters/c-1/version"


@pytest.mark.parametrize("server", ["", "127.0.0.1:6443", "unix:///run/x", "https://"])
def test_a_server_that_is_no_url_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="server must be a URL like https://host:port"):
        KubeClient(server)


def test_connections_are_used_again(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(200, {}), reply(404, {"kind": "Status"}), reply(200, b""), reply(200, {})]
    client.get("/x")
    with pytest.raises(ApiError):
        client.get("/x")
    client.get("/x")
    client.get("/x")

    assert len(scripted.connections) == 1


def test_unknown_fields_and_big_numbers_survive(scripted: Scripted, client: KubeClient) -> None:
    document = {"new": {"field": [1, None, True]}, "big": 2**63 - 1}
    scripted.answers = [reply(200, document), reply(200, document)]

    assert client.update("/x", client.get("/x")) == document
    assert msgspec.json.decode(scripted.requests[1][3]) == document


def test_an_empty_answer_is_an_empty_object(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(200, b"")]

    assert client.delete("/x") == {}


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"x"', b"\xff"])
def test_an_answer_that_is_no_object_is_no_answer(scripted: Scripted, client: KubeClient, body: bytes) -> None:
    scripted.answers = [reply(200, body)]

    with pytest.raises(ApiUnreachableError, match=r"GET http://127.0.0.1.*/x: the answer is not"):
        client.get("/x")


def test_an_error_carries_what_the_status_says(scripted: Scripted, client: KubeClient) -> None:
    details = {"name": "n", "causes": [{"field": "spec"}]}
    scripted.answers = [reply(422, {"kind": "Status", "reason": "Invalid", "message": "bad", "details": details})]

    with pytest.raises(ApiError) as caught:
        client.get("/x")

    error = caught.value
    assert (error.status, error.reason, error.message, error.details) == (422, "Invalid", "bad", details)
    assert str(error) == "bad (HTTP 422 Invalid)"


def test_an_error_of_a_proxy_is_kept_short(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(502, b"<h1>Bad gateway</h1>" * 1000, "text/html")]

    with pytest.raises(ApiError) as caught:
        client.get("/x")

    assert caught.value.status == 502
    assert len(caught.value.message) <= 500


def test_preconditions_of_a_deletion_go_into_the_body(scripted: Scripted, client: KubeClient) -> None:
    client.delete("/x", uid="u", resource_version="7")

    options = msgspec.json.decode(scripted.requests[0][3])
    assert options["preconditions"] == {"uid": "u", "resourceVersion": "7"}


def test_a_patch_says_what_kind_it_is(scripted: Scripted, client: KubeClient) -> None:
    client.patch("/x", {"a": None})

    assert scripted.requests[0][2]["content-type"] == "application/merge-patch+json"
    assert scripted.requests[0][3] == b'{"a":null}'


# Trouble


def test_a_connection_that_died_is_replaced_for_reading(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [hang_up, reply(200, {"a": 1})]

    assert client.get("/x") == {"a": 1}


def test_a_write_is_never_repeated_behind_the_callers_back(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [hang_up]

    with pytest.raises(ApiUnreachableError):
        client.create("/x", {})

    assert len(scripted.requests) == 1


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with (
        KubeClient("http://127.0.0.1:1") as client,
        pytest.raises(ApiUnreachableError, match=r"GET http://127.0.0.1:1/x"),
    ):
        client.get("/x")


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    with EmbeddedApiServer() as server:
        server.faults.delay(30.0)
        began = time.monotonic()
        with pytest.raises(ApiUnreachableError):
            server.client().get(NODES, timeout=0.2)
        assert time.monotonic() - began < 2.0


def test_a_busy_server_is_asked_again_as_it_wishes(scripted: Scripted, client: KubeClient) -> None:
    busy = reply(429, {"kind": "Status", "reason": "TooManyRequests"}, Retry_After="0")
    scripted.answers = [busy, busy, reply(200, {"a": 1})]

    assert client.get("/x") == {"a": 1}
    assert len(scripted.requests) == 3


def test_a_busy_server_is_not_waited_for_beyond_the_deadline(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(429, {"kind": "Status", "reason": "TooManyRequests"}, Retry_After="60")]

    with pytest.raises(ApiError) as caught:
        client.get("/x", timeout=1.0)

    assert (caught.value.status, caught.value.retry_after) == (429, 60.0)


def test_the_clients_own_limit_slows_it_down(scripted: Scripted) -> None:
    with KubeClient(scripted.url, rate=20.0, burst=2) as client:
        began = time.monotonic()
        for _ in range(6):
            client.get("/x")

    assert time.monotonic() - began >= 0.18


def test_the_clients_own_limit_keeps_to_the_deadline(scripted: Scripted) -> None:
    with KubeClient(scripted.url, rate=0.1, burst=1) as client:
        client.get("/x")
        with pytest.raises(ApiUnreachableError, match="the client's own rate limit is used up"):
            client.get("/x", timeout=0.5)


def test_a_closed_client_says_so(client: KubeClient) -> None:
    client.close()

    with pytest.raises(ApiUnreachableError, match="is closed"):
        client.get("/x")


def test_closing_ends_a_wait_for_a_busy_server(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(429, {"kind": "Status", "reason": "TooManyRequests"}, Retry_After="10")]
    threading.Timer(0.1, client.close).start()
    began = time.monotonic()

    with pytest.raises(ApiError):
        client.get("/x")

    assert time.monotonic() - began < 5.0


# Tokens


def test_a_token_file_is_read_again_when_it_changes(scripted: Scripted, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    with KubeClient(scripted.url, token=token) as client:
        client.get("/x")
        token.write_text("second\n")
        client.get("/x")

    assert [headers["authorization"] for _, _, headers, _ in scripted.requests] == ["Bearer one", "Bearer second"]


def test_a_401_makes_the_token_file_be_read_again_once(scripted: Scripted, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    refused = reply(401, {"kind": "Status", "reason": "Unauthorized"})
    with KubeClient(scripted.url, token=token) as client:
        scripted.answers = [refused, reply(200, {"a": 1}), refused, refused]
        assert client.get("/x") == {"a": 1}
        with pytest.raises(ApiError) as caught:
            client.get("/x")

    assert caught.value.status == 401
    assert len(scripted.requests) == 4


def test_a_401_with_a_fixed_token_is_final(scripted: Scripted) -> None:
    scripted.answers = [reply(401, {"kind": "Status", "reason": "Unauthorized"})]
    with KubeClient(scripted.url, token="one") as client, pytest.raises(ApiError):
        client.get("/x")

    assert len(scripted.requests) == 1


@pytest.mark.parametrize(("text", "problem"), [("", "is empty"), ("\n", "is empty"), ("a b", "cannot stand in")])
def test_a_token_file_without_a_token_is_named(scripted: Scripted, tmp_path: Path, text: str, problem: str) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    with KubeClient(scripted.url, token=token) as client, pytest.raises(CredentialsError, match=f"{token}.*{problem}"):
        client.get("/x")


# Watches


def line(kind: str, version: str = "1", **content: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": {"metadata": {"resourceVersion": version}, **content}}) + b"\n"


def test_events_are_put_together_from_pieces(scripted: Scripted, client: KubeClient) -> None:
    whole = line("ADDED", "1") + line("MODIFIED", "2", text="ä\\n") + b"\n" + line("BOOKMARK", "3")
    scripted.answers = [stream(*(whole[at : at + 7] for at in range(0, len(whole), 7)))]

    events = list(client.watch("/x", query={"resourceVersion": "0"}, timeout_seconds=10))

    assert [(event.type, event.resource_version) for event in events] == [
        ("ADDED", "1"),
        ("MODIFIED", "2"),
        ("BOOKMARK", "3"),
    ]
    path = scripted.requests[0][1]
    assert path == "/x?resourceVersion=0&watch=true&allowWatchBookmarks=true&timeoutSeconds=10"


def test_an_error_event_is_raised_with_its_code(scripted: Scripted, client: KubeClient) -> None:
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    scripted.answers = [stream(line("ADDED"), msgspec.json.encode(status) + b"\n")]
    seen = []

    with pytest.raises(ApiError) as caught:
        seen.extend(event.type for event in client.watch("/x"))

    assert (caught.value.status, caught.value.reason) == (410, "Expired")


@pytest.mark.parametrize("text", [b"nonsense\n", b"[1]\n", b'{"type":"ADDED"}\n', b'{"object":{}}\n'])
def test_a_stream_of_something_else_is_no_watch(scripted: Scripted, client: KubeClient, text: bytes) -> None:
    scripted.answers = [stream(text)]

    with pytest.raises(ApiUnreachableError, match="WATCH"):
        list(client.watch("/x"))


def test_a_stream_that_breaks_off_is_reported(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [stream(line("ADDED"), end=False)]

    with pytest.raises(ApiUnreachableError):
        list(client.watch("/x"))


def test_a_refused_watch_is_an_error(scripted: Scripted, client: KubeClient) -> None:
    scripted.answers = [reply(403, {"kind": "Status", "reason": "Forbidden", "message": "no"})]

    with pytest.raises(ApiError) as caught:
        list(client.watch("/x"))

    assert caught.value.status == 403


@pytest.mark.parametrize("end", ["interrupt", "close"])
def test_a_silent_watch_ends_at_once_when_told(end: str) -> None:
    with EmbeddedApiServer() as server:
        client, stop = server.client(), threading.Event()
        action = client.close if end == "close" else lambda: client.interrupt(stop)
        threading.Timer(0.1, action).start()
        began = time.monotonic()

        assert list(client.watch(NODES, stop=stop)) == []
        assert time.monotonic() - began < 5.0


def test_an_interrupt_ends_only_the_watches_of_its_event() -> None:
    with EmbeddedApiServer() as server:
        client, mine, other = server.client(), threading.Event(), threading.Event()
        kept = iter(client.watch(NODES, stop=other, timeout_seconds=20))
        client.create(NODES, {"metadata": {"name": "a"}})
        assert next(kept).type == "ADDED"
        client.interrupt(mine)
        client.create(NODES, {"metadata": {"name": "b"}})

        assert next(kept).object["metadata"]["name"] == "b"
        client.interrupt(other)


def test_many_threads_share_a_client() -> None:
    with EmbeddedApiServer() as server:
        client = server.client()

        def work(number: int) -> int:
            for index in range(10):
                client.create(NODES, {"metadata": {"name": f"node-{number}-{index}"}})
            return 10

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(work, range(8))) == 80
        assert len(client.get(NODES)["items"]) == 80
