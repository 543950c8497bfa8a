"""What the scenarios run: a driver whose devices are environment variables, around it a handler that goes wrong on
demand, around that any number of plugin instances on the cluster's node."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.cluster.api import Api, path
from hack.cluster.layout import NODE_NAME, Layout
from hack.cluster.scene import Container, Namespace
from kubeletplugin.api import (
    Claim,
    ClaimRef,
    DeviceHealth,
    DeviceMetadata,
    DriverResources,
    HealthStatus,
    Pool,
    PreparedDevice,
    PrepareError,
    PrepareResult,
    Slice,
)
from kubeletplugin.client import KubeClient
from kubeletplugin.devicemetadata import KNOWN_VERSIONS
from kubeletplugin.health import HealthBoard
from kubeletplugin.plugin import Plugin
from kubeletplugin.testing.handler import FaultyHandler

WAIT = 60.0
"""Seconds for whatever the kubelet does by itself; it looks at each pod every few seconds here."""
SHOW = "env | grep -E '^(claim|device|user|class)_'; echo END"
SLEEP = f"{SHOW}; exec sleep 2147483647"
JSON = dict[str, Any]


class EnvironmentDriver:
    """Each device puts variables into the containers that use it: ``claim_<claim>_<request>=true``,
    ``device_<name>=true`` and what the class's and the claim's configuration of its request say."""

    def __init__(self, name: str, cdi: Path, devices: Sequence[str]) -> None:
        self.name, self.cdi, self.devices = name, cdi, devices
        self.pool = f"{NODE_NAME}/{name}"
        self.prepared: dict[str, list[PreparedDevice]] = {}

    def resources(self) -> DriverResources:
        devices = tuple({"name": name, "attributes": {"speed": {"int": 100}}} for name in self.devices)
        return DriverResources({self.pool: Pool((Slice(devices=devices),))})

    def prepare(self, claims: Sequence[Claim]) -> Mapping[str, PrepareResult]:
        for claim in claims:
            self._prepare(claim)
        return {claim.ref.uid: self.prepared[claim.ref.uid] for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareError | None]:
        for ref in claims:
            self._spec(ref.uid).unlink(missing_ok=True)
            self.prepared.pop(ref.uid, None)
        return {ref.uid: None for ref in claims}

    def _prepare(self, claim: Claim) -> None:
        allocation = claim.document["status"]["allocation"]["devices"]
        edits, prepared = [], []
        for result in (result for result in allocation["results"] if result["driver"] == self.name):
            share = result.get("shareID")
            request, device = result["request"].partition("/")[0], result["device"]
            name = "-".join(filter(None, (claim.ref.uid, request, device, share)))
            variables = {_variable("claim", claim.ref.name, request): "true", _variable("device", device): "true"}
            variables |= _configured(allocation.get("config", []), self.name, request)
            edits.append({"name": name, "containerEdits": {"env": [f"{key}={variables[key]}" for key in variables]}})
            attributes = {"device": {"string": device}, "pool": {"string": result["pool"]}}
            prepared.append(
                PreparedDevice((result["request"],), result["pool"], device, (f"{self.name}/claim={name}",), share,
                               DeviceMetadata(attributes))
            )  # fmt: skip
        temporary = self.cdi / f".{self.name}-{claim.ref.uid}"
        temporary.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": f"{self.name}/claim", "devices": edits}))
        temporary.rename(self._spec(claim.ref.uid))
        self.prepared[claim.ref.uid] = prepared

    def _spec(self, uid: str) -> Path:
        return self.cdi / f"{self.name}-{uid}.json"


def _variable(*words: str) -> str:
    """A name that shells let through."""
    return re.sub(r"\W", "_", "_".join(words))


def _configured(configs: Sequence[JSON], driver: str, request: str) -> JSON:
    """The parameters of all configurations that concern a request, the class's first."""
    found: JSON = {}
    for config in configs:
        opaque = config.get("opaque", {})
        if opaque.get("driver") == driver and request in (config.get("requests") or [request]):
            found |= opaque["parameters"]
    return found


