"""Reads device metadata (KEP-5304): for programs in containers, and for the driver that wrote it.

A file is a stream of JSON objects, the same content in several API versions. The first version that a reader knows
counts; unknown ones are passed over, so that a newer driver does not break an older reader; anything malformed before
that is an error (k8s.io/dynamic-resource-allocation/devicemetadata).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kubeletplugin.api import JSON

CONTAINER_DIR = "/var/run/kubernetes.io/dra-device-attributes"
CLAIMS_FOLDER = "resourceclaims"
TEMPLATES_FOLDER = "resourceclaimtemplates"
SUFFIX = "-metadata.json"

GROUP = "metadata.resource.k8s.io"
KNOWN_VERSIONS = (f"{GROUP}/v1beta1", f"{GROUP}/v1alpha1")
"""Newest first. Their content is the same."""
KIND = "DeviceMetadata"

_SPACE = " \t\r\n"


class MetadataStreamError(ValueError):
    """The stream holds nothing that can be used; the text says what is wrong."""


def file_name(driver_name: str) -> str:
    """The name of a driver's file in a request's folder."""
    return driver_name + SUFFIX


def decode_stream(text: str) -> JSON:
    """The first object of a known version, as it stands there.

    Raises:
        MetadataStreamError: there is none, or something before it is malformed.
    """
    decoder = json.JSONDecoder()
    unknown: list[str] = []
    position = _skip(text, 0)
    while position < len(text):
        try:
            found, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:  # whole numbers may be too long for Python, too
            raise MetadataStreamError(f"read metadata object from stream: {error}") from error
        position = _skip(text, position)
        version = _version(found)
        if version in KNOWN_VERSIONS:
            fault = _fault(found)
            if fault is not None:
                raise MetadataStreamError(f"decode {version}: {fault}")
            return dict(found)
        unknown.append(version)
    if not unknown:
        raise MetadataStreamError("no metadata objects found in stream")
    raise MetadataStreamError(
        f"no compatible metadata version found in stream (unknown versions: {', '.join(unknown)})"
    )


def read_file(path: Path) -> JSON:
    """The content of one file.

    Raises:
        MetadataStreamError: it cannot be used; the text names the file.
        OSError: it cannot be read.
    """
    try:
        return decode_stream(path.read_text())
    except (MetadataStreamError, UnicodeDecodeError) as error:
        raise MetadataStreamError(f"{path}: {error}") from error


def read_request(claim: str, request: str, *, template: bool = False, root: Path = Path(CONTAINER_DIR)) -> JSON:
    """What all drivers say of one request, from inside a container.

    Args:
        claim: the ResourceClaim's name; with ``template`` the name in the pod's ``spec.resourceClaims``.
        request: the request's name, without a subrequest.
        template: the claim was made from a template.
        root: where the files are mounted.

    Raises:
        MetadataStreamError: no driver says anything, or one of the files cannot be used.
        OSError: one cannot be read.
    """
    return read_folder(root / (TEMPLATES_FOLDER if template else CLAIMS_FOLDER) / claim / request)


def read_folder(folder: Path) -> JSON:
    """All drivers' files of one request in one object; devices of requests of the same name come together.

    Raises:
        As ``read_request``.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise MetadataStreamError(f"no metadata files found in {folder}")
    merged: JSON = {}
    requests: dict[str, JSON] = {}
    for path in paths:
        document = read_file(path)
        if document.get("podClaimName"):
            merged.setdefault("podClaimName", document["podClaimName"])
        for request in document.get("requests") or ():
            known = requests.setdefault(request["name"], {"name": request["name"], "devices": []})
            known["devices"] += request.get("devices") or []
    return merged | {"requests": list(requests.values())}


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _version(found: Any) -> str:
    version = found.get("apiVersion") if isinstance(found, dict) else None
    if not isinstance(version, str) or not version:
        raise MetadataStreamError("decode metadata object: apiVersion is missing")
    if not isinstance(found.get("kind"), str) or not found["kind"]:
        raise MetadataStreamError(f"decode {version}: kind is missing")
    return version


def _fault(found: JSON) -> str | None:
    """What keeps an object of a known version from being read, or None."""
    if found["kind"] != KIND:
        return f"no kind {found['kind']!r} is known"
    if not isinstance(found.get("metadata") or {}, dict):
        return "metadata is no object"
    if not isinstance(found.get("podClaimName") or "", str):
        return "podClaimName is no text"
    requests = found.get("requests")
    for request in requests if isinstance(requests, list) else () if requests is None else (requests,):
        if not isinstance(requests, list) or not isinstance(request, dict):
            return "requests is no list of objects"
        devices = request.get("devices")
        if devices is not None and not (isinstance(devices, list) and all(isinstance(one, dict) for one in devices)):
            return "devices is no list of objects"
        if not isinstance(request.get("name", ""), str):
            return "the name of a request is no text"
    return None
