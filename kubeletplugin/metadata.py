"""Device metadata (KEP-5304): a file for each request of a prepared claim, mounted into containers by CDI.

The layout is that of k8s.io/dynamic-resource-allocation/api/metadata, so that any reader finds it: in a container
``/var/run/kubernetes.io/dra-device-attributes/{resourceclaims/<claim>|resourceclaimtemplates/<name in the pod>}/
<request>/<driver>-metadata.json``, holding the same object once per version. On the host the files lie in a folder of
the claim's UID: names come again, and the end of an old claim must not take a new one's files with it.

A bind mount holds on to the inode. A file that exists is therefore changed in place: written over from its start in one
call and then cut, so that what is left of a longer old content stands behind a whole first object, which is all that
readers read. (The kernel does not promise that a read during the write itself sees all of it or nothing.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from kubeletplugin.api import JSON, Claim, ClaimRef, PreparedDevice
from kubeletplugin.devicemetadata import (
    CLAIMS_FOLDER,
    CONTAINER_DIR,
    KNOWN_VERSIONS,
    TEMPLATES_FOLDER,
    MetadataStreamError,
    decode_stream,
    file_name,
)
from kubeletplugin.validation import validate_device_metadata

logger = logging.getLogger(__name__)

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On claims made from a template: the name in the pod's ``spec.resourceClaims``."""
DATA_FOLDER = "dra-device-metadata"
_MAX_BYTES = 16 << 20
"""More than any file of a request holds."""
CDI_VERSION = "0.5.0"
"""The first that allows names of devices to begin with a digit, as UIDs may."""

_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota of that file system",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "give the plugin write access to that folder",
    errno.EPERM: "give the plugin write access to that folder",
    errno.EIO: "check the disk (see the kernel log)",
}
_UID = re.compile(r"\A[0-9A-Za-z][0-9A-Za-z-]{0,62}\Z")
_CDI_VENDOR = re.compile(r"\A[A-Za-z]([-_.A-Za-z0-9]*[A-Za-z0-9])?\Z")


class MetadataError(Exception):
    """Metadata cannot be written; the text names the claim and the cause."""


