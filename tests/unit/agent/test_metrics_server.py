"""/metrics over HTTP."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from driver import metricsserver


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("answer", "of a test", registry=registry).set(42)
    return registry


def scrape(host: str, port: int) -> bytes:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as response:
        body: bytes = response.read()
        return body


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")])
def test_it_serves_at_addresses_of_both_families(registry: CollectorRegistry, address: str, host: str) -> None:
    assert b"answer 42.0" in scrape(host, metricsserver.serve(registry, address, 0))


def test_many_may_ask_at_once_and_one_that_says_nothing_holds_nobody_up(registry: CollectorRegistry) -> None:
    port = metricsserver.serve(registry, "127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)), ThreadPoolExecutor(8) as pool:
        assert all(b"answer 42.0" in body for body in pool.map(lambda _: scrape("127.0.0.1", port), range(16)))


def test_no_name_service_is_asked(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node with a broken DNS that takes seconds, in which nothing else of the agent is started."""
    asked: list[object] = []
    for name in ("getfqdn", "gethostbyaddr", "gethostbyname_ex"):
        monkeypatch.setattr(socket, name, lambda *args: asked.append(args) or "localhost")
    port = metricsserver.serve(registry, "127.0.0.1", 0)
    assert b"answer 42.0" in scrape("127.0.0.1", port)
    assert asked == []


def test_scrapes_leave_no_line_in_the_log(registry: CollectorRegistry, capfd: pytest.CaptureFixture[str]) -> None:
    scrape("127.0.0.1", metricsserver.serve(registry, "127.0.0.1", 0))
    assert capfd.readouterr() == ("", "")


def test_the_thread_sleeps_until_somebody_asks(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in its system call, which has no timeout: poll(2) of one descriptor, for as long as it takes."""
    before = {thread.native_id for thread in threading.enumerate()}
    port = metricsserver.serve(registry, "127.0.0.1", 0)
    (thread,) = [t for t in threading.enumerate() if t.name == "metrics" and t.native_id not in before]
    assert b"answer 42.0" in scrape("127.0.0.1", port)
    call = Path(f"/proc/{os.getpid()}/task/{thread.native_id}/syscall")
    for _ in range(10_000):
        number, *arguments = call.read_text().split()
        if number != "running":
            break
    no_timeout = {"7": 0xFFFFFFFF, "73": 0}[number]  # poll on x86-64, ppoll on arm64
    assert [int(one, 16) for one in arguments[1:3]] == [1, no_timeout]
