"""What the scheduler and the driver leave on the API server: the node, its slices, allocated claims."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from kubeletplugin.api import ClaimRef
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_numbers = itertools.count()


def create_node(client: KubeClient, name: str) -> None:
    """The Node object that slices belong to."""
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def create_namespace(client: KubeClient) -> None:
    """The namespace of the claims; a kube-apiserver makes it too, some time after its start."""
    try:
        client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    except ApiError as error:
        if error.status != 409:
            raise


def slices(client: KubeClient, driver: str) -> list[dict[str, Any]]:
    """The driver's slices."""
    found: list[dict[str, Any]] = client.get(SLICES, query={"fieldSelector": f"spec.driver={driver}"})["items"]
    return found


def delete_slices(client: KubeClient, driver: str) -> None:
    """Remove the driver's slices."""
    client.delete(SLICES, query={"fieldSelector": f"spec.driver={driver}"})


def devices(client: KubeClient, driver: str, count: int) -> list[tuple[str, str]]:
    """Pool and name of the first ``count`` devices.

    Raises:
        LookupError: there are fewer.
    """
    found = sorted(
        (item["spec"]["pool"]["name"], device["name"])
        for item in slices(client, driver)
        for device in item["spec"].get("devices") or ()
    )
    if len(found) < count:
        raise LookupError(f"{driver} offers {len(found)} devices, {count} are needed")
    return found[:count]


def create_claims(client: KubeClient, driver: str, offered: Sequence[tuple[str, str]], count: int) -> list[ClaimRef]:
    """Claims of one device each, allocated and reserved by hand; claim i has device i modulo the number of devices."""
    refs = []
    for (pool, device), _ in zip(itertools.cycle(offered), range(count), strict=False):
        name = f"bench-{next(_numbers)}"
        request = {"name": "gpu", "exactly": {"deviceClassName": driver}}
        claim = client.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            },
        )
        result = {"request": "gpu", "driver": driver, "pool": pool, "device": device}
        claim["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": claim["metadata"]["uid"]}],
        }
        client.update(f"{CLAIMS}/{name}/status", claim)
        refs.append(ClaimRef("default", name, claim["metadata"]["uid"]))
    return refs


def delete_claims(client: KubeClient, refs: Sequence[ClaimRef]) -> None:
    """Remove them."""
    for ref in refs:
        client.delete(f"{CLAIMS}/{ref.name}")


class FirstSlice:
    """Listens, in a thread of its own, for the first slice of a driver; to be entered before the driver starts."""

    def __init__(self, client: KubeClient, driver: str) -> None:
        self._client = client
        self._query = {"fieldSelector": f"spec.driver={driver}"}
        self._stop = threading.Event()
        self._seen = threading.Event()
        self._at = 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        listed = self._client.get(SLICES, query=self._query)
        self._query["resourceVersion"] = listed["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.interrupt(self._stop)
        self._thread.join()

    def wait(self, timeout: float) -> float:
        """When it came, in seconds of ``time.perf_counter``.

        Raises:
            TimeoutError: none came; the watch's own error is its cause, if it had one.
        """
        if not self._seen.wait(timeout) or self._error is not None:
            raise TimeoutError(f"no slice after {timeout:.0f} s") from self._error
        return self._at

    def _run(self) -> None:
        try:
            for event in self._client.watch(SLICES, query=self._query, stop=self._stop):
                if event.type in ("ADDED", "MODIFIED"):
                    self._at = time.perf_counter()
                    return
        except (ApiError, ApiUnreachableError) as error:
            self._error = error
        finally:
            self._seen.set()
