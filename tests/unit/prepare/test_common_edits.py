"""Common edits: from the host's nvidia-ctk spec where there is one, else from the driver's own files."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from driver.model import DriverFiles
from driver.prepare.cdi import CdiDeviceNode, CdiHook, CdiMount
from driver.prepare.edits import HostEdits
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.hostpaths import DriverRoot

VERSION = "580.105.08"
LIBRARY = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


class Host:
    """A driver root below ``here`` that the host knows as ``host``."""

    def __init__(self, here: Path, host: str = "/") -> None:
        self.here = here
        self.root = DriverRoot(here, PurePosixPath(host))
        self.files = DriverFiles(
            ((LIBRARY, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),), (("/usr/bin/nvidia-smi",) * 2,)
        )
        self.searches: list[str] = []
        for name in (LIBRARY, "/usr/bin/nvidia-smi"):
            self.put(name)

    def put(self, path: str, content: str = "") -> Path:
        file = self.here / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def search(self, version: str) -> DriverFiles:
        self.searches.append(version)
        return self.files

    def edits(self, **options: Any) -> HostEdits:
        return HostEdits(self.root, self.search, **options)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "driver-root")


def spec(**common: Any) -> dict[str, Any]:
    device = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device], "containerEdits": common}


def mount(path: str) -> dict[str, Any]:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "rbind"]}


def test_without_a_spec_the_drivers_files_are_mounted_read_only(host: Host) -> None:
    common = host.edits().common(VERSION)
    options = ("ro", "nosuid", "nodev", "rbind", "rprivate")
    assert common.edits.mounts == (
        CdiMount(LIBRARY, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", options),
        CdiMount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", options),
    )
    assert common.edits.hooks == ()


@pytest.mark.bug("B130")
def test_the_hook_is_used_only_where_the_host_has_it_and_gets_only_our_own_words(host: Host) -> None:
    host.put("/usr/bin/nvidia-cdi-hook")
    hook = CdiHook(
        "createContainer",
        "/usr/bin/nvidia-cdi-hook",
        ("nvidia-cdi-hook", "update-ldcache", "--folder=/usr/lib/x86_64-linux-gnu"),
    )
    assert host.edits().common(VERSION).edits.hooks == (hook,)


@pytest.mark.parametrize("version", [None, VERSION])
def test_without_libraries_there_is_a_retryable_error(host: Host, version: str | None) -> None:
    host.files = DriverFiles()
    with pytest.raises(ClaimError) as caught:
        host.edits().common(version)
    assert caught.value.reason is Reason.DRIVER_NOT_READY
    assert not caught.value.permanent


def test_a_search_that_fails_is_a_claim_error(host: Host) -> None:
    def search(version: str) -> DriverFiles:
        raise PermissionError(13, "Permission denied", "/usr/lib")

    with pytest.raises(ClaimError, match=r"cannot be found: .*Permission denied"):
        HostEdits(host.root, search).common(VERSION)


def test_the_search_is_done_once_per_driver_version(host: Host) -> None:
    edits = host.edits()
    assert edits.common(VERSION) is edits.common(VERSION)
    edits.common("590.1")
    assert host.searches == [VERSION, "590.1"]


@pytest.mark.parametrize("place", ["etc/cdi/nvidia.json", "var/run/cdi/nvidia.json", "run/cdi/nvidia.json"])
def test_a_spec_in_a_well_known_place_is_taken(host: Host, place: str) -> None:
    host.put(place, json.dumps(spec(env=["A=1", "NVIDIA_VISIBLE_DEVICES=all"], mounts=[mount(LIBRARY)])))
    common = host.edits().common(VERSION)
    assert common.source.endswith(place)
    assert common.edits.env == ("A=1",)
    assert common.edits.mounts == (CdiMount(LIBRARY, LIBRARY, ("ro", "rbind")),)
    assert host.searches == []


def test_everything_common_is_carried_over_and_what_is_not_is_said(host: Host) -> None:
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-ctk",
        "args": ["a", "b"],
        "env": ["X=1"],
        "timeout": 3,
    }
    common = spec(
        hooks=[hook],
        additionalGids=[44],
        intelRdt={"closID": "x"},
        deviceNodes=[{"path": "/dev/nvidiactl", "permissions": "rw", "major": 195, "minor": 255, "type": "c"}],
    )
    host.put("etc/cdi/nvidia.json", json.dumps(common))
    found = host.edits().common(VERSION)
    assert found.edits.hooks == (CdiHook("createContainer", "/usr/bin/nvidia-ctk", ("a", "b"), ("X=1",), 3),)
    assert found.edits.additional_gids == (44,)
    assert found.edits.device_nodes == (CdiDeviceNode("/dev/nvidiactl", permissions="rw"),)
    assert ["intelRdt" in problem.message for problem in found.problems] == [True]


@pytest.mark.bug("B85")
def test_device_nodes_of_single_gpus_and_the_devices_of_the_spec_are_left_out(host: Host) -> None:
    paths = ["/dev/nvidia3", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-uvm"]
    host.put("etc/cdi/nvidia.json", json.dumps(spec(deviceNodes=[{"path": path} for path in paths])))
    edits = host.edits().common(VERSION).edits
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia-uvm"]


@pytest.mark.bug("B78")
def test_the_spec_is_read_again_when_it_changes_and_only_then(host: Host) -> None:
    path = host.put("etc/cdi/nvidia.json", json.dumps(spec(env=["A=1"])))
    edits = host.edits()
    first = edits.common(VERSION)
    assert edits.common(VERSION) is first
    path.write_text(json.dumps(spec(env=["A=22"])))
    os.utime(path, ns=(1, 1))
    assert edits.common(VERSION).edits.env == ("A=22",)
    path.unlink()
    assert edits.common(VERSION).edits.env == ()


@pytest.mark.bug("B78")
def test_a_library_that_is_gone_since_the_spec_was_made_is_an_error_with_the_command_that_mends_it(host: Host) -> None:
    path = host.put("etc/cdi/nvidia.json", json.dumps(spec(mounts=[mount("/usr/lib/libcuda.so.570.1")])))
    edits = host.edits()
    with pytest.raises(ClaimError) as caught:
        edits.common(VERSION)
    assert caught.value.reason is Reason.DRIVER_NOT_READY
    assert "/usr/lib/libcuda.so.570.1" in str(caught.value)
    assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.json" in str(caught.value)
    path.write_text(json.dumps(spec(mounts=[mount(LIBRARY)])))
    assert len(edits.common(VERSION).edits.mounts) == 1


def test_a_socket_that_is_gone_is_left_out_and_reported(host: Host) -> None:
    mounts = [mount("/run/nvidia-persistenced/socket"), mount(LIBRARY)]
    host.put("etc/cdi/nvidia.json", json.dumps(spec(mounts=mounts)))
    common = host.edits().common(VERSION)
    assert [item.host_path for item in common.edits.mounts] == [LIBRARY]
    assert "/run/nvidia-persistenced/socket" in common.problems[0].message


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 4000, "nested"),
        ("[]", "must be an object"),
        ("{}", "no common containerEdits"),
        (json.dumps(spec(mounts=[{"hostPath": "/a"}])), r"containerEdits\.mounts\[0\]\.containerPath: is missing"),
        (json.dumps(spec(env="A=1")), r"containerEdits\.env: must be a list"),
    ],
)
def test_a_spec_that_is_none_is_a_retryable_error_that_names_it(host: Host, content: str, problem: str) -> None:
    path = host.put("etc/cdi/nvidia.json", content)
    with pytest.raises(ClaimError, match=problem) as caught:
        host.edits().common(VERSION)
    assert str(path) in str(caught.value)
    assert not caught.value.permanent


def test_a_set_path_that_is_not_there_is_an_error_and_not_a_reason_to_look_elsewhere(host: Host) -> None:
    host.put("etc/cdi/nvidia.json", json.dumps(spec(env=["A=1"])))
    with pytest.raises(ClaimError, match="No such file"):
        host.edits(spec_path=host.here / "no.json").common(VERSION)
    with pytest.raises(ClaimError, match="Is a directory"):
        host.edits(spec_path=host.here / "etc").common(VERSION)


def test_a_yaml_spec_is_read_where_pyyaml_is_there(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\ncontainerEdits:\n  env: [A=1]\n")
    assert host.edits().common(VERSION).edits.env == ("A=1",)


def test_a_yaml_spec_without_pyyaml_is_an_error_that_says_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    host.put("etc/cdi/nvidia.yaml", "containerEdits: {}\n")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ClaimError, match=r"PyYAML is not installed: write it as \.json"):
        host.edits().common(VERSION)


@pytest.mark.parametrize("content", ["a: [", "a: 1\n b: 2", "&a [*a]"])
def test_broken_yaml_is_a_claim_error(host: Host, content: str) -> None:
    host.put("etc/cdi/nvidia.yaml", content)
    with pytest.raises(ClaimError, match="cannot be used"):
        host.edits().common(VERSION)


@pytest.mark.bug("B78")
def test_host_paths_are_made_right_for_a_root_that_is_mounted_elsewhere(tmp_path: Path) -> None:
    host = Host(tmp_path / "driver-root", "/run/nvidia/driver")
    seen_here = str(host.here / LIBRARY.lstrip("/"))
    on_host = f"/run/nvidia/driver{LIBRARY}"
    for written in (LIBRARY, seen_here, on_host):
        assert host.root.to_host(written) == on_host
    assert host.root.to_host("/run/other/socket") == "/run/other/socket"
    assert host.root.to_here(on_host) == Path(seen_here)
    assert host.root.to_here("/run/other/socket") is None
    host.put("etc/cdi/nvidia.json", json.dumps(spec(mounts=[mount(LIBRARY), mount("/run/other/socket")])))
    mounts = host.edits().common(VERSION).edits.mounts
    assert [(item.host_path, item.container_path) for item in mounts] == [
        (on_host, LIBRARY),
        ("/run/other/socket", "/run/other/socket"),
    ]


def test_a_root_that_is_the_hosts_own_changes_no_path() -> None:
    root = DriverRoot()
    assert root.to_host("/usr/lib/a.so") == "/usr/lib/a.so"
    assert root.to_here("/usr/lib/a.so") == Path("/usr/lib/a.so")


def test_the_hosts_root_mounted_into_a_pod_is_taken_off_again(tmp_path: Path) -> None:
    root = DriverRoot(tmp_path, PurePosixPath("/"))
    assert root.to_host(f"{tmp_path}/usr/lib/a.so") == "/usr/lib/a.so"
    assert root.to_host("/usr/lib/a.so") == "/usr/lib/a.so"
    assert root.to_here("/usr/lib/a.so") == tmp_path / "usr/lib/a.so"
