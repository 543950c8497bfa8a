"""grpc and protobuf without the halves that nobody uses, until somebody does.

In processes of their own: imports are for ever.
"""

from __future__ import annotations

import subprocess
import sys

BEGIN = "import sys; from kubeletplugin.postponed import postpone; postpone(); import grpc\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_plugin_is_imported_without_asyncio() -> None:
    assert run(BEGIN + "import kubeletplugin.plugin; print('asyncio.events' in sys.modules)") == "False"


PURE = "type(sys.modules['google.protobuf.internal.python_message']).__name__"
MESSAGES = (
    "from kubeletplugin.proto import dra_v1_pb2 as pb, dra_v1beta1_pb2, registration_v1_pb2, dra_health_v1_pb2\n"
    "claim = pb.Claim(namespace='a', name='b', uid='c')\n"
)


def test_messages_are_imported_made_read_and_written_without_those_in_python() -> None:
    program = "print(pb.Claim.FromString(claim.SerializeToString()) == claim, " + PURE + ")"
    assert run(BEGIN + "import kubeletplugin.plugin\n" + MESSAGES + program) == "True _Postponed"


def test_text_json_copies_and_well_known_types_work_as_ever() -> None:
    program = (
        "import copy, pickle\nfrom google.protobuf import json_format, text_format, timestamp_pb2\n"
        "again = text_format.Parse(text_format.MessageToString(claim), pb.Claim())\n"
        "stamp = timestamp_pb2.Timestamp(); stamp.FromJsonString('2026-01-02T03:04:05Z')\n"
        "print(again == claim == copy.deepcopy(claim) == pickle.loads(pickle.dumps(claim)), stamp.seconds, "
        "sorted(json_format.MessageToDict(claim).values()))"
    )
    assert run(BEGIN + MESSAGES + program) == "True 1767323045 ['a', 'b', 'c']"


def test_messages_in_python_work_for_whoever_chooses_them() -> None:
    environment = "import os; os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = 'python'\n"
    program = "print(pb.Claim.FromString(claim.SerializeToString()) == claim, " + PURE + ")"
    assert run(environment + BEGIN + MESSAGES + program) == "True module"


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


def test_pages_of_errors_are_written_as_ever() -> None:
    program = "import http.server, html\nprint('html.entities' in sys.modules, html.escape('<'), html.unescape('&gt;'))"
    assert run(BEGIN + program) == "False &lt; >"
