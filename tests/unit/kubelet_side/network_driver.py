"""A complete DRA driver for pretended network interfaces."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubeletplugin.api import Claim, ClaimRef, DriverResources, Pool, PreparedDevice, PrepareError, PrepareResult, Slice
from kubeletplugin.client import KubeClient
from kubeletplugin.plugin import Plugin

DRIVER = "net.example.com"


class NetworkDriver:
    """Gives a container the name of an interface in an environment variable."""

    def __init__(self, node_name: str, cdi_dir: Path, interfaces: Sequence[str]) -> None:
        self.pool = f"{node_name}/{DRIVER}"
        self.cdi_dir = cdi_dir
        self.interfaces = interfaces

    def resources(self) -> DriverResources:
        devices = tuple({"name": name, "attributes": {"speed": {"int": 100}}} for name in self.interfaces)
        return DriverResources({self.pool: Pool((Slice(devices=devices),))})

    def prepare(self, claims: Sequence[Claim]) -> Mapping[str, PrepareResult]:
        return {claim.ref.uid: self._prepare(claim) for claim in claims}

    def _prepare(self, claim: Claim) -> PrepareResult:
        results = claim.document["status"]["allocation"]["devices"]["results"]
        prepared, devices = [], []
        for result in (result for result in results if result["driver"] == DRIVER):
            if result["pool"] != self.pool or result["device"] not in self.interfaces:
                return PrepareError(f"there is no interface {result['device']} here", reason="NoSuchDevice")
            cdi_name = f"{claim.ref.uid}-{result['device']}"
            edits = {"env": [f"NET_{result['device'].upper()}=yes"]}
            devices.append({"name": cdi_name, "containerEdits": edits})
            cdi_id = f"{DRIVER}/claim={cdi_name}"
            prepared.append(PreparedDevice((result["request"],), self.pool, result["device"], (cdi_id,)))
        spec = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": devices}
        temporary = self.cdi_dir / f".{claim.ref.uid}"
        temporary.write_text(json.dumps(spec))
        temporary.rename(self._spec(claim.ref.uid))
        return prepared

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareError | None]:
        for ref in claims:
            self._spec(ref.uid).unlink(missing_ok=True)
        return {ref.uid: None for ref in claims}

    def _spec(self, uid: str) -> Path:
        return self.cdi_dir / f"{DRIVER}-{uid}.json"


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.set())
    node_name = os.environ["NODE_NAME"]
    driver = NetworkDriver(node_name, Path("/var/run/cdi"), ["eth1", "eth2"])
    with Plugin(DRIVER, node_name, driver, client=KubeClient.from_pod(), instance_uid=os.environ["POD_UID"]) as plugin:
        plugin.publish(driver.resources())
        stopping.wait()


if __name__ == "__main__":
    main()
