"""What a test does with a running cluster: make claims and pods, wait for what becomes of them, read what they said."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .api import DEFAULT_TIMEOUT, JSON, Api, Condition, path
from .images import TEST_IMAGE
from .layout import DRIVER_NAME

_MOCK_NOTICE = b"gpudra mock NVML: "
"""What the look-alike says first on standard error."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a test pod: its shell script and the claims (or claim/request) that it uses."""

    name: str
    script: str = "nvidia-smi -L; exec sleep 2147483647"
    claims: tuple[str, ...] = ("gpu",)

    def document(self) -> JSON:
        claims = [dict(zip(("name", "request"), claim.split("/"), strict=False)) for claim in self.claims]
        return {
            "name": self.name,
            "image": TEST_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", self.script],
            **({"resources": {"claims": claims}} if claims else {}),
        }


def claim_spec(
    *,
    count: int = 1,
    match: str | None = None,
    cel: Sequence[str] = (),
    device_class: str = "gpu.nvidia.com",
    parameters: JSON | None = None,
    driver: str = DRIVER_NAME,
) -> JSON:
    """The spec of a ResourceClaim with the one request ``gpu``.

    Args:
        match: an attribute that all devices must share.
        cel: selectors that each device must meet.
        parameters: opaque configuration for ``driver``.
    """
    exactly: JSON = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in cel]
    devices: JSON = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if match:
        devices["constraints"] = [{"requests": ["gpu"], "matchAttribute": match}]
    if parameters:
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": driver, "parameters": parameters}}]
    return {"devices": devices}