class Driver:
    """A driver on the cluster's node, with a device class that has its name.

    The name is a new one by default: a kubelet goes on looking for a plugin that is gone for a while.
    """

    def __init__(self, layout: Layout, api: Api, name: str = "", devices: Sequence[str] = ("eth1", "eth2")) -> None:
        name = name or f"net-{secrets.token_hex(2)}.example.com"
        self.layout, self.api, self.name = layout, api, name
        self.client = KubeClient.from_kubeconfig(layout.kubeconfig())
        self.driver = EnvironmentDriver(name, layout.cdi, devices)
        self.handler = FaultyHandler(self.driver)
        self.board = HealthBoard()
        self.plugins: list[Plugin] = []
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}
        api.create("deviceclasses", None, {"metadata": {"name": name}, "spec": spec})

    def remove(self) -> None:
        """End it and take everything of it away."""
        self.stop()
        for item in self.slices():
            self.api.delete("resourceslices", None, item["metadata"]["name"])
        self.api.delete("deviceclasses", None, self.name)
        self.client.close()

    def start(self, uid: str | None = None, *, handler: FaultyHandler | None = None, **options: Any) -> Plugin:
        """Start an instance; do not wait for anybody."""
        plugin = Plugin(
            self.name,
            NODE_NAME,
            handler or self.handler,
            client=self.client,
            plugins_dir=self.layout.plugins,
            registry_dir=self.layout.registry,
            instance_uid=uid,
            cdi_dir=self.layout.cdi,
            **{"health": self.board, "metadata_versions": KNOWN_VERSIONS} | options,
        )
        plugin.start()
        self.plugins.append(plugin)
        plugin.publish(self.driver.resources())
        return plugin

    def started(self, uid: str | None = None, **options: Any) -> Plugin:
        """Start an instance and wait for the kubelet and for the slices."""
        plugin = self.start(uid, **options)
        assert plugin.registered.wait(60), "the kubelet did not come"
        self.wait_slices(lambda found: len(found) == 1)
        return plugin

    def stop(self) -> None:
        """End all instances; faults end too. Slices stay."""
        self.handler.heal()
        for plugin in self.plugins:
            plugin.stop(5)
        self.plugins.clear()

    def slices(self) -> list[JSON]:
        return self.api.items("resourceslices", fieldSelector=f"spec.driver={self.name}")

    def wait_slices(self, until: Callable[[JSON], bool], timeout: float = 60.0) -> None:
        selector = f"spec.driver={self.name}"
        self.api.wait_all("resourceslices", None, until, f"slices of {self.name}", timeout, selector)

    def prepared_names(self) -> list[str]:
        """The devices that are prepared now."""
        return sorted(one.device for devices in list(self.driver.prepared.values()) for one in devices)

    def wait_prepared(self, *names: str) -> None:
        """Wait until exactly these devices are prepared."""
        settled = self.handler.wait_until(lambda: self.prepared_names() == sorted(names), timeout=WAIT)
        assert settled, f"prepared are {self.prepared_names()}"

    def report(self, status: HealthStatus, message: str = "") -> None:
        """Say this of every device."""
        pool, now = self.driver.pool, time.time()
        self.board.report(
            [DeviceHealth(pool, name, status, message, now, timeout_seconds=600) for name in self.driver.devices]
        )

    def run(self, namespace: Namespace, name: str = "p", script: str = SLEEP, **options: Any) -> None:
        """A pod with a claim ``<name>-claim`` of one device.

        The pod calls it by the same name: Kubernetes 1.34 shows the health of no other.
        """
        claim = f"{name}-claim"
        namespace.claim(claim, device_class=self.name)
        namespace.pod(name, claims={claim: claim}, containers=[Container("main", script, (claim,))], **options)


def request(name: str, device_class: str, count: int = 1) -> JSON:
    """A request of a claim's spec."""
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def claim_of(namespace: Namespace, name: str, requests: Sequence[JSON], config: Sequence[JSON] = ()) -> JSON:
    """Create a claim of several requests."""
    devices = {"requests": list(requests), **({"config": list(config)} if config else {})}
    document = {"metadata": {"name": name}, "spec": {"devices": devices}}
    return namespace.api.create("resourceclaims", namespace.name, document)


def force_delete(namespace: Namespace, pod: str = "p") -> None:
    """Take a pod out of the API at once; the kubelet ends it afterwards."""
    namespace.api.call("DELETE", path("pods", namespace.name, pod), {"gracePeriodSeconds": 0})


def environment(namespace: Namespace, pod: str, container: str = "main") -> dict[str, str]:
    """The drivers' variables in a container whose script begins with ``SHOW``."""
    where = path("pods", namespace.name, pod, "log")
    found: dict[str, str] = {}
    for line in namespace.api.lines(where, WAIT, container=container, follow="true"):
        key, _, value = line.decode().partition("=")
        if key == "END":
            return found
        found[key] = value
    raise AssertionError(f"container {container} of {pod} did not show its whole environment: {found}")
