"""Metadata of devices through a plugin: who gets it, how it changes under a mount, and what goes wrong."""

from __future__ import annotations

import gc
import json
import os
import stat
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.api import Claim, ClaimRef, DeviceMetadata, PreparedDevice
from kubeletplugin.devicemetadata import KNOWN_VERSIONS, decode_stream, read_file
from kubeletplugin.metadata import MetadataError, MetadataWriter
from tests.unit.kubelet_side.fakes import DRIVER, Node, claim_document, prepare_request, ref, unprepare_request

KNOWN = DeviceMetadata({"speed": {"int": 100}})
LATER = DeviceMetadata(network_data={"interfaceName": "net1"})


def device(request: str = "nic", name: str = "eth1", metadata: DeviceMetadata | None = KNOWN) -> PreparedDevice:
    return PreparedDevice((request,), "pool", name, (f"{DRIVER}/claim=x-{name}",), metadata=metadata)


def writer(root: Path) -> MetadataWriter:
    return MetadataWriter(DRIVER, root / "data", root / "cdi", KNOWN_VERSIONS)


def claim(of: ClaimRef) -> Claim:
    return Claim(of, claim_document(of))


def file_of(root: Path, of: ClaimRef, request: str = "nic") -> Path:
    return root / "data/dra-device-metadata" / of.uid / request / "metadata.json"


# Through the plugin


def test_the_first_device_of_each_request_brings_the_mount(node: Node, tmp_path: Path) -> None:
    node.api.add_claim(ref())
    node.driver.answers["uid-1"] = [device("a", "eth1"), device("a", "eth2"), device("b/fast", "eth3")]
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=tmp_path), node.stub() as dra:
        entry = dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"]
        assert entry.error == ""
        assert [list(one.cdi_device_ids) for one in entry.devices] == [
            [f"{DRIVER}/claim=x-eth1", f"{DRIVER}/metadata=uid-1_a"],
            [f"{DRIVER}/claim=x-eth2"],
            [f"{DRIVER}/claim=x-eth3", f"{DRIVER}/metadata=uid-1_b"],
        ], "and after the device's own name, by which the kubelet knows its health"
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"{DRIVER}_metadata_uid-1_a.json",
            f"{DRIVER}_metadata_uid-1_b.json",
        ]
        assert dra.NodeUnprepareResources(unprepare_request(ref()), timeout=10).claims["uid-1"].error == ""
        assert list(tmp_path.iterdir()) == []


def test_without_versions_nothing_is_written(node: Node, tmp_path: Path) -> None:
    node.api.add_claim(ref())
    node.driver.answers["uid-1"] = [device()]
    with node.plugin(cdi_dir=tmp_path) as plugin, node.stub() as dra:
        entry = dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"]
        assert list(entry.devices[0].cdi_device_ids) == [f"{DRIVER}/claim=x-eth1"]
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(RuntimeError, match="metadata_versions"):
            plugin.update_metadata(ref(), "nic", [device()])


def test_a_claim_whose_metadata_cannot_be_written_fails_alone_and_succeeds_later(node: Node, tmp_path: Path) -> None:
    for number in (1, 2):
        node.api.add_claim(ref(number))
    node.driver.answers["uid-1"] = [device("UPPER/case", "not a device name")]
    node.driver.answers["uid-2"] = [device()]
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=tmp_path), node.stub() as dra:
        reply = dra.NodePrepareResources(prepare_request(ref(1), ref(2)), timeout=10)
        assert "metadata for UPPER is not valid" in reply.claims["uid-1"].error
        assert reply.claims["uid-2"].error == ""
        node.driver.answers["uid-1"] = [device()]
        assert dra.NodePrepareResources(prepare_request(ref(1)), timeout=10).claims["uid-1"].error == ""
    assert ("prepare", "MetadataFailed") in node.observer.rpcs


def test_what_is_learned_later_reaches_the_same_file(node: Node, tmp_path: Path) -> None:
    node.api.add_claim(ref())
    node.driver.answers["uid-1"] = [device(metadata=None)]
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=tmp_path) as plugin, node.stub() as dra:
        dra.NodePrepareResources(prepare_request(ref()), timeout=10)
        path = node.plugins_dir / DRIVER / "dra-device-metadata/uid-1/nic/metadata.json"
        with path.open() as mounted:  # a bind mount holds the inode as an open file does
            assert plugin.update_metadata(ref(), "nic", [device(metadata=LATER)]) == 2
            seen = decode_stream(mounted.read())
        assert seen["requests"][0]["devices"][0]["networkData"] == {"interfaceName": "net1"}
        # The kubelet may ask again at any time, and the driver may not know any more.
        assert dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims["uid-1"].error == ""
        again = read_file(path)
        assert again["requests"][0]["devices"][0]["networkData"] == {"interfaceName": "net1"}
        assert again["metadata"]["generation"] == 2


