"""That the soak sees what is left behind: a file, a program, a journal without bounds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.soak import soaktraces
from tests.soak.soaknode import SoakNode
from tests.soak.soakrun import WORLDS, Run
from tests.support.agents import DRIVER

UID, GONE = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"


@dataclass
class Folders:
    """The folders of a node whose agent never ran."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    registry = property(lambda self: self.folder / "plugins_registry")
    plugins = property(lambda self: self.folder / "plugins")
    cdi = property(lambda self: self.folder / "cdi")
    mps = SoakNode.mps
    state = SoakNode.state
    programs = SoakNode.programs
    _program = SoakNode._program


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(WORLDS["sharing"], cast("SoakNode", Folders(tmp_path)), random.Random(1))


def write(run: Run, name: str, size: int = 2) -> str:
    path = run.node.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return name


def test_the_files_of_a_prepared_claim_are_somebodys(run: Run) -> None:
    write(run, f"cdi/{DRIVER}-claim_{UID}.json")
    write(run, f"cdi/{DRIVER}_metadata_{UID}_r0.json")
    write(run, f"plugins/{DRIVER}/dra-device-metadata/{UID}/r0/metadata.json")
    write(run, f"plugins/{DRIVER}/gpudra/checkpoint.json")
    write(run, f"plugins/{DRIVER}/gpudra/checkpoint.json.damaged-1")
    write(run, f"plugins/{DRIVER}/gpudra/debts.json.damaged")
    write(run, f"plugins/{DRIVER}/gpudra/journal/journal-{1:020}.jsonl")
    assert soaktraces.strange_files(run, {UID}) == []


@pytest.mark.parametrize(
    "name",
    [
        f"cdi/{DRIVER}-claim_{GONE}.json",
        f"cdi/.{DRIVER}-claim_{GONE}.json.tmp",
        f"cdi/{DRIVER}_metadata_{GONE}_r0.json",
        f"plugins/{DRIVER}/dra-device-metadata/{GONE}/r0/metadata.json",
        "cdi/other.json",
        f"plugins/{DRIVER}/gpudra/checkpoint.json.7",
        f"plugins/{DRIVER}/left-behind",
        "plugins_registry/left-behind.sock",
        "mps/left-behind",
    ],
)
def test_a_file_of_nobody_is_found(run: Run, name: str) -> None:
    write(run, name)
    assert name in soaktraces.strange_files(run, {UID})


def test_files_of_others_in_the_cdi_folder_are_theirs(run: Run) -> None:
    write(run, "cdi/other.json")
    run.foreign.add("other.json")
    assert soaktraces.strange_files(run, {UID}) == []


def test_a_journal_that_outgrows_its_setting_is_found(run: Run) -> None:
    limit = int(str(run.world.flags["journal_bytes"]))
    folder = f"plugins/{DRIVER}/gpudra/journal"
    write(run, f"{folder}/journal-{1:020}.jsonl", limit)
    assert soaktraces.journal_fits(run)
    write(run, f"{folder}/journal-{2:020}.jsonl", limit)
    assert not soaktraces.journal_fits(run)


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


def started(folder: Path, program: str) -> subprocess.Popen[bytes]:
    made = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "SOAK_PAGE": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == b"up\n"
    return made


def test_a_program_that_outlives_its_claim_is_found_and_so_is_one_that_nobody_waits_for(short: Path) -> None:
    node = Folders(short)
    agent = started(short, "print('up', flush=True); input()")
    other = started(short, "print('up', flush=True); input()")
    parent = started(
        short,
        "import os, time\n"
        "child = os.fork()\n"
        "if not child: os._exit(0)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "print('up', flush=True); input()",
    )
    try:
        node.process = agent
        found = node.programs()  # type: ignore[misc] # as if it were a node
        assert len(found) == 2, "the other two, and not the agent"
        node.process = parent
        assert "one that has ended" in node.programs()  # type: ignore[misc] # the same
    finally:
        for process in (agent, other, parent):
            process.kill()
            with process:
                pass
