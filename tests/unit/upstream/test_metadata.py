"""Kubernetes' own cases of the metadata writer (kubeletplugin/metadata_test.go), by their names.

Where we differ: on the host a claim's folder is named by its UID, not by namespace and name. Names come again, and the
late end of an old claim would remove the files of a new one. Containers see no difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.api import Claim, ClaimRef, DeviceMetadata, PreparedDevice
from kubeletplugin.devicemetadata import read_file
from kubeletplugin.metadata import MetadataError, MetadataWriter

V1ALPHA1 = "metadata.resource.k8s.io/v1alpha1"
REF = ClaimRef("default", "my-claim", "1234-claim-uid")
REQUEST = "gpu-request"
SUBREQUEST = "gpu-request/high-memory"
BUS_ID = DeviceMetadata({"pciBusID": {"string": "0000:03:00.0"}})
CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"


def device(request: str = REQUEST, name: str = "gpu-0", metadata: DeviceMetadata | None = None) -> PreparedDevice:
    return PreparedDevice((request,), "node-1", name, (), metadata=metadata)


def claim(annotations: dict[str, str] | None = None) -> Claim:
    return Claim(REF, {"metadata": {"annotations": annotations} if annotations else {}})


class Folders:
    def __init__(self, root: Path) -> None:
        self.data, self.cdi = root / "data", root / "cdi"
        self.writer = MetadataWriter("example.com", self.data, self.cdi, [V1ALPHA1])

    def metadata(self, base: str, uid: str = REF.uid) -> Path:
        return self.data / "dra-device-metadata" / uid / base / "metadata.json"

    def spec(self, base: str, uid: str = REF.uid) -> Path:
        return self.cdi / f"example.com_metadata_{uid}_{base}.json"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.mark.parametrize(
    ("versions", "fails"),
    [
        pytest.param([V1ALPHA1], False, id="all supported"),
        pytest.param(["bogus/v99"], True, id="all unsupported"),
        pytest.param([], True, id="empty list"),
        # Upstream leaves an unknown version out without a word; a driver that asks for one should hear of it.
        pytest.param(["bogus/v99", V1ALPHA1], True, id="mix of supported and unsupported"),
    ],
)
def test_new_metadata_writer_version_validation(tmp_path: Path, versions: list[str], fails: bool) -> None:
    if fails:
        with pytest.raises(ValueError, match="choose from"):
            MetadataWriter("example.com", tmp_path, tmp_path, versions)
    else:
        MetadataWriter("example.com", tmp_path, tmp_path, versions)


NETWORK = DeviceMetadata(network_data={"interfaceName": "eth0", "ips": ["10.0.0.5/24"]})
MEMORY = DeviceMetadata({"memoryGB": {"string": "80"}})
MODEL = DeviceMetadata({"model": {"string": "LATEST-GPU-MODEL"}})


@pytest.mark.parametrize(
    ("devices", "pod_claim"),
    [
        pytest.param([device(metadata=BUS_ID)], None, id="with-metadata"),
        pytest.param([device()], None, id="without-metadata-deferred"),
        pytest.param([device(name="vf-0", metadata=NETWORK)], None, id="network-device-data"),
        pytest.param([device("gpu-request"), device("nic-request", "nic-0")], None, id="multiple-requests"),
        pytest.param([device(SUBREQUEST, metadata=MEMORY)], None, id="subrequest"),
        pytest.param([device(metadata=MODEL)], "my-gpu", id="with-pod-claim-name-annotation"),
    ],
)
def test_process_prepared_claim(folders: Folders, devices: list[PreparedDevice], pod_claim: str | None) -> None:
    annotations = {"resource.kubernetes.io/pod-claim-name": pod_claim} if pod_claim else None

    names = folders.writer.write(claim(annotations), devices)

    bases = {one.requests[0].partition("/")[0]: one for one in devices}
    assert names == {base: f"example.com/metadata={REF.uid}_{base}" for base in bases}
    for base, one in bases.items():
        document = read_file(folders.metadata(base))
        assert document == expected(one, pod_claim)
        where = f"resourceclaimtemplates/{pod_claim}" if pod_claim else "resourceclaims/my-claim"
        mount = {
            "hostPath": str(folders.metadata(base)),
            "containerPath": f"{CONTAINER}/{where}/{base}/example.com-metadata.json",
            "options": ["ro", "bind"],
        }
        assert json.loads(folders.spec(base).read_text()) == {
            "cdiVersion": "0.5.0",
            "kind": "example.com/metadata",
            "devices": [{"name": f"{REF.uid}_{base}", "containerEdits": {"mounts": [mount]}}],
        }


def expected(one: PreparedDevice, pod_claim: str | None = None, generation: int = 1) -> dict[str, Any]:
    shown: dict[str, Any] = {"driver": "example.com", "pool": one.pool, "name": one.device}
    if one.metadata is not None and one.metadata.attributes:
        shown["attributes"] = one.metadata.attributes
    if one.metadata is not None and one.metadata.network_data:
        shown["networkData"] = one.metadata.network_data
    return {
        "apiVersion": V1ALPHA1,
        "kind": "DeviceMetadata",
        "metadata": {"name": REF.name, "namespace": REF.namespace, "uid": REF.uid, "generation": generation},
        **({"podClaimName": pod_claim} if pod_claim else {}),
        "requests": [{"name": one.requests[0], "devices": [shown]}],
    }


@pytest.mark.parametrize(
    ("prepared", "before", "ref"),
    [
        pytest.param([device(metadata=BUS_ID)], False, REF, id="removes-files"),
        pytest.param([], False, ClaimRef("no-ns", "no-claim", "unknown-uid"), id="nonexistent-claim-is-noop"),
        pytest.param([device(metadata=BUS_ID)], True, REF, id="idempotent"),
        pytest.param([device("gpu-request"), device("nic-request", "nic-0")], False, REF, id="multiple-requests"),
        pytest.param([device(SUBREQUEST)], False, REF, id="subrequest"),
    ],
)
def test_cleanup_claim(folders: Folders, prepared: list[PreparedDevice], before: bool, ref: ClaimRef) -> None:
    if prepared:
        folders.writer.write(claim(), prepared)
        assert folders.metadata("gpu-request").exists()
    if before:
        folders.writer.remove(ref)

    folders.writer.remove(ref)

    assert not list(folders.data.glob("dra-device-metadata/*"))
    assert not list(folders.cdi.glob("*"))


@pytest.mark.parametrize(
    ("prepared", "before", "uid", "request_name", "device_after", "generation"),
    [
        pytest.param(device(), 0, REF.uid, REQUEST, device(metadata=BUS_ID), 2, id="updates-file-and-generation"),
        pytest.param(None, 0, "unknown-uid", REQUEST, device(metadata=BUS_ID), None, id="unknown-claim"),
        pytest.param(
            device(metadata=BUS_ID), 0, REF.uid, "nonexistent-request", device(metadata=BUS_ID), None,
            id="unknown-request",
        ),
        pytest.param(
            device(), 2, REF.uid, REQUEST, device(metadata=BUS_ID), 4, id="increments-generation-multiple-times"
        ),
        pytest.param(
            device(SUBREQUEST), 0, REF.uid, SUBREQUEST, device(SUBREQUEST, metadata=BUS_ID), 2, id="subrequest-update"
        ),
    ],
)  # fmt: skip
def test_update_request_metadata(
    folders: Folders,
    prepared: PreparedDevice | None,
    before: int,
    uid: str,
    request_name: str,
    device_after: PreparedDevice,
    generation: int | None,
) -> None:
    if prepared is not None:
        folders.writer.write(claim(), [prepared])
    for _ in range(before):
        folders.writer.update(REF, request_name, [device_after])
    ref = ClaimRef(REF.namespace, REF.name, uid)
    if generation is None:
        with pytest.raises(MetadataError, match="not found"):
            folders.writer.update(ref, request_name, [device_after])
        return

    assert folders.writer.update(ref, request_name, [device_after]) == generation

    base = request_name.partition("/")[0]
    assert read_file(folders.metadata(base)) == expected(device_after, generation=generation)
