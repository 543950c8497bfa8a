"""The Container Device Interface as data: specs, what is legal in them, and the lowest version that can say it.

Source: CDI spec 1.1.0 (cncf-tags/container-device-interface, SPEC.md). Runtimes refuse a whole file for one unknown
key or illegal name, so a spec is checked here before it is written, by rules as strict as the strictest reader's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

_VENDOR = re.compile(r"\A[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_CLASS = re.compile(r"\A[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?\Z")
_DEVICE = re.compile(r"\A[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
_ENV_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PERMISSIONS = re.compile(r"\A[rwm]{1,3}\Z")
HOOK_NAMES = frozenset(("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"))

_Item = TypeVar("_Item")


class CdiError(ValueError):
    """A spec, or a part of one, is not legal; the message says where and why."""


class CdiDeviceNode(msgspec.Struct, frozen=True):
    """A device file for the container. Type and numbers are left to the runtime, which looks at the host's file."""

    path: str
    host_path: str | None = None
    """None: the same path on the host."""
    permissions: str | None = None

    def to_json(self) -> dict[str, object]:
        """As in the spec file."""
        return _present(path=self.path, hostPath=self.host_path, permissions=self.permissions)


class CdiMount(msgspec.Struct, frozen=True):
    """A host path in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str | None = None

    def to_json(self) -> dict[str, object]:
        """As in the spec file."""
        return _present(
            hostPath=self.host_path,
            containerPath=self.container_path,
            options=list(self.options) or None,
            type=self.type,
        )


class CdiHook(msgspec.Struct, frozen=True):
    """A program of the host that the runtime calls."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None

    def to_json(self) -> dict[str, object]:
        """As in the spec file."""
        return _present(
            hookName=self.hook_name,
            path=self.path,
            args=list(self.args) or None,
            env=list(self.env) or None,
            timeout=self.timeout,
        )


class ContainerEdits(msgspec.Struct, frozen=True):
    """What happens to a container that gets the device."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[CdiHook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.device_nodes or self.mounts or self.hooks or self.additional_gids)

    def merged(self, other: ContainerEdits) -> ContainerEdits:
        """Both; where both say something of one variable, node or mount point, this one's word counts."""
        return ContainerEdits(
            env=_first_of_each(self.env + other.env, _env_name),
            device_nodes=_first_of_each(self.device_nodes + other.device_nodes, lambda node: node.path),
            mounts=_first_of_each(self.mounts + other.mounts, lambda mount: mount.container_path),
            hooks=tuple(dict.fromkeys(self.hooks + other.hooks)),
            additional_gids=tuple(dict.fromkeys(self.additional_gids + other.additional_gids)),
        )

    def to_json(self) -> dict[str, object]:
        """As in the spec file; what is empty is left out."""
        return _present(
            env=list(self.env) or None,
            deviceNodes=[node.to_json() for node in self.device_nodes] or None,
            mounts=[mount.to_json() for mount in self.mounts] or None,
            hooks=[hook.to_json() for hook in self.hooks] or None,
            additionalGids=list(self.additional_gids) or None,
        )


class CdiDevice(msgspec.Struct, frozen=True):
    """One device of a spec."""

    name: str
    edits: ContainerEdits


class CdiSpec(msgspec.Struct, frozen=True):
    """A spec file: a kind (``vendor/class``), its devices, and what every container with one of them gets."""

    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits = ContainerEdits()

    @property
    def version(self) -> str:
        """The lowest version that has everything that the spec uses: an older runtime refuses a newer version."""
        all_edits = [self.edits, *(device.edits for device in self.devices)]
        if any(edits.additional_gids for edits in all_edits):
            return "0.7.0"
        nodes = (node for edits in all_edits for node in edits.device_nodes)
        if any(node.host_path is not None for node in nodes) or any(d.name[:1].isdigit() for d in self.devices):
            return "0.5.0"
        if any(mount.type is not None for edits in all_edits for mount in edits.mounts):
            return "0.4.0"
        return "0.3.0"

    def to_json(self) -> dict[str, object]:
        """The file's content. Check it first."""
        document: dict[str, object] = {
            "cdiVersion": self.version,
            "kind": self.kind,
            "devices": [{"name": device.name, "containerEdits": device.edits.to_json()} for device in self.devices],
        }
        if self.edits:
            document["containerEdits"] = self.edits.to_json()
        return document

    def check(self) -> None:
        """Hold the spec to the rules.

        Raises:
            CdiError: what is wrong first.
        """
        vendor, _, kind_class = self.kind.partition("/")
        check_vendor(vendor)
        if _CLASS.match(kind_class) is None:
            raise CdiError(f"kind {self.kind!r}: the class must start with a letter and end with a letter or digit")
        if not self.devices:
            raise CdiError(f"kind {self.kind}: there is no device")
        seen: set[str] = set()
        for device in self.devices:
            if _DEVICE.match(device.name) is None:
                raise CdiError(f"device {device.name!r}: is no legal device name")
            if device.name in seen:
                raise CdiError(f"device {device.name}: is there twice")
            seen.add(device.name)
            if not device.edits:
                raise CdiError(f"device {device.name}: has no edits; runtimes refuse such a device")
            _check_edits(f"device {device.name}", device.edits)
        _check_edits("containerEdits", self.edits)


def check_vendor(vendor: str) -> None:
    """Whether a name can be a CDI vendor.

    Raises:
        CdiError: it cannot.
    """
    if _VENDOR.match(vendor) is None:
        raise CdiError(
            f"{vendor!r} cannot be a CDI vendor: it must start with a letter and end with a letter or digit, with "
            "letters, digits, '_', '.' and '-' between"
        )


def _check_edits(where: str, edits: ContainerEdits) -> None:
    for item in edits.env:
        name, equals, value = item.partition("=")
        if not equals or _ENV_NAME.match(name) is None or _CONTROL.search(value):
            raise CdiError(f"{where}: {item[:80]!r} is no environment variable of the form NAME=value")
    for node in edits.device_nodes:
        _check_paths(where, (node.path, *_given(node.host_path)))
        if node.permissions is not None and _PERMISSIONS.match(node.permissions) is None:
            raise CdiError(f"{where}: device node {node.path} has permissions {node.permissions!r} (of r, w, m)")
    for mount in edits.mounts:
        _check_paths(where, (mount.host_path, mount.container_path))
    for hook in edits.hooks:
        _check_paths(where, (hook.path,))
        if hook.hook_name not in HOOK_NAMES:
            raise CdiError(f"{where}: {hook.hook_name!r} is no hook that runtimes know")
    for what, names in (
        ("device node", [node.path for node in edits.device_nodes]),
        ("mount point", [mount.container_path for mount in edits.mounts]),
        ("variable", [_env_name(item) for item in edits.env]),
    ):
        twice = next(iter(_repeated(names)), None)
        if twice is not None:
            raise CdiError(f"{where}: {what} {twice} is there twice")


def _check_paths(where: str, paths: Iterable[str]) -> None:
    for path in paths:
        if not path.startswith("/") or _CONTROL.search(path) or "/../" in f"{path}/":
            raise CdiError(f"{where}: {path[:80]!r} is no absolute, plain path")


def _first_of_each(items: Iterable[_Item], key: Callable[[_Item], str]) -> tuple[_Item, ...]:
    kept: dict[str, _Item] = {}
    for item in items:
        kept.setdefault(key(item), item)
    return tuple(kept.values())


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _given(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _env_name(item: str) -> str:
    return item.partition("=")[0]


def _present(**members: object) -> dict[str, object]:
    return {key: value for key, value in members.items() if value is not None}