class MetadataWriter:
    """Writes and removes the files of one driver. Safe for threads.

    Args:
        driver_name: also the CDI vendor.
        data_dir: the plugin's own folder; must have the same path for the container runtime.
        cdi_dir: where the runtime looks for CDI specifications.
        versions: API versions to write, the one that readers are to prefer first.

    Raises:
        ValueError: a version is not known, there is none, or the driver's name cannot be a CDI vendor.
    """

    def __init__(
        self, driver_name: str, data_dir: Path, cdi_dir: Path, versions: Sequence[str] = KNOWN_VERSIONS[:1]
    ) -> None:
        unknown = [version for version in versions if version not in KNOWN_VERSIONS]
        if unknown or not versions:
            raise ValueError(f"metadata versions {list(versions)}: choose from {', '.join(KNOWN_VERSIONS)}")
        if not _CDI_VENDOR.match(driver_name):
            raise ValueError(f"driver name {driver_name!r} cannot be a CDI vendor: those begin with a letter")
        self._driver_name = driver_name
        self._folder = data_dir / DATA_FOLDER
        self._cdi_dir = cdi_dir
        self._versions = tuple(versions)
        self._lock = threading.Lock()

    def write(self, claim: Claim, devices: Sequence[PreparedDevice]) -> dict[str, str]:
        """Writes what is known of a claim that was prepared; the CDI name for each (base) request.

        May be repeated: what was learned of a device since, and ``devices`` does not know, stays, and the generation
        counts on only where something is different.

        Raises:
            MetadataError: a file cannot be written or read by those it is for.
        """
        annotations = claim.document.get("metadata", {}).get("annotations") or {}
        pod_claim = annotations.get(POD_CLAIM_ANNOTATION) or None
        names = {}
        with self._lock:
            for base, requests in _by_request(devices).items():
                self._write_request(claim.ref, base, requests, pod_claim)
                names[base] = self._write_cdi(claim.ref, base, pod_claim)
        return names

    def update(self, ref: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> int:
        """Replaces what is said of one request's devices, for what is known only after Prepare; the new generation.

        Raises:
            MetadataError: the claim or the request was not prepared, or the file cannot be written.
        """
        base = request.partition("/")[0]
        path = self._path(ref, base)
        with self._lock:
            stored = self._read(path)
            if stored is None:
                raise MetadataError(f"request {request!r} of claim {ref} has no metadata: not found in {path.parent}")
            generation = int(stored["metadata"].get("generation") or 0) + 1
            content = [{"name": request, "devices": [self._device(device, None) for device in devices]}]
            self._store(path, self._document(ref, generation, stored.get("podClaimName"), content))
        return generation

    def remove(self, ref: ClaimRef) -> None:
        """Removes all of a claim. Nothing there is a success.

        Raises:
            MetadataError: something is left; to be repeated.
        """
        folder = self._folder / ref.uid
        with self._lock:
            try:
                name = f"{self._driver_name}_metadata_{ref.uid}_*.json"
                for pattern in (name, f".{name}.new"):  # the latter of a process that was killed
                    for spec in self._cdi_dir.glob(pattern):
                        spec.unlink(missing_ok=True)
                if folder.exists():
                    shutil.rmtree(folder)
            except OSError as error:
                # What removes a folder names only the last part of a path.
                where = f"{folder} and {self._cdi_dir}"
                raise MetadataError(f"metadata of claim {ref} cannot be removed ({where}): {_told(error)}") from error

    def sweep(self, keep: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """Removes what belongs to no claim any more: of claims that ended without an Unprepare.

        Args:
            keep: gives the UIDs of all claims that there are. Called once what is there was listed: a claim has a
                record before it has files, so that one which is prepared meanwhile is among them.

        Returns:
            The UIDs of which something was removed. What could not be is logged.
        """
        found = self._uids()
        if not found:
            return ()
        known = keep()
        removed = []
        for uid in sorted(found - set(known)):
            try:
                self.remove(ClaimRef("", "", uid))
            except MetadataError as error:
                logger.warning("%s", error)
            else:
                removed.append(uid)
        if removed:
            logger.info("removed the metadata of claims that are gone", extra={"claims": removed})
        return tuple(removed)

    def _uids(self) -> set[str]:
        """Of the claims that have files; what is not named as ours are is left alone."""
        prefix = f"{self._driver_name}_metadata_"
        names = {path.name for path in self._folder.glob("*")}
        names |= {path.name.removeprefix(prefix).partition("_")[0] for path in self._cdi_dir.glob(f"{prefix}*_*.json")}
        return {name for name in names if _UID.match(name)}

    def _write_request(
        self, ref: ClaimRef, base: str, requests: Mapping[str, Sequence[PreparedDevice]], pod_claim: str | None
    ) -> None:
        path = self._path(ref, base)
        stored = self._read(path)
        known = {(device["pool"], device["name"]): device for device in _devices(stored)}
        content: list[JSON] = [
            {
                "name": name,
                "devices": [self._device(device, known.get((device.pool, device.device))) for device in devices],
            }
            for name, devices in requests.items()
        ]
        generation = int(stored["metadata"].get("generation") or 0) if stored is not None else 0
        if stored is not None and self._document(ref, generation, pod_claim, content) == _unversioned(stored):
            return
        self._store(path, self._document(ref, generation + 1, pod_claim, content))

    def _device(self, device: PreparedDevice, known: JSON | None) -> JSON:
        if device.metadata is None and known is not None:
            return known
        found: JSON = {"driver": self._driver_name, "pool": device.pool, "name": device.device}
        if device.metadata is not None:
            if device.metadata.attributes:
                found["attributes"] = dict(device.metadata.attributes)
            if device.metadata.network_data:
                found["networkData"] = device.metadata.network_data
        return found

    def _document(self, ref: ClaimRef, generation: int, pod_claim: str | None, requests: list[JSON]) -> JSON:
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid, "generation": generation}
        return {"metadata": metadata, **({"podClaimName": pod_claim} if pod_claim else {}), "requests": requests}

    def _read(self, path: Path) -> JSON | None:
        """The file's content; None where there is none, or one that a crash has left in pieces."""
        try:
            return decode_stream(_read_file(path))
        except (FileNotFoundError, MetadataStreamError, UnicodeDecodeError):
            return None
        except OSError as error:
            raise MetadataError(f"metadata file {path} cannot be read: {error}") from error

    def _store(self, path: Path, document: JSON) -> None:
        faults = validate_device_metadata(document)
        if faults:
            raise MetadataError(f"metadata for {path.parent.name} is not valid: {'; '.join(map(str, faults))}")
        stream = "".join(
            json.dumps({"apiVersion": version, "kind": "DeviceMetadata", **document}, indent=2) + "\n"
            for version in self._versions
        )
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write_in_place(path, stream.encode())
        except OSError as error:
            raise MetadataError(f"metadata file {path} cannot be written: {_told(error)}") from error

    def _write_cdi(self, ref: ClaimRef, base: str, pod_claim: str | None) -> str:
        name = f"{ref.uid}_{base}"
        folder = f"{TEMPLATES_FOLDER}/{pod_claim}" if pod_claim else f"{CLAIMS_FOLDER}/{ref.name}"
        mount = {
            "hostPath": str(self._path(ref, base)),
            "containerPath": f"{CONTAINER_DIR}/{folder}/{base}/{file_name(self._driver_name)}",
            "options": ["ro", "bind"],
        }
        kind = f"{self._driver_name}/metadata"
        device = {"name": name, "containerEdits": {"mounts": [mount]}}
        text = json.dumps({"cdiVersion": CDI_VERSION, "kind": kind, "devices": [device]}, indent=2)
        path = self._cdi_dir / f"{self._driver_name}_metadata_{name}.json"
        try:
            self._cdi_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            # The runtime reads whatever ends in .json, at any time: it may only appear whole.
            temporary = path.with_name(f".{path.name}.new")
            try:
                _write_new(temporary, text.encode())
                temporary.rename(path)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    temporary.unlink()
                raise
        except OSError as error:
            raise MetadataError(f"CDI specification {path} cannot be written: {_told(error)}") from error
        return f"{kind}={name}"

    def _path(self, ref: ClaimRef, base: str) -> Path:
        return self._folder / ref.uid / base / "metadata.json"


def _told(error: OSError) -> str:
    """What was wrong with which path, and what to do."""
    return f"{error}; {_REMEDIES.get(error.errno or 0, 'see the log of the plugin')}"


def _by_request(devices: Sequence[PreparedDevice]) -> dict[str, dict[str, list[PreparedDevice]]]:
    """Base request -> request as allocated -> its devices."""
    found: dict[str, dict[str, list[PreparedDevice]]] = {}
    for device in devices:
        for request in device.requests:
            found.setdefault(request.partition("/")[0], {}).setdefault(request, []).append(device)
    return found


def _devices(document: JSON | None) -> list[JSON]:
    requests = document.get("requests") or () if document is not None else ()
    return [device for request in requests for device in request.get("devices") or ()]


def _unversioned(document: JSON) -> JSON:
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _write_new(path: Path, data: bytes) -> None:
    """In the place of whatever stands there; the folder may be one that others write to."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        file.write(data)


def _read_file(path: Path) -> str:
    """OSError: it cannot be read, or is a link; UnicodeDecodeError. Of a pipe nothing is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES).decode()


def _write_in_place(path: Path, data: bytes) -> None:
    # Never through a link, and never into a pipe that somebody put there and nobody reads.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], written)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
