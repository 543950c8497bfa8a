"""A kubelet stand-in for demos and fast tests: registers plugins and takes pods' claims through a driver.

It follows the DRA manager of Kubernetes 1.37 (pkg/kubelet/cm/dra/manager.go): what it checks before a call, that a
claim is prepared once per node however many pods use it, what it demands of an answer, and what it forgets on restart.
It runs no containers; ``container_devices`` says what the runtime would be given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import grpc

from kubeletplugin.api import JSON, ClaimRef, HealthStatus
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.plugin import KUBELET_CALL_TIMEOUT, rpc_text
from kubeletplugin.proto import dra_v1_pb2
from kubeletplugin.testing.health_watch import V1 as HEALTH_V1
from kubeletplugin.testing.health_watch import V1ALPHA1 as HEALTH_V1ALPHA1
from kubeletplugin.testing.health_watch import Remembered
from kubeletplugin.testing.plugin_manager import WIPING_DELAY, KubeletError, PluginManager

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Kubelet", "KubeletError", "PluginManager"]

log = logging.getLogger(__name__)


class _Entry(Protocol):
    """What Prepare's and Unprepare's entries have in common."""

    @property
    def error(self) -> str: ...


@dataclass(eq=False)
class _ClaimInfo:
    """What the kubelet remembers of a claim; survives its restart, ``prepared`` and ``unpreparing`` do not."""

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[dra_v1_pb2.Device]] = field(default_factory=dict)
    prepared: bool = False
    unpreparing: bool = False


class Kubelet:
    """One node's kubelet.

    Args:
        registry_dir: ``plugins_registry`` of the kubelet's root folder.
        node_name: the Node object's name.
        client: the API server.
        root_dir: the kubelet's root folder; ``None`` takes the parent of ``registry_dir``.
        call_timeout: seconds for Prepare and Unprepare; the real kubelet's is 45.
        wiping_delay: seconds from the loss of a driver to the removal of its slices; the real kubelet's is 30.
        poll: seconds between looks at the registry folder.
        health_services: versions of DRAResourceHealth that this kubelet knows, newest first.
    """

    def __init__(
        self,
        registry_dir: Path,
        *,
        node_name: str,
        client: KubeClient,
        root_dir: Path | None = None,
        call_timeout: float = KUBELET_CALL_TIMEOUT,
        wiping_delay: float = WIPING_DELAY,
        poll: float = 0.1,
        health_services: tuple[str, ...] = (HEALTH_V1, HEALTH_V1ALPHA1),
    ) -> None:
        self.plugins = PluginManager(
            registry_dir,
            node_name=node_name,
            client=client,
            root_dir=root_dir,
            call_timeout=call_timeout,
            wiping_delay=wiping_delay,
            poll=poll,
            health_services=health_services,
        )
        self._client = client
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], _ClaimInfo] = {}

    def start(self) -> None:
        """Wipes the node's slices and starts to register plugins."""
        self.plugins.start()

    def stop(self) -> None:
        """Ends it. Prepared claims stay prepared."""
        self.plugins.stop()

    def restart(self) -> None:
        """Stops and starts; claims are remembered from the checkpoint, but have to be prepared again for their pods."""
        self.plugins.stop()
        with self._lock:
            for info in self._claims.values():
                info.prepared = info.unpreparing = False
        self.plugins.start()

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops it."""
        self.stop()

    def prepare_pod(self, pod_uid: str, namespace: str, claim_names: Sequence[str]) -> None:
        """What happens before a pod's containers start. May be repeated, as the kubelet does until it succeeds.

        Raises:
            KubeletError: with the text that the pod's event would show. Before any driver was called if the claim is
                missing, not allocated or not reserved for the pod, or a driver is not registered.
        """
        fetched = [self._fetch(pod_uid, namespace, name) for name in claim_names]
        for info in fetched:
            for driver in info.drivers:
                self.plugins.plugin(driver)
        batches: dict[str, list[_ClaimInfo]] = {}
        todo: list[_ClaimInfo] = []
        with self._lock:
            for info in map(self._remember, fetched):
                info.pods.add(pod_uid)
                if not info.prepared:
                    todo.append(info)
                    for driver in info.drivers:
                        batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            self._prepare_batch(driver, infos)
        with self._lock:
            for info in todo:
                info.prepared = True

    def unprepare_pod(self, pod_uid: str) -> None:
        """What happens after a pod's last container ended. Claims that another pod uses stay prepared.

        Raises:
            KubeletError: the claims are kept and the call may be repeated, as the kubelet does.
        """
        ending: list[_ClaimInfo] = []
        with self._lock:
            for info in self._claims.values():
                if pod_uid in info.pods and len(info.pods) == 1:
                    info.unpreparing = True
                    ending.append(info)
                else:
                    info.pods.discard(pod_uid)
        for driver in sorted({driver for info in ending for driver in info.drivers}):
            refs = [info.ref for info in ending if driver in info.drivers]
            try:
                reply = self.plugins.plugin(driver).unprepare(refs)
            except grpc.RpcError as error:
                raise KubeletError(f"NodeUnprepareResources: {rpc_text(error)}") from error
            _check_reply("NodeUnprepareResources", refs, reply.claims)
        with self._lock:
            for info in ending:
                del self._claims[info.ref.namespace, info.ref.name]

    def container_devices(self, namespace: str, claim_name: str, request: str = "") -> list[str]:
        """CDI names for a container that uses the claim, or one request of it.

        Raises:
            KubeletError: the claim is not prepared.
        """
        with self._lock:
            info = self._claims.get((namespace, claim_name))
            if info is None or not info.prepared:
                raise KubeletError(f"unable to get claim info for ResourceClaim {claim_name} in namespace {namespace}")
            return [
                name
                for devices in info.devices.values()
                for device in devices
                if not request or not device.request_names or request in device.request_names
                for name in device.cdi_device_ids
            ]

    def prepared_claims(self) -> list[ClaimRef]:
        """Claims that are prepared now."""
        with self._lock:
            return [info.ref for info in self._claims.values() if info.prepared]

    def allocated_resources(self, namespace: str, claim_name: str) -> dict[str, Remembered]:
        """What ``allocatedResourcesStatus`` of a container that uses the claim says: health by resource ID.

        The ID is the device's first CDI name, or its name where it has none; two devices with one ID are one entry.

        Raises:
            KubeletError: the claim is not prepared.
        """
        with self._lock:
            info = self._claims.get((namespace, claim_name))
            if info is None or not info.prepared:
                raise KubeletError(f"unable to get claim info for ResourceClaim {claim_name} in namespace {namespace}")
            devices = [(driver, device) for driver, found in info.devices.items() for device in found]
        found = {}
        for driver, device in devices:
            watcher = self.plugins.plugin(driver).health
            word = Remembered(HealthStatus.UNKNOWN)
            if watcher is not None:
                word = watcher.health(device.pool_name, device.device_name)
            found[next(iter(device.cdi_device_ids), f"{driver}/{device.pool_name}/{device.device_name}")] = word
        return found

    def _fetch(self, pod_uid: str, namespace: str, name: str) -> _ClaimInfo:
        try:
            claim = self._client.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
        except (ApiError, ApiUnreachableError) as error:
            raise KubeletError(f"fetch ResourceClaim {name}: {error}") from error
        status: JSON = claim.get("status") or {}
        uid = claim["metadata"]["uid"]
        if all(consumer.get("uid") != pod_uid for consumer in status.get("reservedFor") or ()):
            raise KubeletError(f"pod ({pod_uid}) is not allowed to use ResourceClaim {name} ({uid})")
        if not status.get("allocation"):
            raise KubeletError(f"ResourceClaim {name}: not allocated")
        results = status["allocation"].get("devices", {}).get("results", [])
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return _ClaimInfo(ClaimRef(namespace=namespace, name=name, uid=uid), drivers)

    def _remember(self, fetched: _ClaimInfo) -> _ClaimInfo:
        info = self._claims.setdefault((fetched.ref.namespace, fetched.ref.name), fetched)
        if info.ref.uid != fetched.ref.uid:
            raise KubeletError(
                f"old ResourceClaim with same name {info.ref.name} and different UID {info.ref.uid} still exists"
                " (previous pod force-deleted?!)"
            )
        if info.unpreparing:
            raise KubeletError(f"ResourceClaim {info.ref.name} is being unprepared")
        return info

    def _prepare_batch(self, driver: str, infos: list[_ClaimInfo]) -> None:
        refs = [info.ref for info in infos]
        try:
            reply = self.plugins.plugin(driver).prepare(refs)
        except grpc.RpcError as error:
            raise KubeletError(f"NodePrepareResources: {rpc_text(error)}") from error
        _check_reply("NodePrepareResources", refs, reply.claims)
        with self._lock:
            for info in infos:
                info.devices[driver] = list(reply.claims[info.ref.uid].devices)


def _check_reply(call: str, refs: Iterable[ClaimRef], entries: Mapping[str, _Entry]) -> None:
    """The kubelet's demands: no unknown UID, no error, nothing left out."""
    names = {ref.uid: ref.name for ref in refs}
    for uid, entry in entries.items():
        if uid not in names:
            raise KubeletError(f"{call} returned result for unknown claim UID {uid}")
        if entry.error:
            raise KubeletError(f"{call} failed for ResourceClaim {names[uid]}: {entry.error}")
    if skipped := len(names) - len(entries):
        raise KubeletError(f"{call} skipped {skipped} ResourceClaims")
