"""Kubernetes' own cases of reading metadata (devicemetadata/decode_test.go, api/metadata/*/validation_test.go).

Upstream converts into the type that a caller asks for; its versions have the same content, and here a document stays as
it is read. Its decode-X-to-Y cases are therefore one case for each X.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.api import JSON
from kubeletplugin.devicemetadata import MetadataStreamError, decode_stream, read_file, read_folder, read_request
from kubeletplugin.validation import validate_device_metadata

ALPHA, BETA = "metadata.resource.k8s.io/v1alpha1", "metadata.resource.k8s.io/v1beta1"
GPU = {
    "driver": "gpu.example.com",
    "pool": "worker-0",
    "name": "gpu-0",
    "attributes": {"model": {"string": "LATEST-GPU-MODEL"}},
}
OTHER = {"driver": "mlx.example.com", "pool": "worker-1", "name": "gpu-1"}
NIC = {"driver": "nic.example.com", "pool": "worker-0", "name": "nic-0"}


def document(version: str = ALPHA, requests: Any = None, **fields: Any) -> JSON:
    return {
        "apiVersion": version,
        "kind": "DeviceMetadata",
        "metadata": {"name": "my-claim", "namespace": "default", "uid": "uid-1234", "generation": 1},
        **fields,
        "requests": requests if requests is not None else [{"name": "gpu", "devices": [GPU]}],
    }


def line(content: JSON) -> str:
    return json.dumps(content) + "\n"


A, B = line(document(ALPHA)), line(document(BETA))
UNKNOWN = line({"apiVersion": "metadata.k8s.io/v99", "kind": "DeviceMetadata", "metadata": {"name": "test"}})
UNKNOWN2 = UNKNOWN.replace("v99", "v100")
UNKNOWN_WITHOUT_KIND = line({"apiVersion": "metadata.k8s.io/v99", "metadata": {"name": "test"}})
WITHOUT_KIND = line({"apiVersion": ALPHA, "metadata": {"name": "test"}})
WITHOUT_VERSION = line({"kind": "DeviceMetadata", "metadata": {"name": "test"}})
MALFORMED = line({"apiVersion": ALPHA, "kind": "DeviceMetadata", "requests": "this-should-be-an-array"})
NONE_FITS = "no compatible metadata version found in stream (unknown versions: metadata.k8s.io/v99"


@pytest.mark.parametrize(
    ("stream", "version"),
    [
        pytest.param(A, ALPHA, id="decode-v1alpha1"),
        pytest.param(B, BETA, id="decode-v1beta1"),
        pytest.param(B + A, BETA, id="decode-all"),
        pytest.param(A + B, ALPHA, id="decode-all-reversed"),
        pytest.param(A + "{broken", ALPHA, id="known-version-then-broken"),
        pytest.param(UNKNOWN + A, ALPHA, id="skips-unknown-version"),
    ],
)
def test_decode_metadata_from_stream(stream: str, version: str) -> None:
    assert decode_stream(stream) == document(version)


@pytest.mark.parametrize("version", [ALPHA, BETA], ids=["invalid-v1alpha1", "invalid-v1beta1"])
def test_invalid_content_is_read_and_found_by_validation(version: str) -> None:
    found = decode_stream(line(document(version, podClaimName="%!$#")))
    assert found["podClaimName"] == "%!$#"
    assert [error.field for error in validate_device_metadata(found)] == ["podClaimName"]
    assert validate_device_metadata(decode_stream(line(document(version)))) == []


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        pytest.param("", "no metadata objects found in stream", id="empty-stream"),
        pytest.param("{not-json", "read metadata object from stream", id="invalid-json"),
        pytest.param(A[:60], "read metadata object from stream", id="truncated-json"),
        pytest.param(WITHOUT_KIND, f"decode {ALPHA}", id="missing-kind"),
        pytest.param(WITHOUT_VERSION, "decode metadata object", id="missing-apiversion"),
        pytest.param(MALFORMED, f"decode {ALPHA}", id="malformed-registered-version"),
        pytest.param(UNKNOWN, NONE_FITS + ")", id="only-unknown-versions"),
        pytest.param(UNKNOWN_WITHOUT_KIND, "decode metadata.k8s.io/v99", id="unknown-version-missing-kind"),
        pytest.param(UNKNOWN + UNKNOWN2, NONE_FITS + ", metadata.k8s.io/v100)", id="multiple-unknown-versions"),
        pytest.param(MALFORMED + A, f"decode {ALPHA}", id="malformed-registered-then-valid-is-fatal"),
        pytest.param(WITHOUT_KIND + A, f"decode {ALPHA}", id="missing-kind-then-valid-is-fatal"),
        pytest.param(WITHOUT_VERSION + A, "decode metadata object", id="missing-apiversion-then-valid-is-fatal"),
        pytest.param(UNKNOWN + WITHOUT_KIND, f"decode {ALPHA}", id="unknown-version-then-malformed-is-fatal"),
    ],
)
def test_decode_metadata_from_stream_fails(stream: str, error: str) -> None:
    with pytest.raises(MetadataStreamError) as caught:
        decode_stream(stream)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["[]", "7", "null", line(document(requests=[7])), line(document(requests={"name": "gpu"})),
     line(document(requests=[{"name": "gpu", "devices": {}}])), line(document(requests=[{"name": 7}])),
     line(document(podClaimName=7)), line(document() | {"metadata": "x"}), line(document() | {"kind": "Other"})],
)  # fmt: skip
def test_other_shapes_are_refused_too(content: str) -> None:
    with pytest.raises(MetadataStreamError, match="decode"):
        decode_stream(content)


def test_read_metadata_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "metadata.json"
    path.write_text(A)
    assert read_file(path) == document()


def test_read_metadata_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere.json")


def test_read_metadata_error_includes_path(tmp_path: Path) -> None:
    path = tmp_path / "metadata.json"
    path.write_text("{}")
    with pytest.raises(MetadataStreamError, match=str(path)):
        read_file(path)


def request(name: str, *devices: JSON) -> JSON:
    return {"name": name, "devices": list(devices)}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({"gpu.example.com": [request("gpu", GPU)]}, [request("gpu", GPU)], id="single-driver"),
        pytest.param(
            {"gpu.example.com": [request("gpu", GPU)], "nic.example.com": [request("nic", NIC)]},
            [request("gpu", GPU), request("nic", NIC)],
            id="multiple-drivers",
        ),
        pytest.param(
            {
                "gpu.example.com": [request("gpu-0", GPU), request("single-gpu", GPU), request("gpu-1", GPU)],
                "mlx.example.com": [request("gpu-0", OTHER), request("gpu-1", OTHER)],
            },
            [request("gpu-0", GPU, OTHER), request("single-gpu", GPU), request("gpu-1", GPU, OTHER)],
            id="merge-same-request-name-across-drivers",
        ),
    ],
)
def test_read_request_dir(tmp_path: Path, files: dict[str, list[JSON]], found: list[JSON]) -> None:
    folder = tmp_path / "resourceclaims/my-claim/gpu"
    folder.mkdir(parents=True)
    for driver, requests in files.items():
        (folder / f"{driver}-metadata.json").write_text(line(document(requests=requests)))
    (folder / "unrelated.json").write_text('{"foo":"bar"}')  # ignores-non-matching-files
    assert read_folder(folder) == {"requests": found}
    assert read_request("my-claim", "gpu", root=tmp_path) == {"requests": found}


def test_read_request_dir_preserves_pod_claim_name(tmp_path: Path) -> None:
    folder = tmp_path / "resourceclaimtemplates/my-gpu/gpu"
    folder.mkdir(parents=True)
    (folder / "gpu.example.com-metadata.json").write_text(line(document(podClaimName="my-gpu")))
    assert read_request("my-gpu", "gpu", template=True, root=tmp_path)["podClaimName"] == "my-gpu"


@pytest.mark.parametrize("name", ["", "nonexistent"], ids=["empty-directory", "nonexistent-directory"])
def test_read_request_dir_without_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(MetadataStreamError, match="no metadata files found"):
        read_folder(tmp_path / name)


def _set(path: list[Any], value: Any) -> Any:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


DEVICE: list[Any] = ["requests", 0, "devices", 0]
SPOILED = "requests[0].devices[0]"


@pytest.mark.parametrize("version", [ALPHA, BETA])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(lambda _content: None, None, id="valid"),
        pytest.param(_set(["podClaimName"], "INVALID"), "podClaimName", id="invalid pod claim name"),
        pytest.param(_set(["requests", 0, "name"], ""), "requests[0].name", id="request name required"),
        pytest.param(_set([*DEVICE, "driver"], ""), f"{SPOILED}.driver", id="driver required"),
        pytest.param(_set([*DEVICE, "driver"], "a" * 64), f"{SPOILED}.driver", id="driver too long"),
        pytest.param(_set([*DEVICE, "pool"], "worker-0/"), f"{SPOILED}.pool", id="invalid pool"),
        pytest.param(_set([*DEVICE, "name"], "GPU-0"), f"{SPOILED}.name", id="invalid device name"),
        pytest.param(
            _set([*DEVICE, "attributes"], {f"attribute{number}": {"string": "x"} for number in range(33)}),
            f"{SPOILED}.attributes",
            id="too many attributes",
        ),
    ],
)
def test_validate_device_metadata(version: str, change: Any, field: str | None) -> None:
    content = copy.deepcopy(document(version, requests=[request("request/subrequest", GPU)], podClaimName="claim"))
    change(content)
    assert [error.field for error in validate_device_metadata(content)] == ([field] if field else [])
