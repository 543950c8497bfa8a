"""Metadata of prepared claims that is made again from the driver's record: which files, from what, and when not."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.api import Claim, DeviceMetadata, HeldClaim, PreparedDevice
from kubeletplugin.devicemetadata import KNOWN_VERSIONS, read_file
from kubeletplugin.metadata import DATA_FOLDER, POD_CLAIM_ANNOTATION, MetadataWriter
from kubeletplugin.plugin import METADATA_FOLDER
from tests.unit.kubelet_side.fakes import DRIVER, Node, claim_document, ref

KNOWN = DeviceMetadata({"speed": {"int": 100}})


def device(request: str = "nic", name: str = "eth1", metadata: DeviceMetadata | None = KNOWN) -> PreparedDevice:
    return PreparedDevice((request,), "pool", name, (), metadata=metadata)


DEVICES = (device(), device("other/sub", "eth2"), device("other/sub", "eth3", DeviceMetadata()))


class Host:
    """The folders of a driver, with one claim prepared that was made from a template and one that was not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cdi = root / "cdi"
        self.data = root / "data/dra-device-metadata"
        self.writer = MetadataWriter(DRIVER, root / "data", self.cdi, KNOWN_VERSIONS)
        plain, made = claim_document(ref(1)), claim_document(ref(2))
        made["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: "my-nic"}
        self.writer.write(Claim(ref(1), plain), DEVICES)
        self.writer.write(Claim(ref(2), made), DEVICES)
        self.claims = (HeldClaim(ref(1), DEVICES, ""), HeldClaim(ref(2), DEVICES, "my-nic"))
        self.calm = self.files()

    def files(self) -> dict[str, tuple[bytes, int]]:
        paths = [path for folder in (self.cdi, self.data) for path in folder.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in paths}

    def forgetful(self) -> tuple[HeldClaim, ...]:
        """The claims as a driver knows them that has only just started: its devices' metadata will be known later."""
        bare = tuple(msgspec.structs.replace(one, metadata=None) for one in DEVICES)
        return tuple(msgspec.structs.replace(claim, devices=bare) for claim in self.claims)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def rebooted(host: Host) -> None:
    shutil.rmtree(host.cdi)


def one_file_gone(host: Host) -> None:
    next(host.cdi.iterdir()).unlink()


def all_gone(host: Host) -> None:
    shutil.rmtree(host.cdi)
    shutil.rmtree(host.data)


def cut(host: Host) -> None:
    for path in host.files():
        Path(path).write_bytes(Path(path).read_bytes()[:50])


def emptied(host: Host) -> None:
    for path in host.files():
        Path(path).write_bytes(b"")


def closed_to_others(host: Host) -> None:
    for path in host.files():
        Path(path).chmod(0o600)


def made_links(host: Host) -> None:
    for path in list(host.cdi.iterdir()):
        path.rename(host.root / path.name)
        path.symlink_to(host.root / path.name)


HARM: list[Callable[[Host], None]] = [rebooted, one_file_gone, all_gone, cut, emptied, closed_to_others, made_links]


@pytest.mark.bug("B73")
@pytest.mark.bug("B72")
@pytest.mark.parametrize("harm", HARM)
def test_whatever_became_of_the_files_they_are_exactly_as_they_were(host: Host, harm: Callable[[Host], None]) -> None:
    harm(host)
    restored = host.writer.restore(lambda: host.claims)
    assert restored.remade
    assert restored.problems == {}
    assert host.files() == host.calm
    assert not any(path.is_symlink() for path in host.cdi.iterdir())
    assert host.writer.restore(lambda: host.claims).remade == (), "and stay so"


def test_a_file_that_is_another_claims_is_replaced_under_a_new_generation(host: Host) -> None:
    first, second = (host.data / ref(number).uid / "nic/metadata.json" for number in (1, 2))
    first.write_bytes(second.read_bytes())
    assert host.writer.restore(lambda: host.claims).remade == (ref(1).uid,)
    assert read_file(first)["metadata"] == {
        "name": ref(1).name,
        "namespace": "default",
        "uid": "uid-1",
        "generation": 2,
    }
    assert host.files()[str(second)] == host.calm[str(second)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_that_belong_to_a_user_are_roots_again(host: Host) -> None:
    for path in host.calm:
        os.chown(path, 1000, 1000)
    assert host.writer.restore(lambda: host.claims).remade == (ref(1).uid, ref(2).uid)
    assert {Path(path).stat().st_uid for path in host.files()} == {0}
    assert host.files() == host.calm
    assert host.writer.restore(lambda: host.claims).remade == ()


def test_where_all_is_well_nothing_is_written(host: Host) -> None:
    before = {path: Path(path).stat().st_mtime_ns for path in host.calm}
    inodes = {path: Path(path).stat().st_ino for path in host.calm}
    for claims in (host.claims, host.forgetful()):
        assert host.writer.restore(lambda claims=claims: claims).remade == ()  # type: ignore[misc]  # bound at once
    assert {path: Path(path).stat().st_mtime_ns for path in host.calm} == before
    assert {path: Path(path).stat().st_ino for path in host.calm} == inodes


@pytest.mark.bug("B73")
def test_before_the_devices_metadata_is_known_the_specifications_are_there_again(host: Host) -> None:
    rebooted(host)
    assert host.writer.restore(host.forgetful).remade == (ref(1).uid, ref(2).uid)
    assert host.files() == host.calm


def test_what_nobody_knows_now_waits_until_it_is_known(host: Host) -> None:
    shutil.rmtree(host.cdi)
    lost = host.data / ref(1).uid / "nic/metadata.json"
    lost.unlink()
    host.writer.restore(host.forgetful)
    assert not lost.exists(), "rather than a file that says less than it did"
    assert len(list(host.cdi.iterdir())) == 3
    assert host.writer.restore(lambda: host.claims).remade == (ref(1).uid,)
    assert host.files() == host.calm


def test_a_record_that_does_not_know_the_pods_name_for_the_claim_finds_it_in_the_file(host: Host) -> None:
    rebooted(host)
    unknowing = [msgspec.structs.replace(claim, pod_claim=None) for claim in host.claims]
    host.writer.restore(lambda: unknowing)
    assert host.files() == host.calm
    all_gone(host)
    assert host.writer.restore(lambda: unknowing).remade == (), "a file in the wrong place would be found by nobody"


def test_what_was_learned_after_prepare_stays(host: Host) -> None:
    later = DeviceMetadata(network_data={"interfaceName": "net1"})
    host.writer.update(ref(1), "nic", [device(metadata=later)])
    said = host.files()
    rebooted(host)
    host.writer.restore(host.forgetful)
    assert host.files() == said


def test_devices_that_are_others_by_now_are_told_under_a_new_generation(host: Host) -> None:
    faster = (device(metadata=DeviceMetadata({"speed": {"int": 400}})), *DEVICES[1:])
    path = host.data / ref(1).uid / "nic/metadata.json"
    with path.open() as mounted:  # a bind mount holds the inode as an open file does
        assert host.writer.restore(lambda: [HeldClaim(ref(1), faster, "")]).remade == (ref(1).uid,)
        assert '"int": 400' in mounted.read()
    assert read_file(path)["metadata"]["generation"] == 2


def test_versions_that_are_wanted_since_an_upgrade_are_added(tmp_path: Path) -> None:
    older = MetadataWriter(DRIVER, tmp_path / "data", tmp_path / "cdi", KNOWN_VERSIONS[1:])
    older.write(Claim(ref(1), claim_document(ref(1))), DEVICES)
    host = Host(tmp_path / "calm")
    newer = MetadataWriter(DRIVER, tmp_path / "data", tmp_path / "cdi", KNOWN_VERSIONS)
    assert newer.restore(lambda: [HeldClaim(ref(1), DEVICES, "")]).remade == (ref(1).uid,)
    made = tmp_path / "data/dra-device-metadata" / ref(1).uid / "nic/metadata.json"
    assert made.read_bytes() == (host.data / ref(1).uid / "nic/metadata.json").read_bytes()


@pytest.mark.bug("B75")
def test_a_claim_whose_files_cannot_be_made_is_told_and_keeps_no_other_from_its_own(host: Host) -> None:
    all_gone(host)
    host.data.mkdir()
    (host.data / ref(1).uid).write_text("no folder")
    restored = host.writer.restore(lambda: host.claims)
    assert restored.remade == (ref(2).uid,)
    assert list(restored.problems) == [ref(1)]
    assert str(host.data / ref(1).uid) in restored.problems[ref(1)]


def test_a_uid_that_cannot_be_one_leads_nowhere(host: Host) -> None:
    strange = HeldClaim(msgspec.structs.replace(ref(1), uid="../../up"), DEVICES, "")
    assert host.writer.restore(lambda: [strange]).remade == ()
    assert host.files() == host.calm


@pytest.mark.bug("B74")
def test_a_claim_that_ends_meanwhile_leaves_nothing(host: Host) -> None:
    held = {claim.ref.uid: claim for claim in host.claims}
    asked, ended = threading.Event(), threading.Event()

    def end() -> None:
        asked.wait(10)
        del held[ref(1).uid]  # the record goes first
        ended.set()
        host.writer.remove(ref(1))

    def claims() -> list[HeldClaim]:
        known = list(held.values())
        asked.set()
        ended.wait(10)
        return known

    ending = threading.Thread(target=end)
    ending.start()
    rebooted(host)
    host.writer.restore(claims)
    ending.join(10)
    assert not any(ref(1).uid in path for path in host.files())
    assert any(ref(2).uid in path for path in host.files())


@pytest.mark.bug("B81")
def test_a_cdi_folder_that_has_to_be_made_is_open_to_every_runtime_whatever_the_umask(host: Host) -> None:
    rebooted(host)
    old = os.umask(0o077)
    try:
        host.writer.restore(lambda: host.claims)
    finally:
        os.umask(old)
    assert stat.S_IMODE(host.cdi.stat().st_mode) == 0o755
    assert host.files() == host.calm


def test_a_plugin_without_metadata_asks_for_no_claims(node: Node, tmp_path: Path) -> None:
    def claims() -> list[HeldClaim]:
        raise AssertionError("nobody needs to know")

    with node.plugin(cdi_dir=tmp_path) as plugin:
        assert plugin.restore_metadata(claims).remade == ()


def test_a_plugin_restores_what_it_wrote(node: Node, tmp_path: Path) -> None:
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=tmp_path / "cdi") as plugin:
        assert plugin.restore_metadata(lambda: [HeldClaim(ref(), DEVICES, "")]).remade == (ref().uid,)
        assert len(list((tmp_path / "cdi").iterdir())) == 2


# Whatever stands there

NAMES = st.sampled_from(["apiVersion", "kind", "metadata", "requests", "name", "uid", "generation", "devices", "pool"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(KNOWN_VERSIONS[0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SHAPED = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(KNOWN_VERSIONS),
        "kind": st.just("DeviceMetadata"),
        "metadata": st.fixed_dictionaries({}, optional={"uid": VALUES, "generation": VALUES}),
        "requests": st.lists(st.fixed_dictionaries({"name": VALUES, "devices": VALUES}), max_size=2) | VALUES,
    },
    optional={"podClaimName": VALUES},
)


@settings(max_examples=150)
@given(st.binary(max_size=40) | (VALUES | SHAPED).map(lambda value: json.dumps(value).encode()), st.booleans())
def test_nothing_in_a_file_stops_a_start_or_survives_it(content: bytes, known: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        path = host.data / ref(1).uid / "nic/metadata.json"
        path.write_bytes(content)
        shutil.rmtree(host.cdi)
        restored = host.writer.restore(lambda: host.claims if known else host.forgetful())
        assert restored.problems == {}
        if known:
            (found,) = read_file(path)["requests"]
            assert [(one["name"], one["attributes"]) for one in found["devices"]] == [("eth1", dict(KNOWN.attributes))]
        assert ref(2).uid in restored.remade


# Turned off


@pytest.mark.bug("B83")
def test_what_was_handed_out_before_it_was_turned_off_lasts_as_long_as_its_claim(node: Node, tmp_path: Path) -> None:
    cdi, held = tmp_path / "cdi", {ref().uid}
    with node.plugin(metadata_versions=KNOWN_VERSIONS, cdi_dir=cdi) as plugin:
        plugin.restore_metadata(lambda: [HeldClaim(ref(), DEVICES, "")])
    folder = node.plugins_dir / DRIVER / METADATA_FOLDER
    with node.plugin(cdi_dir=cdi) as plugin:
        assert plugin.sweep_metadata(lambda: held) == ()
        assert len(list(cdi.iterdir())) == 2, "a container of the claim may start anew"
        held.clear()
        assert plugin.sweep_metadata(lambda: held) == (ref().uid,)
        assert list(cdi.iterdir()) == []
        assert not folder.exists()
        assert plugin.sweep_metadata(lambda: held) == ()


def test_the_folder_is_the_one_that_files_are_written_to() -> None:
    assert METADATA_FOLDER == DATA_FOLDER
