"""What the cluster is made of: folders, programs, configuration, images."""

from __future__ import annotations

import io
import json
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import __main__ as command
from hack.cluster import binaries, images
from hack.cluster.components import CONTROL_PLANE, START_ORDER, Components, started
from hack.cluster.layout import DRIVER_NAME, SUN_PATH_LIMIT, ClusterError, Layout, State

STATE = State(version="1.37.2", binaries="/bin", address="10.213.0.2", gateway="10.213.0.1", link="gpudra0")


def test_the_default_folder_leaves_room_for_the_longest_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUDRA_CLUSTER_DIR", raising=False)
    layout = Layout.default()
    assert len(f"{layout.plugins}/{DRIVER_NAME}/dra-{'0' * 36}.sock") <= SUN_PATH_LIMIT


@pytest.mark.parametrize("root", ["/var/tmp/" + "x" * 60, "/run/cluster", "/var/lib/cluster", "/var/log/c"])
def test_a_folder_that_cannot_serve_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    monkeypatch.setenv("GPUDRA_CLUSTER_DIR", root)
    with pytest.raises(ClusterError, match=r"too long|replaces"):
        Layout.default()


def test_the_state_is_read_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(ClusterError, match="no cluster runs"):
        layout.load()
    layout.save(STATE)
    assert layout.load() == STATE
    assert STATE.server == "https://10.213.0.2:6443"
    layout.state_file.write_text('{"version": 1}')
    with pytest.raises(ClusterError, match="damaged"):
        layout.load()


@pytest.mark.parametrize("version", ["1.37", "1.37.2"])
def test_a_version_may_be_given_short_or_whole(version: str) -> None:
    assert binaries.resolve(version) == "1.37.2"


@pytest.mark.parametrize("version", ["1.3", "1.37.9", "", "2"])
def test_a_version_that_nobody_pinned_is_refused_and_the_pinned_ones_are_named(version: str) -> None:
    with pytest.raises(ClusterError, match=r"1\.37\.2"):
        binaries.resolve(version)


def test_a_control_plane_is_a_cluster_without_a_node(tmp_path: Path) -> None:
    plane = replace(STATE, control_plane=True)
    assert started(STATE) == START_ORDER
    assert started(plane) == CONTROL_PLANE
    assert {"containerd", "kubelet", "kube-proxy"} == set(START_ORDER) - set(CONTROL_PLANE)
    whole, alone = (Components(Layout(tmp_path), state).argv("kube-controller-manager") for state in (STATE, plane))
    (controllers,) = (argument for argument in alone if argument.startswith("--controllers="))
    assert "resourceclaim-controller" in controllers
    assert "lifecycle" not in controllers, "it would evict the pods of nodes that have no kubelet"
    assert not any(argument.startswith("--controllers=") for argument in whole)


@pytest.mark.parametrize(
    ("arguments", "on_node", "deciding", "options"),
    [
        ([], list(command.TESTED), ["tests/scheduler"], []),
        (["-k", "numa"], list(command.TESTED), ["tests/scheduler"], ["-k", "numa"]),
        (["tests/kubelet", "-x"], ["tests/kubelet"], [], ["-x"]),
        (["tests/scheduler/test_order.py"], [], ["tests/scheduler/test_order.py"], []),
        (["tests/scheduler", "tests/cluster"], ["tests/cluster"], ["tests/scheduler"], []),
    ],
)
def test_the_tests_that_are_named_decide_what_is_started(
    arguments: list[str], on_node: list[str], deciding: list[str], options: list[str]
) -> None:
    assert command._chosen(arguments) == (on_node, deciding, options)


def test_every_component_is_a_program_that_is_built() -> None:
    assert set(START_ORDER) <= {program.name for program in binaries.programs()}


def test_the_components_are_told_their_version() -> None:
    (apiserver,) = [program for program in binaries.programs() if program.name == "kube-apiserver"]
    assert "gitVersion=v1.37.2" in " ".join(apiserver.flags)
    assert "gitMinor=37" in " ".join(apiserver.flags)


def test_a_program_is_built_again_when_its_module_changes_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    for folder in binaries.MODULES.iterdir():
        (modules / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (modules / folder.name / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(binaries, "MODULES", modules)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = binaries.cache_folder()
    folder.mkdir(parents=True)
    for program in binaries.programs():
        (folder / program.name).touch()
        (folder / f".{program.name}.stamp").write_text(program.stamp())
    assert binaries.missing() == []
    (modules / "runc" / "go.sum").write_text("changed")
    assert [program.name for program in binaries.missing()] == ["runc"]
    (folder / "etcd").unlink()
    assert [program.name for program in binaries.missing()] == ["etcd", "runc"]


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "PACKAGES_NEEDED", {"some-package": "/no/such/file", "here": "/"})
    with pytest.raises(ClusterError, match=r"apt-get install --no-install-recommends some-package$"):
        binaries.check_packages()


def test_every_package_that_is_needed_is_in_the_list_for_newcomers() -> None:
    listed = (Path(binaries.__file__).parents[1] / "packages.txt").read_text().split()
    essential = {"util-linux", "iproute2"}
    assert binaries.PACKAGES_NEEDED.keys() - essential <= set(listed)


@pytest.fixture
def written(tmp_path: Path) -> Components:
    components = Components(Layout(tmp_path), STATE)
    components.write()
    return components


def test_every_configuration_file_is_sound_and_points_into_the_cluster_s_folder(
    written: Components, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    runtime: dict[str, Any] = tomllib.loads((config / "containerd.toml").read_text())
    cri = runtime["plugins"]["io.containerd.cri.v1.runtime"]
    assert cri["cdi_spec_dirs"] == [f"{tmp_path}/cdi"]
    assert cri["cni"]["conf_dir"] == f"{config}/cni"
    assert runtime["imports"] == []
    kubelet = json.loads((config / "kubelet.json").read_text())
    assert kubelet["containerRuntimeEndpoint"].endswith(runtime["plugins"]["io.containerd.server.v1.grpc"]["address"])
    assert kubelet["podLogsDir"].startswith(str(tmp_path))
    json.loads((config / "audit-policy.json").read_text())
    json.loads((config / "cni" / "10-gpudra.conflist").read_text())


@pytest.mark.parametrize("name", START_ORDER)
def test_no_component_is_given_a_system_folder_to_write_to(written: Components, name: str) -> None:
    for argument in written.argv(name)[1:]:
        assert argument.startswith("--")
        assert not any(folder in argument for folder in ("=/var/lib/", "=/etc/", "=/run/", "=/opt/"))


def test_the_image_archive_is_a_sound_oci_layout_with_both_names(tmp_path: Path) -> None:
    images.write_archive(tmp_path / "images.tar")
    with tarfile.open(tmp_path / "images.tar") as archive:
        names = archive.getnames()
        assert len(names) == len(set(names)), "a name twice: which one counts depends on the reader"

        def read(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        def blob(entry: dict[str, Any]) -> bytes:
            content = read("blobs/" + entry["digest"].replace(":", "/"))
            assert len(content) == entry["size"]
            return content

        assert json.loads(read("oci-layout"))["imageLayoutVersion"] == "1.0.0"
        index = json.loads(read("index.json"))
        assert [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]] == [
            "registry.k8s.io/pause:3.10.2",
            "localhost/gpudra-test:1",
        ]
        manifest = json.loads(blob(index["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        (layer,) = manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]
        with tarfile.open(fileobj=io.BytesIO(blob(layer))) as files:
            assert files.getmember("bin/busybox").mode == 0o755
            assert files.getmember("bin/sh").linkname == "busybox"
            assert files.getmember("tmp").mode == 0o1777
