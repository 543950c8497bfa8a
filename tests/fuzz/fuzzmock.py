"""Targets: what the mock is made of: profiles, and readings of real nodes."""

from __future__ import annotations

import json
from pathlib import Path

from native.mock import pcie, profile, profiles, readings
from tests.fuzz.engine import Target
from tests.fuzz.fuzztools import as_json, as_text, written


def _document(name: str) -> bytes:
    import yaml

    return json.dumps(yaml.safe_load(profiles.text(name))).encode()


def _parsed(data: bytes, _folder: Path) -> None:
    profile.parse(as_json(data))


TARGETS = (
    Target(
        "profile, values",
        _parsed,
        (profile.ProfileError,),
        [_document("t4"), _document("rtx-pro-6000")],
        ("native.mock.profile:parse", "native.mock.pcie:read", "native.mock.boards:read"),
    ),
    Target(
        "profile, YAML",
        lambda data, folder: profile.load(written(folder, "p.yaml", data)),
        (profile.ProfileError,),
        [profiles.text("t4").encode()],
        ("native.mock.profile:load", "native.mock.profiles:load"),
    ),
    Target(
        "CPU list",
        lambda data, _: profile.parse_cpus(as_text(data)),
        (profile.ProfileError,),
        [b"0-55,112-167"],
        ("native.mock.profile:parse_cpus",),
    ),
    Target(
        "PCIe section",
        lambda data, _: pcie.read(as_json(data)),
        (profile.ProfileError,),
        [],
        ("native.mock.pcie:read",),
    ),
    Target(
        "readings of a node",
        lambda data, _: readings.load(as_text(data)),
        (ValueError,),
        [],
        ("native.mock.readings:load",),
    ),
)
