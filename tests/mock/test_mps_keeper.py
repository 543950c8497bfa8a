"""MPS daemons in a process of their own: asked for over a socket, found again by agents, begun again behind its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from driver.prepare.sharing.daemons import DaemonSettings
from driver.prepare.sharing.keeper import SOCKET, Reply
from driver.prepare.sharing.kept import KeptDaemons, NoKeeperError
from driver.prepare.sharing.process import DaemonError
from native.commands import Deadline
from native.mock import Failure, MockNode
from tests.support.agents import DRIVER, until

ID, OTHER = "0123456789ab", "ba9876543210"


class Kept:
    """A keeper as a process on a mock node, and an agent's side of it."""

    def __init__(self, node: MockNode, base: Path) -> None:
        self.node = node
        self.base = base
        self.folder = base / DRIVER
        self.daemons = KeptDaemons(self.folder)
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        command = [sys.executable, "-m", "driver.cli.main", "mps", f"--driver-root={self.node.root}"]
        # Not every machine lets a process have a /dev/shm of its own; that it gets one is tried elsewhere.
        environment = {**os.environ, **self.node.environment, "GPUDRA_PLAIN_DEVICE_NODES": "true"}
        log = (self.base / "keeper.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [*command, f"--mps-dir={self.base}"], env=environment, stdout=log, stderr=log
            )
        until(self.serves, "the keeper's socket")

    def serves(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / SOCKET)) == 0

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def pid(self, daemon: str = ID) -> int:
        return int(self.daemons.folders(daemon).pid_file.read_text())

    def settings(self, daemon: str = ID, percentage: int | None = 50) -> DaemonSettings:
        return DaemonSettings(daemon, (self.node.profile.gpus[0].uuid,), percentage, claim="ns/c (uid u)")

    def ask(self, line: bytes) -> Reply:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / SOCKET))
            connection.sendall(line + b"\n")
            return msgspec.json.decode(connection.makefile("rb").readline(), type=Reply)


