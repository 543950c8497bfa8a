"""Every file and folder that the agent makes, below the folder of a ``Scene``: what it is, and what its loss means.

``tests/crash/test_write_faults.py`` fails where an agent changes a file that is not here, or never one that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.agents import DRIVER

_UID = "[0-9a-f-]{36}"
_STATE = f"plugins/{DRIVER}/gpudra"


@dataclass(frozen=True)
class Own:
    """Files of one purpose.

    Args:
        pattern: of their paths below the scene's folder.
        match: parts of their paths, with ``|`` between them, by which calls about them are failed.
        needed: whether a claim cannot be prepared where they cannot be written.
        claim: which of the tests' claims has them.
    """

    name: str
    pattern: str
    match: str
    needed: bool
    claim: str = ""

    def __str__(self) -> str:
        return self.name

    def is_one(self, path: str) -> bool:
        return re.fullmatch(self.pattern, path) is not None


OWN = (
    Own("folder of the plugin", f"plugins/{DRIVER}|plugins", f"plugins/{DRIVER}", needed=True),
    Own("folder of the sockets' registration", "plugins_registry", "plugins_registry", needed=True),
    Own("socket of the plugin", rf"plugins/{DRIVER}/dra(-[0-9a-f]+)?\.sock", "/dra", needed=True),
    Own("socket of the registration", rf"plugins_registry/{DRIVER}(-[0-9a-f]+)?-reg\.sock", "-reg.sock", needed=True),
    Own("state folder", _STATE, f"{DRIVER}/gpudra", needed=True),
    Own("lock of the state", rf"{_STATE}/serialize\.lock", "gpudra/serialize.lock", needed=True),
    Own("checkpoint", rf"{_STATE}/checkpoint\.json(\.tmp)?", "checkpoint.json", needed=True, claim="sliced"),
    Own("health", rf"{_STATE}/health\.json(\.tmp)?", "health.json", needed=False),
    Own("idle book", rf"{_STATE}/idle\.json(\.tmp)?", "idle.json", needed=False),
    Own("album", rf"{_STATE}/node\.json(\.tmp)?", "node.json", needed=False),
    Own("links", rf"{_STATE}/links\.json(\.tmp)?", "links.json", needed=False),
    Own("journal", rf"{_STATE}/journal(/lock|/journal-\d{{20}}\.jsonl)?", "gpudra/journal", needed=False),
    Own("debts to GPUs", rf"{_STATE}/debts\.json(\.tmp)?", "debts.json", needed=True, claim="sliced"),
    Own("links to libraries", rf"{_STATE}/libraries(/lib[\w.+-]+)?", "/libraries", needed=True, claim="sliced"),
    Own(
        "device metadata",
        rf"plugins/{DRIVER}/dra-device-metadata(/{_UID}(/[\w-]+(/metadata\.json)?)?)?",
        "dra-device-metadata",
        needed=True,
        claim="sliced",
    ),
    Own("CDI folder", "cdi", "/cdi", needed=True),
    Own("CDI file", rf"cdi/\.?{DRIVER}-claim_{_UID}\.json(\.tmp)?", f"{DRIVER}-claim_", needed=True, claim="sliced"),
    Own(
        "CDI file of metadata",
        rf"cdi/\.?{DRIVER}_metadata_{_UID}_[\w-]+\.json(\.new)?",
        f"{DRIVER}_metadata_",
        needed=True,
        claim="sliced",
    ),
    Own(
        "folders of MPS daemons",
        rf"mps(/{DRIVER}(/[0-9a-f]{{12}}(/(pipe|log|shm)(/.*)?)?)?)?",
        "/mps/",
        needed=True,
        claim="mps",
    ),
)


def purpose(path: Path, folder: Path) -> str | None:
    """What a path below a scene's folder is; None: it is no file of the agent's."""
    relative = str(path.relative_to(folder))
    return next((own.name for own in OWN if own.is_one(relative)), None)
