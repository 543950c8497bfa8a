"""Device metadata (KEP-5304): a file for each request of a prepared claim, mounted into containers by CDI.

The layout is that of k8s.io/dynamic-resource-allocation/api/metadata, so that any reader finds it: in a container
``/var/run/kubernetes.io/dra-device-attributes/{resourceclaims/<claim>|resourceclaimtemplates/<name in the pod>}/
<request>/<driver>-metadata.json``, holding the same object once per version. On the host the files lie in a folder of
the claim's UID: names come again, and the end of an old claim must not take a new one's files with it.

A bind mount holds on to the inode. A file that exists is therefore changed in place: written over from its start in one
call and then cut, so that what is left of a longer old content stands behind a whole first object, which is all that
readers read. (The kernel does not promise that a read during the write itself sees all of it or nothing.)

The CDI folder is usually a tmpfs, and the kubelet starts containers of a prepared claim anew without a word to the
plugin. So the files are compared with what the driver knows of its prepared claims, and made again (``restore``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from kubeletplugin.api import JSON, Claim, ClaimRef, HeldClaim, PreparedDevice, Restored
from kubeletplugin.devicemetadata import (
    CLAIMS_FOLDER,
    CONTAINER_DIR,
    KNOWN_VERSIONS,
    TEMPLATES_FOLDER,
    MetadataStreamError,
    decode_stream,
    file_name,
)
from kubeletplugin.publicfiles import holds, is_public, read_file, write_in_place, write_new
from kubeletplugin.remedies import remedy
from kubeletplugin.validation import validate_device_metadata

logger = logging.getLogger(__name__)

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On claims made from a template: the name in the pod's ``spec.resourceClaims``."""
DATA_FOLDER = "dra-device-metadata"
CDI_VERSION = "0.5.0"
"""The first that allows names of devices to begin with a digit, as UIDs may."""

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
        self._kind = f"{driver_name}/metadata"
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
                self._write_cdi(claim.ref, base, pod_claim)
                names[base] = f"{self._kind}={_cdi_name(claim.ref, base)}"
        return names

    def restore(self, claims: Callable[[], Iterable[HeldClaim]]) -> Restored:
        """Makes files of prepared claims again that are gone or not as they should be: after a reboot, or where
        somebody has removed them. Needs no API server; where all is well nothing is written.

        Args:
            claims: gives the claims that are prepared. Called while nothing of any claim is removed, so that a claim
                which ends meanwhile is either not among them or has its files removed afterwards.
        """
        remade: list[str] = []
        problems: dict[ClaimRef, str] = {}
        with self._lock:
            for claim in claims():
                try:
                    if self._restore(claim):
                        remade.append(claim.ref.uid)
                except MetadataError as error:
                    problems[claim.ref] = str(error)
        return Restored(tuple(remade), problems)

    def update(self, ref: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> int:
        """Replaces what is said of one request's devices, for what is known only after Prepare; the new generation.

        Raises:
            MetadataError: the claim or the request was not prepared, or the file cannot be written.
        """
        base = request.partition("/")[0]
        path = self._path(ref, base)
        with self._lock:
            stored, _ = self._read(path)
            if stored is None:
                raise MetadataError(f"request {request!r} of claim {ref} has no metadata: not found in {path.parent}")
            generation = int(stored["metadata"]["generation"]) + 1
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
                for spec in self._cdi_files(ref.uid):
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

    def _restore(self, claim: HeldClaim) -> bool:
        """Whether anything had to be written."""
        if not _UID.match(claim.ref.uid):
            return False  # no Prepare of it was ever answered with files
        remade = False
        for base, requests in _by_request(claim.devices).items():
            stored, _ = self._read(self._path(claim.ref, base))
            if stored is not None and stored["metadata"]["uid"] != claim.ref.uid:
                stored = None
            pod_claim = claim.pod_claim
            if pod_claim is None and stored is not None:
                pod_claim = stored.get("podClaimName") or ""
            known = {(device["pool"], device["name"]) for device in _devices(stored)}
            told = [
                one.metadata is not None or (one.pool, one.device) in known for of in requests.values() for one in of
            ]
            if pod_claim is None or not all(told):
                continue  # a part of it is known to nobody now
            written = self._write_request(claim.ref, base, requests, pod_claim or None)
            remade |= self._write_cdi(claim.ref, base, pod_claim or None) or written
        return remade

    def _cdi_files(self, uid: str) -> list[Path]:
        """What a claim has in the CDI folder, and what a process that was killed left of it. Compared plainly, because
        Python keeps hundreds of patterns of a glob, and each is one of a claim that is gone."""
        prefix = f"{self._driver_name}_metadata_{uid}_"
        try:
            paths = list(self._cdi_dir.iterdir())
        except FileNotFoundError:
            return []
        ours = [path for path in paths if path.name.removeprefix(".").startswith(prefix)]
        return [path for path in ours if path.name.endswith((".json", ".json.new"))]

    def _uids(self) -> set[str]:
        """Of the claims that have files; what is not named as ours are is left alone."""
        prefix = f"{self._driver_name}_metadata_"
        names = {path.name for path in self._folder.glob("*")}
        names |= {path.name.removeprefix(prefix).partition("_")[0] for path in self._cdi_dir.glob(f"{prefix}*_*.json")}
        return {name for name in names if _UID.match(name)}

    def _write_request(
        self, ref: ClaimRef, base: str, requests: Mapping[str, Sequence[PreparedDevice]], pod_claim: str | None
    ) -> bool:
        """Whether the file was not that already."""
        path = self._path(ref, base)
        stored, raw = self._read(path)
        known = {(device["pool"], device["name"]): device for device in _devices(stored)}
        content: list[JSON] = [
            {
                "name": name,
                "devices": [self._device(device, known.get((device.pool, device.device))) for device in devices],
            }
            for name, devices in requests.items()
        ]
        generation = stored["metadata"]["generation"] if stored is not None else 0
        document = self._document(ref, generation, pod_claim, content)
        if stored is None or document != _unversioned(stored):
            document = self._document(ref, generation + 1, pod_claim, content)
        elif raw == self._stream(document):
            return False
        self._store(path, document)
        return True

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

    def _read(self, path: Path) -> tuple[JSON | None, bytes]:
        """What the file says, and its bytes (none where its mode is another one); None where there is no file, or one
        that a crash has left in pieces, or that nobody of ours has written."""
        try:
            raw, status = read_file(path)
        except FileNotFoundError:
            return None, b""
        except OSError as error:
            raise MetadataError(f"metadata file {path} cannot be read: {_told(error)}") from error
        try:
            found = decode_stream(raw.decode())
        except (MetadataStreamError, UnicodeDecodeError):
            return None, b""
        if not _is_whole(found) or validate_device_metadata(found):
            return None, b""
        return found, raw if is_public(status) else b""

    def _stream(self, document: JSON) -> bytes:
        return "".join(
            json.dumps({"apiVersion": version, "kind": "DeviceMetadata", **document}, indent=2) + "\n"
            for version in self._versions
        ).encode()

    def _store(self, path: Path, document: JSON) -> None:
        faults = validate_device_metadata(document)
        if faults:
            raise MetadataError(f"metadata for {path.parent.name} is not valid: {'; '.join(map(str, faults))}")
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_in_place(path, self._stream(document))
        except OSError as error:
            raise MetadataError(f"metadata file {path} cannot be written: {_told(error)}") from error

    def _write_cdi(self, ref: ClaimRef, base: str, pod_claim: str | None) -> bool:
        """Whether the file was not that already: runtimes read the whole folder anew with each change in it."""
        name = _cdi_name(ref, base)
        folder = f"{TEMPLATES_FOLDER}/{pod_claim}" if pod_claim else f"{CLAIMS_FOLDER}/{ref.name}"
        mount = {
            "hostPath": str(self._path(ref, base)),
            "containerPath": f"{CONTAINER_DIR}/{folder}/{base}/{file_name(self._driver_name)}",
            "options": ["ro", "bind"],
        }
        device = {"name": name, "containerEdits": {"mounts": [mount]}}
        data = json.dumps({"cdiVersion": CDI_VERSION, "kind": self._kind, "devices": [device]}, indent=2).encode()
        path = self._cdi_dir / f"{self._driver_name}_metadata_{name}.json"
        if holds(path, data):
            return False
        try:
            if not self._cdi_dir.is_dir():
                self._cdi_dir.mkdir(parents=True, exist_ok=True)
                self._cdi_dir.chmod(0o755)  # whatever the umask: a runtime need not be root's
            # The runtime reads whatever ends in .json, at any time: it may only appear whole.
            temporary = path.with_name(f".{path.name}.new")
            try:
                write_new(temporary, data)
                temporary.rename(path)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    temporary.unlink()
                raise
        except OSError as error:
            raise MetadataError(f"CDI specification {path} cannot be written: {_told(error)}") from error
        return True

    def _path(self, ref: ClaimRef, base: str) -> Path:
        return self._folder / ref.uid / base / "metadata.json"


def _told(error: OSError) -> str:
    """What was wrong with which path, and what to do."""
    return f"{error}; {remedy(error)}"


def _cdi_name(ref: ClaimRef, base: str) -> str:
    return f"{ref.uid}_{base}"


def _by_request(devices: Sequence[PreparedDevice]) -> dict[str, dict[str, list[PreparedDevice]]]:
    """Base request -> request as allocated -> its devices."""
    found: dict[str, dict[str, list[PreparedDevice]]] = {}
    for device in devices:
        for request in device.requests:
            found.setdefault(request.partition("/")[0], {}).setdefault(request, []).append(device)
    return found


def _is_whole(document: JSON) -> bool:
    """Whether a document that readers can read has all that this module writes, and in its form."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("uid"), str):
        return False
    generation = metadata.get("generation")
    return type(generation) is int and generation > 0 and all(map(_is_whole_device, _devices(document)))


def _is_whole_device(device: JSON) -> bool:
    names = all(isinstance(device.get(key), str) for key in ("driver", "pool", "name"))
    attributes = device.get("attributes", {})
    typed = isinstance(attributes, dict) and all(isinstance(value, dict) for value in attributes.values())
    return names and typed and isinstance(device.get("networkData", {}), dict)


def _devices(document: JSON | None) -> list[JSON]:
    requests = document.get("requests") or () if document is not None else ()
    return [device for request in requests for device in request.get("devices") or ()]


def _unversioned(document: JSON) -> JSON:
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}
