"""Targets: what the API server, the kubelet and other drivers send; credentials; device metadata."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from google.protobuf.message import DecodeError

from kubeletplugin import devicemetadata, kubeconfig, quantity
from kubeletplugin.api import Claim, ClaimRef, PrepareError
from kubeletplugin.apierrors import ApiError, ApiUnreachableError, error_of_status
from kubeletplugin.claims import fetch_claim
from kubeletplugin.client import KubeClient
from kubeletplugin.credentials import Access, CredentialsError, TokenSource
from kubeletplugin.metadata import MetadataError, MetadataWriter
from kubeletplugin.proto import dra_v1_pb2, registration_v1_pb2
from kubeletplugin.publisher.naming import decode_index
from tests.fuzz.engine import Target
from tests.fuzz.fuzzclaims import CLAIM, UID
from tests.fuzz.fuzztools import as_json, as_text, written

_CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://a:6443", "certificate-authority-data": "QUJD"}}],
    "users": [{"name": "u", "user": {"token": "t", "client-certificate-data": "QUJD", "client-key-data": "QUJD"}}],
}
_METADATA = {
    "apiVersion": devicemetadata.KNOWN_VERSIONS[0],
    "kind": "DeviceMetadata",
    "metadata": {"name": "c", "namespace": "n", "uid": UID, "generation": 1},
    "requests": [
        {
            "name": "r0",
            "devices": [
                {"driver": "gpu.nvidia.com", "pool": "p", "name": "gpu-0", "attributes": {"a/b": {"string": "x"}}}
            ],
        }
    ],
}
_EVENT = {"type": "ADDED", "object": CLAIM}
_GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}
_STATUS = {
    "kind": "Status",
    "code": 429,
    "reason": "TooManyRequests",
    "message": "m",
    "details": {"retryAfterSeconds": 3},
}
_REF = ClaimRef("default", "train", UID)


def _watch_line(data: bytes, _folder: Path) -> None:
    with contextlib.closing(KubeClient("http://127.0.0.1:1")) as client:
        client._event("/apis", data)


class _Answers:
    def __init__(self, document: object) -> None:
        self._document = document

    def get(self, _path: str, *, timeout: float | None = None) -> dict[str, object]:
        if not isinstance(self._document, dict):
            raise ApiUnreachableError("the answer is not a JSON object")
        return self._document


def _status(data: bytes, _folder: Path) -> None:
    document = as_json(data)
    if isinstance(document, dict):
        raise error_of_status(document, 500, None)


def _config(data: bytes, folder: Path) -> None:
    access = kubeconfig.load_kubeconfig(written(folder, "config", data))
    repr(access)
    TokenSource(access.token).get()


def _token(data: bytes, folder: Path) -> None:
    written(folder, "ca.crt", b"x")
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    written(folder, "token", data)
    TokenSource(Access.from_pod(folder, environment).token).get()


def _message(data: bytes, _folder: Path) -> None:
    for kind in (
        dra_v1_pb2.NodePrepareResourcesRequest,
        dra_v1_pb2.NodeUnprepareResourcesRequest,
        registration_v1_pb2.RegistrationStatus,
    ):
        kind.FromString(data)


def _metadata(data: bytes, folder: Path) -> None:
    path = written(folder, "gpu.nvidia.com-metadata.json", data)
    devicemetadata.read_file(path)
    devicemetadata.read_folder(folder)


def _stored_metadata(data: bytes, folder: Path) -> None:
    written(folder, f"dra-device-metadata/{UID}/r0/metadata.json", data)
    writer = MetadataWriter("gpu.nvidia.com", folder, folder / "cdi")
    from kubeletplugin.api import PreparedDevice

    writer.write(Claim(_REF, CLAIM), [PreparedDevice(("r0",), "p", "gpu-0", ())])


REQUEST = dra_v1_pb2.NodePrepareResourcesRequest(
    claims=[dra_v1_pb2.Claim(namespace="default", name="train", uid=UID)]
).SerializeToString()

TARGETS = (
    Target("watch line", _watch_line, (ApiUnreachableError, ApiError), [json.dumps(_EVENT).encode()]),
    Target("watch error", _watch_line, (ApiUnreachableError, ApiError), [], seeds=(json.dumps(_GONE).encode(),)),
    Target("status object", _status, (ApiError,), [], seeds=(json.dumps(_STATUS).encode(),)),
    Target(
        "claim of the API server",
        lambda data, _: fetch_claim(_Answers(as_json(data)), _REF, 1.0),
        (PrepareError,),
        [
            json.dumps(
                {**CLAIM, "status": {**CLAIM["status"], "reservedFor": [{"resource": "pods", "uid": "u"}]}}
            ).encode()
        ],
    ),
    Target(
        "kubeconfig",
        _config,
        (CredentialsError,),
        [json.dumps(_CONFIG).encode()],
        ("kubeletplugin.kubeconfig:load_kubeconfig",),
    ),
    Target(
        "service account token",
        _token,
        (CredentialsError,),
        [b"abc.def.ghi\n"],
        ("kubeletplugin.credentials:Access.from_pod",),
    ),
    Target(
        "quantity of the API",
        lambda data, _: quantity.parse_quantity(as_text(data)),
        (quantity.QuantityError,),
        [b"80Gi", b"1500m", b"1e3", b"-0.5"],
        ("kubeletplugin.quantity:parse_quantity",),
    ),
    Target("messages of the kubelet", _message, (DecodeError,), [REQUEST]),
    Target(
        "device metadata",
        _metadata,
        (devicemetadata.MetadataStreamError,),
        [json.dumps(_METADATA).encode()],
        (
            "kubeletplugin.devicemetadata:read_file",
            "kubeletplugin.devicemetadata:read_folder",
            "kubeletplugin.devicemetadata:read_request",
            "kubeletplugin.devicemetadata:decode_stream",
        ),
    ),
    Target("stored metadata", _stored_metadata, (MetadataError,), [json.dumps(_METADATA).encode()]),
    Target(
        "name of a slice",
        lambda data, _: decode_index(as_text(data), 5),
        (),
        [b"00012-gpu", b"0000a"],
        ("kubeletplugin.publisher.naming:decode_index",),
    ),
)