class Namespace:
    """A namespace of its own for one test."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name

    def create(self) -> None:
        """Create it and wait until pods are admitted (its default service account is there)."""
        self.api.create("namespaces", None, {"metadata": {"name": self.name}})
        self.api.wait("serviceaccounts", self.name, "default", lambda account: account is not None,
                      f"service account of {self.name}")  # fmt: skip

    def remove(self) -> None:
        """Delete its pods and claims and wait for that: the devices are free then. The rest goes by itself."""
        for resource in ("pods", "resourceclaims"):
            for item in self.api.items(resource, self.name):
                self.api.delete(resource, self.name, item["metadata"]["name"])
            self.api.wait_all(resource, self.name, lambda found: not found, f"{resource} of {self.name} gone", 90)
        self.api.delete("namespaces", None, self.name)

    def claim(self, name: str, **options: Any) -> JSON:
        """Create a ResourceClaim; the options are those of ``claim_spec``."""
        return self.api.create("resourceclaims", self.name, {"metadata": {"name": name}, "spec": claim_spec(**options)})

    def template(self, name: str, **options: Any) -> None:
        """Create a ResourceClaimTemplate."""
        document = {"metadata": {"name": name}, "spec": {"spec": claim_spec(**options)}}
        self.api.create("resourceclaimtemplates", self.name, document)

    def pod(
        self,
        name: str,
        *,
        claim: str | None = None,
        template: str | None = None,
        claims: Mapping[str, str] | None = None,
        containers: Sequence[Container] = (Container("main"),),
        init: Sequence[Container] = (),
        volumes: Sequence[tuple[JSON, JSON]] = (),
        node: str | None = None,
        restart: str = "Never",
    ) -> None:
        """Create a pod whose claim ``gpu`` is ``claim``, or made from ``template``; or several in ``claims``.

        Args:
            volumes: (volume source, mount) pairs for every container.
            node: go there without the scheduler; claims must be allocated.
            restart: the restartPolicy.
        """
        references = dict(claims or ({"gpu": claim} if claim else {}))
        resource_claims = [{"name": key, "resourceClaimName": value} for key, value in references.items()]
        if template:
            resource_claims.append({"name": "gpu", "resourceClaimTemplateName": template})
        mounts = [{"name": f"v{index}", **mount} for index, (_, mount) in enumerate(volumes)]
        spec = {
            "restartPolicy": restart,
            # Not 0: the object would be gone before the kubelet has unprepared its claims, and the next pod could get
            # a GPU that is still held (its kubelet retries only after a minute).
            "terminationGracePeriodSeconds": 1,
            "containers": [container.document() | {"volumeMounts": mounts} for container in containers],
            "initContainers": [container.document() for container in init],
            "volumes": [{"name": f"v{index}", **source} for index, (source, _) in enumerate(volumes)],
            "resourceClaims": resource_claims,
            **({"nodeName": node} if node else {}),
        }
        self.api.create("pods", self.name, {"metadata": {"name": name}, "spec": spec})

    def touch_pod(self, name: str) -> None:
        """Change an annotation: the kubelet looks at the pod at once, not in a minute when its turn comes."""
        annotation = {"gpudra.test/touched": secrets.token_hex(4)}
        self.api.patch("pods", self.name, name, {"metadata": {"annotations": annotation}})

    def wait_pod(self, name: str, until: Condition, what: str, timeout: float = DEFAULT_TIMEOUT) -> JSON | None:
        """Watch a pod; when the time is over the pod's events are in the error."""
        try:
            return self.api.wait("pods", self.name, name, until, f"pod {name} {what}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\nevents: {self.events(name)}") from None

    def running(self, name: str, timeout: float = DEFAULT_TIMEOUT) -> JSON:
        """Wait until every container of a pod runs."""
        return _some(self.wait_pod(name, _all_running, "running", timeout))

    def succeeded(self, name: str, timeout: float = DEFAULT_TIMEOUT) -> JSON:
        """Wait until a pod ended well."""
        return _some(self.wait_pod(name, lambda pod: phase(pod) == "Succeeded", "succeeded", timeout))

    def unschedulable(self, name: str, timeout: float = DEFAULT_TIMEOUT) -> str:
        """Wait until the scheduler said that it finds no node; return its words."""
        pod = _some(self.wait_pod(name, lambda pod: bool(_refusal(pod)), "refused by the scheduler", timeout))
        return _refusal(pod)

    def delete_pod(self, name: str) -> None:
        """Delete a pod and wait until it is gone: the kubelet has unprepared its claims by then."""
        self.api.delete("pods", self.name, name)
        self.wait_pod(name, lambda pod: pod is None, "gone")

    def log_lines(
        self,
        name: str,
        container: str = "main",
        *,
        lines: int = 0,
        until: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[str]:
        """Follow a container's log until it has printed ``lines`` lines (0: until it ends) or the line ``until``, less
        the mock's notice."""
        where = path("pods", self.name, name, "log")
        collected: list[str] = []
        for line in self.api.lines(where, timeout, container=container, follow="true"):
            if line.startswith(_MOCK_NOTICE):
                continue
            collected.append(line.decode())
            if len(collected) == lines or collected[-1] == until:
                break
        return collected

    def allocated(self, claim: str) -> list[str]:
        """The names of the devices that the scheduler gave to a claim."""
        document = self.api.get("resourceclaims", self.name, claim)
        results = document.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        return [result["device"] for result in results]

    def told(self, claim: str) -> dict[str, str]:
        """The UUIDs that the claim's status says, by the devices' names."""

        def said(document: JSON | None) -> bool:
            status = document.get("status", {}) if document else {}
            results = status.get("allocation", {}).get("devices", {}).get("results", [])
            return 0 < len(results) == len(status.get("devices", []))

        document = _some(self.api.wait("resourceclaims", self.name, claim, said, f"status of claim {claim}"))
        return {entry["device"]: entry["data"]["uuid"] for entry in document["status"]["devices"]}

    def claim_of(self, pod: str) -> str:
        """The claim that was made from a pod's template."""
        document = _some(self.wait_pod(pod, lambda found: bool(_claim_statuses(found)), "has its claim"))
        return str(_claim_statuses(document)[0]["resourceClaimName"])

    def events(self, name: str) -> list[str]:
        """``Reason: message`` of each event about an object."""
        found = self.api.items("events", self.name, fieldSelector=f"involvedObject.name={name}")
        return [f"{event['reason']}: {event['message']}" for event in found]

    def wait_event(self, name: str, text: str, timeout: float = DEFAULT_TIMEOUT) -> str:
        """Wait for an event about an object whose message holds ``text``; return the message."""
        messages: list[str] = []

        def there(found: dict[str, JSON]) -> bool:
            messages[:] = [event.get("message", "") for event in found.values()]
            return any(text in message for message in messages)

        self.api.wait_all("events", self.name, there, f"an event about {name} that says {text!r}", timeout,
                          f"involvedObject.name={name}")  # fmt: skip
        return next(message for message in messages if text in message)


@contextmanager
def temporary_namespace(api: Api, title: str) -> Iterator[Namespace]:
    """A namespace that is empty before and gone after; its name begins with the words of ``title``."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:45].strip("-")
    own = Namespace(api, f"{words}-{secrets.token_hex(3)}")
    own.create()
    try:
        yield own
    finally:
        own.remove()


def phase(pod: JSON | None) -> str:
    """A pod's phase; empty for one that is not there."""
    return str(pod["status"].get("phase", "")) if pod else ""


def _all_running(pod: JSON | None) -> bool:
    statuses = pod["status"].get("containerStatuses", []) if pod else []
    return bool(statuses) and all("running" in status.get("state", {}) for status in statuses)


def _refusal(pod: JSON | None) -> str:
    for condition in pod["status"].get("conditions", []) if pod else []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return str(condition["message"])
    return ""


def _claim_statuses(pod: JSON | None) -> list[JSON]:
    return [s for s in pod["status"].get("resourceClaimStatuses", []) if "resourceClaimName" in s] if pod else []


def _some(value: JSON | None) -> JSON:
    assert value is not None
    return value


def published(api: Api) -> dict[str, JSON]:
    """Every device of the driver that is published, by name: its attributes without their types, its capacity."""
    devices = {}
    for item in api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}"):
        for device in item["spec"].get("devices", []):
            attributes = {key: next(iter(value.values())) for key, value in device.get("attributes", {}).items()}
            devices[device["name"]] = {"attributes": attributes, "capacity": device.get("capacity", {})}
    return devices


def uuids(api: Api, names: Sequence[str]) -> list[str]:
    """The UUIDs that the devices of these names were published with, sorted."""
    devices = published(api)
    return sorted(devices[name]["attributes"]["uuid"] for name in names)


def mig_listed(lines: Sequence[str]) -> list[str]:
    """The UUIDs of the MIG devices in the output of ``nvidia-smi -L``, sorted."""
    return sorted(re.findall(r"\(UUID: (MIG-[0-9a-f-]+)\)", "\n".join(lines)))


def listed(lines: Sequence[str]) -> list[str]:
    """The UUIDs in the output of ``nvidia-smi -L``, sorted."""
    return sorted(re.findall(r"\(UUID: (GPU-[0-9a-f-]+)\)", "\n".join(lines)))
