"""Who imports what: one thread, ahead. In processes of their own, because imports are for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import driver.agent
from driver import ahead
from kubeletplugin.client import KubeClient

ahead.import_reading("auto")
ahead.import_publishing(KubeClient("http://127.0.0.1:9"))

class Late:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread() and name.partition(".")[0] in OURS:
            found.append(name)

found, OURS = [], {"driver", "kubeletplugin", "native", "urllib3", "ssl"}
sys.meta_path.insert(0, Late())
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


IN_A_THREAD = "\nthread = threading.Thread(target=work); thread.start(); thread.join(); print(found)"


@pytest.mark.parametrize(
    "work",
    [
        "from driver.node import NodeReader\n",
        "from native.nvml.opening import make_backend\n    make_backend('/nowhere/libnvidia-ml.so.1', 'auto')\n",
        "from kubeletplugin.publisher import Publisher\n",
        (
            "from kubeletplugin.client import ApiUnreachableError, KubeClient\n"
            "    try:\n        KubeClient('http://127.0.0.1:9').get('/')\n"
            "    except ApiUnreachableError:\n        pass\n"
        ),
    ],
    ids=["reader", "nvml", "publisher", "request"],
)
def test_no_other_thread_imports_what_was_imported_ahead(work: str) -> None:
    assert run(f"def work():\n    {work}" + IN_A_THREAD) == "[]"


def test_the_check_finds_a_thread_that_imports_by_itself() -> None:
    assert run("def work():\n    import driver.cli.topology\n" + IN_A_THREAD) != "[]"


def test_bad_certificates_do_not_end_the_agent_ahead_of_the_first_request() -> None:
    program = (
        "from pathlib import Path\n"
        "KubeClient('https://127.0.0.1:9', token='t', ca=Path('/nowhere/ca.crt')).warm_up()\n"
        "print('alive')"
    )
    assert run(program) == "alive"