def test_unprepare_says_so_when_metadata_cannot_be_removed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.api.add_claim(ref())
    node.driver.answers["uid-1"] = [device()]
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=tmp_path), node.stub() as dra:
        dra.NodePrepareResources(prepare_request(ref()), timeout=10)
        with monkeypatch.context() as broken:
            broken.setattr("shutil.rmtree", _full)
            error = dra.NodeUnprepareResources(unprepare_request(ref()), timeout=10).claims["uid-1"].error
            assert "cannot be removed" in error
        assert dra.NodeUnprepareResources(unprepare_request(ref()), timeout=10).claims["uid-1"].error == ""


def _full(_path: Path) -> None:
    raise OSError(28, "No space left on device")


# The writer


def test_both_versions_are_in_the_stream_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    writer(tmp_path).write(claim(ref()), [device()])
    text = file_of(tmp_path, ref()).read_text()
    assert text.index("v1beta1") < text.index("v1alpha1")
    assert decode_stream(text)["apiVersion"] == KNOWN_VERSIONS[0]
    assert decode_stream(text[text.index("}\n{") + 2 :])["apiVersion"] == KNOWN_VERSIONS[1]


def test_every_user_of_a_container_can_read_the_file_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        writer(tmp_path).write(claim(ref()), [device()])
    finally:
        os.umask(old)
    assert stat.S_IMODE(file_of(tmp_path, ref()).stat().st_mode) == 0o644
    (spec,) = (tmp_path / "cdi").iterdir()
    assert stat.S_IMODE(spec.stat().st_mode) == 0o644


def test_preparing_again_changes_nothing_where_nothing_is_new(tmp_path: Path) -> None:
    for _ in range(3):
        writer(tmp_path).write(claim(ref()), [device()])
    assert read_file(file_of(tmp_path, ref()))["metadata"]["generation"] == 1
    writer(tmp_path).write(claim(ref()), [device(metadata=LATER)])
    assert read_file(file_of(tmp_path, ref()))["metadata"]["generation"] == 2


def test_the_end_of_an_old_claim_leaves_a_new_one_of_the_same_name_alone(tmp_path: Path) -> None:
    old, new = ClaimRef("default", "same", "uid-old"), ClaimRef("default", "same", "uid-new")
    writer(tmp_path).write(claim(old), [device()])
    writer(tmp_path).write(claim(new), [device()])
    writer(tmp_path).remove(old)
    assert read_file(file_of(tmp_path, new))["metadata"]["uid"] == "uid-new"
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [f"{DRIVER}_metadata_uid-new_nic.json"]


@pytest.mark.parametrize("rest", ["", "{", '{"apiVersion": "metadata.resource.k8s.io/v1beta1", "ki'])
def test_a_file_that_a_crash_left_in_pieces_is_written_anew(tmp_path: Path, rest: str) -> None:
    writer(tmp_path).write(claim(ref()), [device()])
    file_of(tmp_path, ref()).write_text(rest)
    writer(tmp_path).write(claim(ref()), [device()])
    assert read_file(file_of(tmp_path, ref()))["requests"][0]["devices"][0]["name"] == "eth1"


@pytest.mark.bug("B83")
def test_what_claims_left_that_ended_without_an_unprepare_is_swept_and_nothing_else(tmp_path: Path) -> None:
    of = {"live": ref(1), "dead": ref(2), "late": ref(3)}
    mine = writer(tmp_path)
    for each in ("live", "dead"):
        mine.write(claim(of[each]), [device()])
    foreign = [tmp_path / "cdi" / name for name in (f"{DRIVER}-dead.json", "other_metadata_uid-2_nic.json")]
    strange = tmp_path / "data/dra-device-metadata/not_a_uid"
    for path in (*foreign, strange):
        path.write_text("{}")

    def keep() -> set[str]:
        mine.write(claim(of["late"]), [device()])  # prepared while we sweep
        return {of["live"].uid}

    assert mine.sweep(keep) == (of["dead"].uid,)
    assert [name for name, each in of.items() if file_of(tmp_path, each).exists()] == ["live", "late"]
    specs = {path.name for path in (tmp_path / "cdi").glob(f"{DRIVER}_metadata_*")}
    assert specs == {f"{DRIVER}_metadata_{of[name].uid}_nic.json" for name in ("live", "late")}
    assert all(path.exists() for path in (*foreign, strange))


