"""Asks a built oracle: scenes in, answers out, one process for each batch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .build import OracleError, binary

Document = dict[str, Any]


def ask(version: str, scenes: Sequence[Document], *, timeout: float = 600.0) -> list[Document]:
    """The oracle's answers, in the scenes' order.

    Raises:
        OracleError: the oracle of this version is not built, or it ended with a message.
    """
    program = binary(version)
    if program is None:
        raise OracleError(f"the oracle {version} is not built: python -m hack.oracle build --version {version}")
    return talk(program, scenes, timeout)


def talk(program: Path, scenes: Sequence[Document], timeout: float) -> list[Document]:
    """Run the program over the scenes.

    Raises:
        OracleError: it ended with a message, or answered fewer scenes than it was given.
    """
    text = "".join(json.dumps(scene) + "\n" for scene in scenes)
    done = subprocess.run([str(program)], input=text, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise OracleError(f"{program}: {done.stderr.strip()[-2000:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(scenes):
        raise OracleError(f"{program} answered {len(answers)} of {len(scenes)} scenes: {done.stderr.strip()[-2000:]}")
    return answers
