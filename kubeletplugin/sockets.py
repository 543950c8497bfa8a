"""Unix sockets: where they lie, how long a path may be, who may use them, and whose they are.

Names follow the Go helper (k8s.io/dynamic-resource-allocation/kubeletplugin) where they fit; the kubelet learns the
DRA socket's path from GetInfo, so any name works. ``sun_path`` (unix(7)) has 108 bytes with its final NUL.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
from pathlib import Path
from typing import TypeAlias

import grpc
import msgspec

from kubeletplugin.remedies import remedy

log = logging.getLogger(__name__)

MAX_SOCKET_PATH = 107
"""Bytes of the longest path that every program can bind and connect to."""

SOCKET_MODE = 0o600
FOLDER_MODE = 0o750

_INSTANCE_UID = re.compile(r"\A[0-9A-Za-z][0-9A-Za-z-]{0,62}\Z")


class SocketError(Exception):
    """A socket cannot be made; the text names the path and the remedy."""


class SocketPaths(msgspec.Struct, frozen=True):
    """Both sockets of one instance of a plugin."""

    dra: Path
    registration: Path


def socket_paths(driver_name: str, plugins_dir: Path, registry_dir: Path, instance_uid: str | None) -> SocketPaths:
    """Chooses the names: readable ones where they fit into ``MAX_SOCKET_PATH``, hashed ones where not.

    Args:
        driver_name: the driver's name (DNS subdomain).
        plugins_dir: the folder that holds one folder per driver.
        registry_dir: the folder that the kubelet watches.
        instance_uid: the pod's UID where two instances may live side by side during an upgrade.

    Raises:
        SocketError: no name fits, a path is not absolute, or the UID could leave the folder.
    """
    for folder in (plugins_dir, registry_dir):
        if not folder.is_absolute():
            raise SocketError(f"{folder} is not an absolute path: the kubelet needs absolute socket paths")
    if instance_uid is not None and not _INSTANCE_UID.match(instance_uid):
        raise SocketError(f"instance UID {instance_uid!r} is not a pod UID (letters, digits and dashes, at most 63)")
    data_dir = plugins_dir / driver_name
    both = f"{driver_name}\0{instance_uid or ''}"
    hashed = (f"dra-{_digest(both, 16)}-reg.sock", f"dra-{_digest(both, 8)}")
    if instance_uid is None:
        dra_names: tuple[str, ...] = ("dra.sock", "dra")
        registration_names: tuple[str, ...] = (f"{driver_name}-reg.sock", *hashed)
    else:
        short_hash = _digest(instance_uid, 8)
        dra_names = (f"dra-{instance_uid}.sock", f"dra-{short_hash}.sock", f"dra-{short_hash}", short_hash)
        registration_names = (
            f"{driver_name}-{instance_uid}-reg.sock",
            f"{driver_name}-{short_hash}-reg.sock",
            *hashed,
        )
    return SocketPaths(
        dra=_first_fitting(data_dir, dra_names), registration=_first_fitting(registry_dir, registration_names)
    )


def fresh_paths(paths: SocketPaths, driver_name: str, instance_uid: str | None) -> SocketPaths:
    """Other names for the same instance where a killed process left a dead socket at its registration path.

    The kubelet backs off by path (goroutinemap: up to two minutes). After a reboot it meets the dead socket long before
    the plugin is there, and would let a plugin that comes back under the same path wait for the rest of that time. The
    DRA socket changes with it, because the kubelet refuses two registrations of one endpoint. Names that leave no room
    for it stay as they are.
    """
    if not is_dead(paths.registration):
        return paths
    token = secrets.token_hex(4)
    name = f"{instance_uid}-{token}" if instance_uid else token
    fresh = SocketPaths(
        dra=paths.dra.with_name(f"dra-{name}.sock"),
        registration=paths.registration.with_name(f"{driver_name}-{name}-reg.sock"),
    )
    long = any(len(os.fsencode(path)) > MAX_SOCKET_PATH for path in (fresh.dra, fresh.registration))
    return paths if long else fresh


def remove_dead(paths: SocketPaths, driver_name: str, instance_uid: str | None) -> None:
    """Remove what killed processes of this instance left: dead sockets at its names, plain or fresh.

    Sockets of other instances stay, dead or not: one that is just starting looks dead, too.
    """
    own = re.escape(f"{instance_uid}-") if instance_uid else ""
    patterns = (
        (paths.registration.parent, rf"{re.escape(driver_name)}-{own}[0-9a-f]{{8}}-reg\.sock"),
        (paths.dra.parent, rf"dra-{own}[0-9a-f]{{8}}\.sock"),
    )
    left = {paths.registration, paths.dra}
    for folder, pattern in patterns:
        try:
            left |= {entry for entry in folder.iterdir() if re.fullmatch(pattern, entry.name)}
        except OSError as error:
            log.warning("dead sockets in %s are not looked for: %s; %s", folder, error.strerror, remedy(error))
    for path in sorted(left):
        try:
            if is_dead(path):
                log.info("removing %s, which a process that was killed left", path)
                path.unlink(missing_ok=True)
        except OSError as error:  # nobody comes to it any more: it is in the way of nothing
            log.warning("dead socket %s cannot be removed: %s; %s", path, error.strerror, remedy(error))


def _digest(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _first_fitting(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if len(os.fsencode(folder / name)) <= MAX_SOCKET_PATH:
            return folder / name
    shortest = min(names, key=len)
    raise SocketError(
        f"no socket name fits into {folder}: with the shortest, {shortest}, the path has"
        f" {len(os.fsencode(folder / shortest))} bytes and unix sockets allow {MAX_SOCKET_PATH};"
        " use a shorter driver name, or a shorter path to the kubelet's folder (a bind mount or a symlink that the"
        " kubelet and the plugin both see)"
    )


def make_folder(folder: Path, *, private: bool) -> None:
    """Makes sure that the folder exists; a ``private`` one is closed to other users (mode 0750) if it was open.

    Raises:
        SocketError: it cannot be made, or is not a folder.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
        if private and mode & ~FOLDER_MODE:
            folder.chmod(mode & FOLDER_MODE)
    except OSError as error:
        advice = remedy(error, "check the hostPath mount of the plugin's pod and that it runs as root")
        raise SocketError(f"folder {folder} cannot be used: {error.strerror}; {advice}") from error


