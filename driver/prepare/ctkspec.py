"""The common edits of a spec that ``nvidia-ctk cdi generate`` made on the host.

Only the top-level ``containerEdits`` are taken: a spec's devices are whole GPUs of the host, and which of them a claim
gets is this driver's to say.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from driver.prepare import strictjson
from driver.prepare.cdi import CdiDeviceNode, CdiHook, CdiMount, ContainerEdits
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.hostpaths import DriverRoot

_MAX_BYTES = 8 * 1024 * 1024
_PER_GPU = re.compile(r"\A/dev/(?:nvidia\d+|dri/.*|nvidia-caps/.*|vfio/.*)\Z")
_OVERRIDDEN_ENV = frozenset(("NVIDIA_VISIBLE_DEVICES",))
_NOT_CARRIED = ("intelRdt", "netDevices")


class SpecError(Exception):
    """The spec cannot be used; the message says why, without its path."""


def read_common_edits(path: Path, root: DriverRoot) -> tuple[ContainerEdits, list[str]]:
    """Read a spec's common edits, with host paths as the host's runtime must be given them.

    Device nodes of single GPUs are left out. Returns the edits and what of the spec was not carried over.

    Raises:
        SpecError: no file, no JSON or YAML, or not a CDI spec.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError(error.strerror or str(error)) from error
    if len(raw) > _MAX_BYTES:
        raise SpecError(f"it is {len(raw)} bytes long")
    document = _parse_yaml(raw) if path.suffix in (".yaml", ".yml") else _parse_json(raw)
    try:
        edits = Cursor(document).find("containerEdits")
        if edits is None:
            raise SpecError("it has no common containerEdits")
        notes = [f"containerEdits.{key} is not carried over" for key in _NOT_CARRIED if edits.find(key)]
        return _read(edits, root), notes
    except DocumentError as error:
        raise SpecError(str(error)) from error


def _parse_json(raw: bytes) -> object:
    try:
        return strictjson.loads(raw, max_bytes=_MAX_BYTES)
    except strictjson.StrictJSONError as error:
        raise SpecError(f"it {error}") from error


def _parse_yaml(raw: bytes) -> object:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise SpecError("it is YAML and PyYAML is not installed: write it as .json") from error
    try:
        value: object = yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"it is not YAML: {str(error)[:200]}") from error
    return value


def _read(edits: Cursor, root: DriverRoot) -> ContainerEdits:
    env = [item.text() for item in _list(edits, "env")]
    nodes = [_node(item, root) for item in _list(edits, "deviceNodes")]
    return ContainerEdits(
        env=tuple(item for item in env if item.partition("=")[0] not in _OVERRIDDEN_ENV),
        device_nodes=tuple(node for node in nodes if _PER_GPU.match(node.path) is None),
        mounts=tuple(_mount(item, root) for item in _list(edits, "mounts")),
        hooks=tuple(_hook(item, root) for item in _list(edits, "hooks")),
        additional_gids=tuple(item.integer() for item in _list(edits, "additionalGids")),
    )


def _node(item: Cursor, root: DriverRoot) -> CdiDeviceNode:
    path = item.get("path").text()
    host = root.to_host(_text(item, "hostPath") or path)
    return CdiDeviceNode(path, host_path=None if host == path else host, permissions=_text(item, "permissions"))


def _mount(item: Cursor, root: DriverRoot) -> CdiMount:
    return CdiMount(
        host_path=root.to_host(item.get("hostPath").text()),
        container_path=item.get("containerPath").text(),
        options=tuple(option.text() for option in _list(item, "options")),
        type=_text(item, "type"),
    )


def _hook(item: Cursor, root: DriverRoot) -> CdiHook:
    timeout = item.find("timeout")
    return CdiHook(
        hook_name=item.get("hookName").text(),
        path=root.to_host(item.get("path").text()),
        args=tuple(argument.text() for argument in _list(item, "args")),
        env=tuple(variable.text() for variable in _list(item, "env")),
        timeout=timeout.integer() if timeout else None,
    )


def _list(cursor: Cursor, key: str) -> Sequence[Cursor]:
    found = cursor.find(key)
    return list(found.elements()) if found else []


def _text(cursor: Cursor, key: str) -> str | None:
    found = cursor.find(key)
    return found.text() if found else None
