"""grpc without its asyncio half, until somebody wants that. In processes of their own: imports are for ever."""

from __future__ import annotations

import subprocess
import sys

BEGIN = "import sys; from kubeletplugin.postponed import postpone_asyncio; postpone_asyncio(); import grpc\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_plugin_is_imported_without_asyncio() -> None:
    assert run(BEGIN + "import kubeletplugin.plugin; print('asyncio.events' in sys.modules)") == "False"


def test_asyncio_works_for_whoever_uses_it() -> None:
    assert run(BEGIN + "import asyncio\nasync def five(): return 5\nprint(asyncio.run(five()))") == "5"


def test_a_part_of_asyncio_can_be_imported_from_it() -> None:
    assert run(BEGIN + "from asyncio import Queue\nimport asyncio.events\nprint(Queue.__name__)") == "Queue"


def test_the_asyncio_half_of_grpc_works_too() -> None:
    program = (
        "import asyncio\n"
        "async def serve():\n"
        "    server = grpc.aio.server()\n"
        "    port = server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    await server.stop(None)\n"
        "    return port > 0\n"
        "print(asyncio.run(serve()))"
    )
    assert run(BEGIN + program) == "True"


def test_where_grpc_is_imported_already_nothing_changes() -> None:
    program = (
        "import grpc, sys; before = dict(sys.modules); " + BEGIN + "print(before['asyncio'] is sys.modules['asyncio'])"
    )
    assert run(program) == "True"
