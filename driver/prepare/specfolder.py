"""The CDI folder: one file per claim, under our own prefix, whole or not there, readable for every runtime.

Only files with the prefix are ever touched. The folder is shared with other drivers and usually a tmpfs: after a reboot
it is empty, and the files are made again from the checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from driver.prepare import files
from driver.prepare.cdi import CdiSpec, check_vendor
from driver.prepare.claims import is_claim_uid
from driver.prepare.errors import storage_error

CLASS = "claim"
_MAX_BYTES = 8 * 1024 * 1024
_MODE = 0o644
_NO_SPEC = (files.NotAFileError, files.ForeignFileError, files.TooLargeError)
"""What stands at the path is nothing that this driver has made."""
_DEVICE_NAME_LIMIT = 128


class Leftover(msgspec.Struct, frozen=True):
    """What a claim's file tells of the claim; used where the checkpoint cannot."""

    uid: str
    text: str
    """The file's content; empty where it could not be read."""


class SpecFolder:
    """The files of one driver in one CDI folder."""

    def __init__(self, folder: Path, driver_name: str) -> None:
        """Look at nothing yet.

        Raises:
            CdiError: the driver's name cannot be a CDI vendor.
        """
        check_vendor(driver_name)
        self.folder = folder
        self.kind = f"{driver_name}/{CLASS}"
        self._prefix = f"{driver_name}-{CLASS}_"
        self._ours = re.compile(rf"\A{re.escape(self._prefix)}([A-Za-z0-9-]+)\.json\Z")
        self._temporary = re.compile(rf"\A\.{re.escape(self._prefix)}([A-Za-z0-9-]+)\.json\.tmp\Z")

    def path(self, uid: str) -> Path:
        """Where a claim's file is."""
        if not is_claim_uid(uid):
            raise ValueError(f"{uid[:64]!r} is no claim UID")
        return self.folder / f"{self._prefix}{uid}.json"

    def device_id(self, device: str) -> str:
        """The fully qualified name of a device: what the kubelet passes to the runtime."""
        return f"{self.kind}={device}"

    def write(self, uid: str, data: bytes) -> None:
        """Write a claim's file (0644, in a folder made 0755, whatever the umask).

        Raises:
            OSError: it could not be written; an older file stands as it was.
        """
        final = self.path(uid)
        temporary = self._temporary_of(final)
        files.make_folder(self.folder, 0o755)
        files.write_new(temporary, data, _MODE)
        files.replace(temporary, final)

    def remove(self, uid: str) -> bool:
        """Remove a claim's file and what an interrupted write left of it. False: there was none.

        Raises:
            OSError: it is there and cannot be removed.
        """
        final = self.path(uid)
        try:
            left = files.remove(self._temporary_of(final))
            return files.remove(final) or left
        except NotADirectoryError:
            return False

    def holds(self, uid: str) -> bool:
        """Whether anything stands in the place of a claim's file, or is left of an interrupted write."""
        final = self.path(uid)
        return any(os.path.lexists(path) for path in (final, self._temporary_of(final)))

    def current_digest(self, uid: str) -> str | None:
        """The digest of the file that is there; None where there is none that could serve: runtimes may not be root's,
        and what is in the file is done to containers by root, so it must be as it was made in owner and mode, too.

        Raises:
            ClaimError: WriteFailed, retryable: it cannot be looked at.
        """
        path = self.path(uid)
        try:
            return digest(files.read_regular(path, _MAX_BYTES, mode=_MODE))
        except (FileNotFoundError, NotADirectoryError, *_NO_SPEC):
            return None
        except OSError as error:
            raise storage_error("read the CDI file", path, error) from error

    @staticmethod
    def _temporary_of(final: Path) -> Path:
        return final.with_name(f".{final.name}.tmp")

    def leftovers(self) -> list[Leftover]:
        """The claims that have a file here, in the order of their UIDs. An absent folder has none.

        Raises:
            OSError: the folder cannot be read.
        """
        found = []
        for uid in sorted(self.uids()):
            try:
                text = files.read_regular(self.path(uid), _MAX_BYTES).decode("utf-8", "replace")
            except FileNotFoundError:
                continue  # an interrupted write: the claim was never answered
            except (OSError, files.NotAFileError, files.TooLargeError):
                text = ""
            found.append(Leftover(uid, text))
        return found

    def uids(self) -> set[str]:
        """The claims of which there is anything here: a file, or what an interrupted write left of one.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return set()
        matches = (self._ours.match(name) or self._temporary.match(name) for name in names)
        return {match[1] for match in matches if match and is_claim_uid(match[1])}


def device_name(uid: str, request: str, device: str, share_id: str | None) -> str:
    """A CDI device name that no other result of any claim has; legal, and at most 128 bytes long.

    ``_`` and ``.`` stand in no request, device or share, so different results never spell the same name; where the
    spelled-out name is too long, a digest of it takes its place.
    """
    parts = [uid, request.replace("/", "."), device, *([share_id] if share_id else [])]
    name = "_".join(parts)
    if len(name) <= _DEVICE_NAME_LIMIT:
        return name
    return f"{uid}_{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def encode(spec: CdiSpec) -> bytes:
    """The bytes of a spec's file: the same spec always gives the same bytes.

    Raises:
        CdiError: the spec is not legal.
    """
    spec.check()
    return msgspec.json.format(msgspec.json.encode(spec.to_json()), indent=2) + b"\n"


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
