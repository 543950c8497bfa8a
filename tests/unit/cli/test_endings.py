"""A signal ends what serves, whenever it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

EARLY = """
import os, signal
from driver.cli import endings
wait = endings.caught()
os.kill(os.getpid(), signal.{name})
wait()
print("ended")
"""
"""The handler has run before anybody waits: what it would have set or woken is past."""

EVENT = """
import os, signal, threading
from driver.cli import endings
stop = endings.event()
assert not stop.is_set()
threading.Timer(0.1, os.kill, (os.getpid(), signal.{name})).start()
stop.wait()
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("program", [EARLY, EVENT], ids=["before the wait", "while an event is waited for"])
def test_a_signal_ends_the_wait(program: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program.format(name=name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_second_signal_is_written_into_nothing_that_was_opened_meanwhile(tmp_path: Path) -> None:
    program = f"""
import gc, os, pathlib, signal, threading
from driver.cli import endings
stop = endings.event()
os.kill(os.getpid(), signal.SIGTERM)
stop.wait()
for thread in threading.enumerate():
    if thread.name == "signals":
        thread.join()
gc.collect()
files = [open(pathlib.Path({str(tmp_path)!r}) / str(number), "wb", buffering=0) for number in range(20)]
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 20


def test_a_process_that_nobody_ended_goes_on_waiting() -> None:
    program = "from driver.cli import endings; print('waiting', flush=True); endings.caught()()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == -signal.SIGUSR1
