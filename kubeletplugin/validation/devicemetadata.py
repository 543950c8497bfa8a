"""The rules of metadata.resource.k8s.io DeviceMetadata (v1alpha1 and v1beta1 are alike), as readers may check them."""

from __future__ import annotations

from kubeletplugin.api import JSON
from kubeletplugin.validation.fields import Errors, check_all, check_map, required
from kubeletplugin.validation.names import check_driver_name, check_pool_name, check_qualified_name, dns_label

MAX_ATTRIBUTES = 32


def validate_device_metadata(document: JSON) -> Errors:
    """The faults of one document; its shape is taken to be right."""
    errors: Errors = []
    pod_claim = document.get("podClaimName")
    if pod_claim is not None:
        errors += check_all("podClaimName", pod_claim, dns_label(pod_claim))
    for index, request in enumerate(document.get("requests") or ()):
        path = f"requests[{index}]"
        if not request.get("name"):
            errors.append(required(f"{path}.name"))
        for number, device in enumerate(request.get("devices") or ()):
            errors += _check_device(f"{path}.devices[{number}]", device)
    return errors


def _check_device(path: str, device: JSON) -> Errors:
    name = device.get("name") or ""
    errors = check_driver_name(f"{path}.driver", device.get("driver") or "")
    errors += check_pool_name(f"{path}.pool", device.get("pool") or "")
    errors += check_all(f"{path}.name", name, dns_label(name)) if name else [required(f"{path}.name")]
    attributes = device.get("attributes") or {}
    return errors + check_map(
        f"{path}.attributes", attributes, MAX_ATTRIBUTES, check_qualified_name, lambda _path, _attribute: []
    )
