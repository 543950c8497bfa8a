"""Older versions of resource.k8s.io in the form of v1, or a refusal that names the version.

v1beta2 has the fields of v1. v1beta1 nests what is in a device under ``basic`` and has no ``exactly`` in a request.
v1alpha3 is known for DeviceTaintRule alone (served by 1.33 to 1.38). Source: k8s.io/api/resource/*/types.go and the
conversions in pkg/apis/resource of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

JSON = dict[str, Any]

GROUP: Final = "resource.k8s.io"
KINDS: Final = ("ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule")
_SAME: Final = {"v1", "v1beta2"}


class VersionError(ValueError):
    """A version that cannot be read; the message names it and the remedy."""


def to_v1(kind: str, version: str, body: JSON) -> JSON:
    """The document in the form of v1: the same object where nothing has to change.

    Args:
        kind: one of ``KINDS``.
        version: what follows the group in ``apiVersion``.
        body: the document as decoded; it is not changed, and may be damaged.

    Raises:
        VersionError: nothing of this kind and version is understood.
    """
    if version == "v1":
        return body
    if version in _SAME or (version == "v1alpha3" and kind == "DeviceTaintRule"):
        return {**body, "apiVersion": f"{GROUP}/v1"}
    if version == "v1beta1" and kind != "DeviceTaintRule":
        return {**_FROM_V1BETA1[kind](body), "apiVersion": f"{GROUP}/v1"}
    plural = "deviceclasses" if kind == "DeviceClass" else kind.lower() + "s"
    raise VersionError(
        f"{GROUP}/{version} {kind} is not understood (v1, v1beta2 and v1beta1 are, and v1alpha3 of DeviceTaintRule); "
        f"export it with: kubectl get {plural}.v1.{GROUP} -o json"
    )


def _mapped(holder: Any, field: str, change: Any) -> Any:
    """The holder with each item of its list changed; a holder or a list that is none is left for the schema to name."""
    if not isinstance(holder, dict) or not isinstance(holder.get(field), list):
        return holder
    return {**holder, field: [change(item) if isinstance(item, dict) else item for item in holder[field]]}


def _device(device: JSON) -> JSON:
    basic = device.get("basic")
    if not isinstance(basic, dict):
        return device
    return {**{key: value for key, value in device.items() if key != "basic"}, **basic}


def _slice(body: JSON) -> JSON:
    spec = _mapped(body.get("spec"), "devices", _device)
    if isinstance(spec, dict) and spec.get("nodeName") == "":
        spec = {key: value for key, value in spec.items() if key != "nodeName"}
    return {**body, "spec": spec}


def _request(request: JSON) -> JSON:
    if request.get("firstAvailable") or "exactly" in request:
        return request
    rest = {key: value for key, value in request.items() if key not in {"name", "firstAvailable"}}
    named = {"name": request["name"]} if "name" in request else {}
    return {**named, "exactly": rest}


def _claim(body: JSON) -> JSON:
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return body
    return {**body, "spec": {**spec, "devices": _mapped(spec.get("devices") or {}, "requests", _request)}}


def _template(body: JSON) -> JSON:
    spec = body.get("spec")
    return {**body, "spec": _claim(spec)} if isinstance(spec, dict) else body


_FROM_V1BETA1: Final[dict[str, Callable[[JSON], JSON]]] = {
    "ResourceSlice": _slice,
    "ResourceClaim": _claim,
    "ResourceClaimTemplate": _template,
    "DeviceClass": dict,
}
