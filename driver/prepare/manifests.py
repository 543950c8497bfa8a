"""Checks what users write before the scheduler sees it: claims, claim templates and device classes.

Only what concerns this driver's configuration is looked at; the rest of the API's rules are the API server's. One
function for the command line and for the admission webhook: a document in, every fault out, nothing raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from driver.prepare.config import (
    API_VERSION,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    Strategy,
    VfioDeviceConfig,
    examine,
)
from driver.prepare.document import Cursor, DocumentError, shown, suggestion

GROUP: Final = "resource.k8s.io/"
CLASSES: Final[Mapping[str, str]] = {
    "gpu.nvidia.com": GpuConfig.kind,
    "mig.nvidia.com": MigDeviceConfig.kind,
    "vfio.gpu.nvidia.com": VfioDeviceConfig.kind,
}
"""The classes that come with the driver, and the configuration that fits their devices."""
_SPECS: Final[Mapping[str, tuple[str, ...]]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}


class Fault(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong with a document."""

    path: str
    """``spec.devices.config[0].opaque.parameters.sharing.strategy``."""
    problem: str

    def __str__(self) -> str:
        return f"{self.path or 'the document'}: {self.problem}"


class _Request(msgspec.Struct, frozen=True):
    """A request, or an alternative of one."""

    name: str
    """``req`` or ``req/sub``."""
    device_class: str
    count: int | None
    """None: not known beforehand."""
    admin: bool

    def is_named_by(self, name: str) -> bool:
        return name in (self.name, self.name.partition("/")[0])


def is_checked(document: object) -> bool:
    """Whether a document is of a kind that is looked into; others are nobody's fault."""
    if not isinstance(document, Mapping):
        return False
    version = document.get("apiVersion")
    return isinstance(version, str) and version.startswith(GROUP) and document.get("kind") in _SPECS


def check_manifest(document: object, driver_name: str) -> tuple[Fault, ...]:
    """Every fault of a ResourceClaim, ResourceClaimTemplate or DeviceClass (any version of resource.k8s.io).

    Args:
        document: the parsed object; one that is of no such kind has no fault.
        driver_name: configurations for other drivers are left alone.
    """
    if not is_checked(document):
        return ()
    faults: list[DocumentError] = []
    try:
        cursor: Cursor | None = Cursor(document)
        for name in _SPECS[str(Cursor(document).get("kind").value)]:
            cursor = cursor.find(name) if cursor else None
        if cursor is not None:
            _check_devices(cursor, driver_name, faults)
    except DocumentError as error:
        faults.append(error)
    return tuple(dict.fromkeys(Fault(fault.path, fault.problem) for fault in faults))


def _check_devices(devices: Cursor, driver_name: str, faults: list[DocumentError]) -> None:
    listed = devices.find("requests")
    requests = [request for entry in (listed.elements() if listed else ()) for request in _requests(entry)]
    configs = devices.find("config")
    for entry in configs.elements() if configs else ():
        try:
            _check_entry(entry, requests, driver_name, faults)
        except DocumentError as error:
            faults.append(error)


def _requests(entry: Cursor) -> Iterator[_Request]:
    """A request in the form of v1 (``exactly``, ``firstAvailable``) or of v1beta1 (the fields beside the name)."""
    name = entry.get("name").text()
    alternatives = entry.find("firstAvailable")
    if alternatives is not None:
        for alternative in alternatives.elements():
            yield _request(f"{name}/{alternative.get('name').text()}", alternative)
    else:
        yield _request(name, entry.find("exactly") or entry)


def _request(name: str, fields: Cursor) -> _Request:
    device_class, mode, count = fields.find("deviceClassName"), fields.find("allocationMode"), fields.find("count")
    admin = fields.find("adminAccess")
    exact = mode is None or mode.value == "ExactCount"
    return _Request(
        name,
        device_class.text() if device_class else "",
        None if not exact else count.integer() if count else 1,
        admin is not None and admin.boolean(),
    )


def _check_entry(entry: Cursor, requests: list[_Request], driver_name: str, faults: list[DocumentError]) -> None:
    opaque = entry.find("opaque")
    if opaque is None:
        return
    parameters = opaque.get("parameters")
    driver = opaque.get("driver")
    if driver.text() != driver_name:
        if isinstance(parameters.value, Mapping) and parameters.value.get("apiVersion") == API_VERSION:
            _check_driver(driver, parameters, driver_name)
        return
    config, found = examine(parameters.value, parameters.path)
    faults.extend(found)
    listed = entry.find("requests")
    names = list(listed.elements()) if listed else []
    named = [request for request in requests if not names or any(request.is_named_by(n.text()) for n in names)]
    for name in names:
        if not any(request.is_named_by(name.text()) for request in requests):
            known = sorted({request.name for request in requests} | {r.name.partition("/")[0] for r in requests})
            faults.append(
                name.error(f"is {shown(name.value)}, which is no request here{suggestion(name.text(), known)}")
            )
    if config is not None:
        _check_fit(config, parameters, named, bool(names), faults)


def _check_driver(driver: Cursor, parameters: Cursor, driver_name: str) -> None:
    _, found = examine(parameters.value, parameters.path)
    elsewhere = any("give it to the driver" in fault.problem for fault in found)
    if not elsewhere:
        raise driver.error(
            f"is {shown(driver.value)}, but the parameters are a configuration of {driver_name}: nobody would read them"
        )


def _check_fit(
    config: DeviceConfig, parameters: Cursor, named: list[_Request], explicit: bool, faults: list[DocumentError]
) -> None:
    """Whether the configuration can be for the requests that get it."""
    for request in named if explicit else ():
        wanted = CLASSES.get(request.device_class, config.kind)
        if config.kind != wanted:
            faults.append(
                parameters.get("kind").error(
                    f"is {config.kind}, but request {request.name} is for class {request.device_class}: use {wanted}"
                )
            )
    if isinstance(config, VfioDeviceConfig) or config.sharing is None or config.sharing.strategy is None:
        return
    fitting = [request for request in named if CLASSES.get(request.device_class, config.kind) == config.kind]
    admins = [request.name for request in fitting if request.admin]
    if admins and (explicit or len(admins) == len(fitting)):
        faults.append(
            parameters.get("sharing").error(
                f"is for request {admins[0]} with adminAccess, which changes nothing on a device that belongs to "
                "others: remove it, or name another request"
            )
        )
    if config.sharing.strategy is Strategy.MPS and config.sharing.mps is not None:
        _check_indices(config.sharing.mps.default_per_device_pinned_memory_limit, parameters, fitting, faults)


def _check_indices(
    limits: tuple[tuple[str, str], ...], parameters: Cursor, named: list[_Request], faults: list[DocumentError]
) -> None:
    counts = [request.count for request in named]
    if not counts or None in counts or any("/" in request.name for request in named):
        return
    total = sum(count for count in counts if count is not None)
    for key, _ in limits:
        if key.isdigit() and int(key) >= total:
            faults.append(
                DocumentError(
                    f"{parameters.path}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[{key!r}]",
                    f"is index {key}, but the configuration is for {total} device(s): indices start at 0",
                )
            )