@pytest.fixture
def kept(own_node: MockNode) -> Iterator[Kept]:
    base = Path(tempfile.mkdtemp(prefix="k"))  # a short path: sockets are in it
    made = Kept(own_node, base)
    made.begin()
    yield made
    made.daemons.sweep(frozenset)
    made.daemons.detach()
    if made.process is not None and made.process.poll() is None:
        made.end()
    for pid_file in base.rglob("*.pid"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    shutil.rmtree(base, ignore_errors=True)


def test_a_daemon_is_the_keeper_s_child_and_ends_without_a_trace(kept: Kept) -> None:
    kept.daemons.start(kept.settings(), Deadline(30))
    assert kept.daemons.runs(ID)
    assert not kept.daemons.runs(OTHER)
    assert kept.process is not None
    assert f"PPid:\t{kept.process.pid}\n" in Path(f"/proc/{kept.pid()}/status").read_text()
    pid = kept.pid()
    kept.daemons.stop(ID, Deadline(30))
    assert not Path(f"/proc/{pid}").exists()
    assert not kept.daemons.folders(ID).base.exists()
    kept.daemons.stop(ID, Deadline(30))  # again: nothing to end is a success


def test_an_agent_that_comes_later_finds_what_an_earlier_one_began(kept: Kept) -> None:
    kept.daemons.start(kept.settings(), Deadline(30))
    pid = kept.pid()
    kept.daemons.detach()
    later = KeptDaemons(kept.folder)
    assert later.runs(ID)
    later.start(kept.settings(percentage=30), Deadline(30))
    assert kept.pid() == pid
    assert later.sweep(lambda: frozenset({ID})) == ()
    assert later.sweep(frozenset) == (ID,)
    later.detach()


def test_a_daemon_of_nobody_that_cannot_be_ended_keeps_none_of_the_others(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    for daemon in (ID, OTHER):
        kept.daemons.start(kept.settings(daemon), Deadline(30))
    stop = kept.daemons.stop

    def hang(daemon: str, deadline: Deadline) -> None:
        if daemon == min(ID, OTHER):
            raise DaemonError("it hangs on its GPU")
        stop(daemon, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(kept.daemons, "stop", hang)
        assert kept.daemons.sweep(frozenset) == (max(ID, OTHER),)
    assert kept.daemons.sweep(frozenset) == (min(ID, OTHER),)


def test_behind_the_keeper_s_end_the_next_one_runs_what_it_had(kept: Kept) -> None:
    for daemon in (ID, OTHER):
        kept.daemons.start(kept.settings(daemon), Deadline(30))
    kept.daemons.stop(OTHER, Deadline(30))
    pid = kept.pid()
    kept.end()
    os.kill(pid, signal.SIGKILL)  # as the end of its pod does
    assert not kept.daemons.runs(ID)
    kept.begin()
    until(lambda: kept.daemons.runs(ID), "the daemon to run again")
    assert kept.pid() != pid
    assert not kept.daemons.runs(OTHER)
    until(lambda: kept.daemons.restarts == 1, "the restart to be counted")


@pytest.mark.bug("B99")
def test_what_the_daemon_says_reaches_the_claim(kept: Kept) -> None:
    kept.node.set_failures([Failure("mps.start", 999)])
    with pytest.raises(DaemonError, match=r"the control daemon ended at once: .+"):
        kept.daemons.start(kept.settings(), Deadline(30))
    assert not kept.daemons.runs(ID)


def test_without_a_keeper_the_claim_is_told_what_is_missing(kept: Kept) -> None:
    kept.end(signal.SIGTERM)
    with pytest.raises(NoKeeperError, match="DaemonSet gpudra-mps"):
        kept.daemons.start(kept.settings(), Deadline(5))
    assert not kept.daemons.runs(ID)
    kept.daemons.stop(ID, Deadline(5))  # nothing of it is left
    assert kept.daemons.sweep(frozenset) == ()


def test_a_daemon_that_cannot_be_ended_without_its_keeper_is_not_forgotten(kept: Kept) -> None:
    kept.daemons.start(kept.settings(), Deadline(30))
    kept.end()
    with pytest.raises(NoKeeperError):
        kept.daemons.stop(ID, Deadline(5))


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            b'{"do":"start","id":"0123456789ab","settings":{"id":"../../etc","uuids":[]},"seconds":5}',
            "no id of a daemon",
        ),
        (b'{"do":"stop","id":"x/../y"}', "no id of a daemon"),
        (
            b'{"do":"start","settings":{"id":"0123456789ab","uuids":["GPU-1\\nquit"]},"seconds":5}',
            "no UUID of a GPU or MIG device",
        ),
        (b'{"do":"start","settings":{"id":"0123456789ab","uuids":[],"limits":[["0; x",1]]},"seconds":5}', "no UUID"),
        (b'{"do":"start","seconds":5}', "settings are missing"),
        (b'{"do":"format"}', "cannot be read"),
        (b'{"do":"list","more":1}', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_nothing_but_requests_is_taken(kept: Kept, line: bytes, words: str) -> None:
    assert words in (kept.ask(line).error or "")
    assert kept.daemons.sweep(frozenset) == ()


def test_root_alone_reaches_it_and_one_keeper_serves_a_folder(kept: Kept) -> None:
    assert (kept.folder / SOCKET).stat().st_mode & 0o777 == 0o600
    first = kept.process
    command = [sys.executable, "-m", "driver.cli.main", "mps", f"--mps-dir={kept.base}"]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 1
    assert "another process serves MPS control daemons" in second.stdout + second.stderr
    assert first is not None
    assert kept.serves()
    assert kept.end(signal.SIGTERM) == 0


def test_a_keeper_whose_folder_is_wiped_serves_on_and_makes_its_daemons_anew(kept: Kept) -> None:
    kept.daemons.start(kept.settings(), Deadline(30))
    pid = kept.pid()
    assert kept.process is not None
    for entry in kept.folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    until(kept.serves, "the keeper's socket again")
    assert kept.process.poll() is None
    assert not kept.daemons.runs(ID)
    kept.daemons.start(kept.settings(), Deadline(30))
    assert kept.daemons.runs(ID)
    assert kept.pid() != pid
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the daemon that nobody reaches")
    assert kept.daemons.restarts == 1
    assert "keeper.sock was removed or replaced: it is made anew" in (kept.base / "keeper.log").read_text()
    assert kept.end(signal.SIGTERM) == 0


def test_a_daemon_whose_gpus_were_lost_to_it_is_replaced_by_the_keeper(kept: Kept) -> None:
    kept.daemons.start(kept.settings(), Deadline(30))
    pid = kept.pid()
    kept.daemons.start(msgspec.structs.replace(kept.settings(), renewal="1"), Deadline(30))
    assert kept.pid() != pid
    assert kept.daemons.runs(ID)


def test_a_keeper_of_an_earlier_version_takes_what_it_does_not_know_for_nothing(kept: Kept) -> None:
    settings = msgspec.to_builtins(kept.settings())
    asked = {"do": "start", "id": ID, "settings": {**settings, "not-known-yet": "x"}, "seconds": 30.0}
    assert kept.ask(msgspec.json.encode(asked)) == Reply(runs=True)
