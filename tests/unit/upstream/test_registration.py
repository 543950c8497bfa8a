"""Kubernetes' own cases of socket names (kubeletplugin/draplugin_registration_test.go), by their names.

Where we differ: paths have at most 107 bytes here, not 108, because Python and others keep room for the final NUL; and
a driver's name is checked before (no slash, at most 63 characters), so upstream's "example.com/driver" is
"driver.example.com" in these cases and its name of 100 characters one of 63.
"""

from __future__ import annotations

import os
from pathlib import Path

from kubeletplugin.sockets import MAX_SOCKET_PATH, socket_paths

REGISTRY = Path("/var/lib/kubelet/plugins_registry")
PLUGINS = Path("/var/lib/kubelet/plugins")
LONG = "gpu.dra-example-driver.sigs.k8s.io"
UID = "ad4af911-5bcd-47c5-a554-f35cea869472"
OTHER_UID = "11111111-2222-3333-4444-555555555555"


def name(driver: str, uid: str, registry: Path = REGISTRY) -> str:
    return socket_paths(driver, PLUGINS, registry, uid).registration.name


def test_length_bound() -> None:
    assert len(os.fsencode(REGISTRY / name(LONG, UID))) <= MAX_SOCKET_PATH


def test_prefers_full_uid() -> None:
    assert name("driver.example.com", OTHER_UID) == f"driver.example.com-{OTHER_UID}-reg.sock"


def test_uses_hashed_uid_for_long_driver_name() -> None:
    found = name(LONG, UID)
    assert found == f"{LONG}-Jk8-oymVURI-reg.sock"
    assert UID not in found


def test_uses_shortest_form_for_very_long_driver_name() -> None:
    found = name("a" * 63, UID)
    assert found == "dra-tbWFcO8QLaMfCl-a79Gzgw-reg.sock"


def test_respects_custom_registry_dir() -> None:
    registry = Path("/var/lib/kubelet") / ("x" * 20) / "plugins_registry"
    full = f"driver.example.com-{OTHER_UID}-reg.sock"
    assert len(os.fsencode(registry / full)) > MAX_SOCKET_PATH
    found = name("driver.example.com", OTHER_UID, registry)
    assert found != full
    assert len(os.fsencode(registry / found)) <= MAX_SOCKET_PATH


def test_deterministic() -> None:
    assert name("driver.example.com", OTHER_UID) == name("driver.example.com", OTHER_UID)


def test_distinct_inputs() -> None:
    names = [name(driver, uid) for driver in ("driver.one", "driver.two") for uid in (UID, OTHER_UID)]
    assert len(set(names)) == 4