def is_alive(path: Path) -> bool:
    """Whether a process listens behind the socket file. A file left by a killed process refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            return True  # the backlog is full: somebody listens, slowly
        except OSError:
            return False
        return True


def is_dead(path: Path) -> bool:
    """Whether a socket lies at the path that nobody listens behind."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False
    return is_socket and not is_alive(path)


FileIdentity: TypeAlias = tuple[int, int, int]


def file_identity(status: os.stat_result) -> FileIdentity:
    """What tells a socket file from another one that was made later at the same path.

    An inode number alone does not: file systems give a freed one out again at once. The modification time of a socket
    file is that of its making; neither connections nor chmod change it.
    """
    return status.st_dev, status.st_ino, status.st_mtime_ns


class BoundSocket(msgspec.Struct, frozen=True):
    """A socket file that this process has made at ``path``, known by its identity (``file_identity``)."""

    path: Path
    identity: FileIdentity

    def is_ours(self) -> bool:
        """Whether the path still leads to this socket, not to nothing or to another instance's."""
        try:
            return file_identity(self.path.lstat()) == self.identity
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Removes the file if it is still ours. What another instance put there stays."""
        if self.is_ours():
            self.path.unlink(missing_ok=True)


def bind_server(server: grpc.Server, path: Path) -> BoundSocket:
    """Binds a server that is not started yet, over a stale or an older socket, with mode 0600.

    gRPC is given the path by way of a descriptor of the folder (``/proc/self/fd/N/name``) that is closed right after:
    on stop gRPC unlinks whatever lies at the path it knows, even another instance's socket, and this path leads nowhere
    by then. Binding under another name and renaming would do as well, but the kubelet logs an error for each name that
    is gone when it looks.

    Raises:
        SocketError: the address cannot be bound, or something that is not a socket lies there.
    """
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_bind(path, error) from error
    try:
        _refuse_other_files(path)
        if is_alive(path):
            log.warning("another process still serves %s; this instance takes the path over", path)
        address = f"/proc/self/fd/{folder}/{path.name}"
        try:
            server.add_insecure_port(f"unix:{address}")
        except RuntimeError as error:
            raise _cannot_bind(path, _refusal(address) or error) from error
        path.chmod(SOCKET_MODE)
        found = path.lstat()
    except OSError as error:
        raise _cannot_bind(path, error) from error
    finally:
        os.close(folder)
    return BoundSocket(path, file_identity(found))


def bind_port(server: grpc.Server, address: str) -> int:
    """Binds a server that is not started yet to ``host:port`` as gRPC takes it; the port (a free one for 0).

    Raises:
        SocketError: the address cannot be bound.
    """
    try:
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise SocketError(
            f"probe address {address} cannot be bound: {error}; another process of this node or of the pod uses the"
            " port, choose another"
        ) from error


def _refuse_other_files(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path} exists and is not a socket; move it away, the kubelet needs this path")


def _refusal(address: str) -> OSError | None:
    """What the kernel says to a socket at this address, which gRPC keeps to itself; None: it would be welcome now."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        return error
    Path(address).unlink()
    return None


def _cannot_bind(path: Path, error: Exception) -> SocketError:
    otherwise = f"check that {path.parent} is a writable folder on a file system that has unix sockets"
    if isinstance(error, OSError):
        return SocketError(f"socket {path} cannot be bound: {error.strerror or error}; {remedy(error, otherwise)}")
    return SocketError(f"socket {path} cannot be bound: {error}; {otherwise}")