def test_a_sweep_where_there_is_nothing_asks_nobody(tmp_path: Path) -> None:
    def keep() -> set[str]:
        raise AssertionError("nothing is there to be kept")

    assert writer(tmp_path).sweep(keep) == ()


def test_metadata_that_cannot_be_swept_is_told_and_swept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = writer(tmp_path)
    mine.write(claim(ref()), [device()])
    with monkeypatch.context() as patch:

        def refuse(_path: Path) -> None:
            raise PermissionError(13, "Permission denied")

        patch.setattr("kubeletplugin.metadata.shutil.rmtree", refuse)
        assert mine.sweep(set) == ()
    assert "cannot be removed" in caplog.text
    assert mine.sweep(set) == (ref().uid,)


def test_two_drivers_of_one_request_have_a_file_each(tmp_path: Path) -> None:
    containers = set()
    for driver in ("a.example.com", "b.example.com"):
        MetadataWriter(driver, tmp_path / driver, tmp_path / "cdi").write(claim(ref()), [device()])
        (spec,) = (tmp_path / "cdi").glob(f"{driver}_*.json")
        (found,) = json.loads(spec.read_text())["devices"]
        (mount,) = found["containerEdits"]["mounts"]
        assert read_file(Path(mount["hostPath"]))["requests"][0]["devices"][0]["driver"] == driver
        containers.add(mount["containerPath"])
    assert {Path(path).name for path in containers} == {"a.example.com-metadata.json", "b.example.com-metadata.json"}
    assert len({Path(path).parent for path in containers}) == 1, "where a reader looks for the request"


def test_a_driver_that_is_no_cdi_vendor_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="begin with a letter"):
        MetadataWriter("3com.example.com", tmp_path, tmp_path)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(MetadataError, match=r"CDI specification .* cannot be written"):
        writer(tmp_path).write(claim(ref()), [device()])
    (tmp_path / "data").mkdir(exist_ok=True)
    folder = tmp_path / "data/dra-device-metadata" / ref(2).uid
    folder.write_text("no folder")
    with pytest.raises(MetadataError, match=r"metadata file .* cannot be"):
        writer(tmp_path).write(claim(ref(2)), [device()])


@given(before=st.integers(0, 5000), after=st.integers(0, 5000))
def test_what_is_left_of_a_longer_content_hides_nothing(before: int, after: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as interrupted:
        root = Path(folder)
        writer(root).write(claim(ref()), [device(metadata=long_metadata(before))])
        interrupted.setattr("os.ftruncate", lambda _file, _length: None)  # a reader came before it
        writer(root).update(ref(), "nic", [device(metadata=long_metadata(after))])
        (shown,) = read_file(file_of(root, ref()))["requests"][0]["devices"]
        assert shown["networkData"]["hardwareAddress"] == "x" * after


def long_metadata(size: int) -> DeviceMetadata:
    return DeviceMetadata(network_data={"hardwareAddress": "x" * size})


def test_nothing_is_kept_of_claims_that_are_gone(tmp_path: Path) -> None:
    files = writer(tmp_path)

    def come_and_go(numbers: range) -> int:
        for number in numbers:
            files.write(claim(ref(number)), [device()])
            files.remove(ref(number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before, after = come_and_go(range(50)), come_and_go(range(50, 250))
    finally:
        tracemalloc.stop()
    assert after - before < 32 * 1024, "a pattern that Python keeps would be two KiB for each claim"


def test_the_end_of_a_claim_takes_no_files_of_others(tmp_path: Path) -> None:
    files = writer(tmp_path)
    for number in (1, 11):
        files.write(claim(ref(number)), [device()])
    left = [f".{DRIVER}_metadata_uid-1_nic.json.new", f"{DRIVER}_metadata_uid-1_nic.json"]
    others = [f"{DRIVER}_metadata_uid-11_nic.json", f"x{DRIVER}_metadata_uid-1_nic.json", f"{DRIVER}-claim_uid-1.json"]
    for name in (*left, *others):
        (tmp_path / "cdi" / name).touch()
    files.remove(ref(1))
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == sorted(others)
