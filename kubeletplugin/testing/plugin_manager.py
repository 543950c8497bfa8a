"""The kubelet's plugin manager, stood in for: finds registration sockets, registers plugins, wipes slices.

The rules are those of pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin of Kubernetes 1.37. Two things are
simpler: the folder is polled, not watched with inotify, and whether a plugin is connected is asked by connecting to its
socket, not told by gRPC.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from kubeletplugin.api import ClaimRef
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.plugin import KUBELET_CALL_TIMEOUT, rpc_text
from kubeletplugin.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from kubeletplugin.registration import PLUGIN_TYPE
from kubeletplugin.sockets import MAX_SOCKET_PATH, FileIdentity, file_identity, is_alive
from kubeletplugin.testing.health_watch import V1 as HEALTH_V1
from kubeletplugin.testing.health_watch import V1ALPHA1 as HEALTH_V1ALPHA1
from kubeletplugin.testing.health_watch import HealthWatcher, pick_health_service

log = logging.getLogger(__name__)

DIAL_TIMEOUT = 10.0
GET_INFO_TIMEOUT = 1.0
NOTIFY_TIMEOUT = 5.0
WIPING_DELAY = 30.0

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_DRIVER_NAME = re.compile(r"\A(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


class KubeletError(Exception):
    """What the kubelet would log, or put into the pod's event."""


@dataclass(eq=False)
class RegisteredPlugin:
    """A plugin that was registered, and the connection to its DRA socket."""

    driver: str
    endpoint: Path
    registration_socket: Path
    service: str
    """``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``: the first of the plugin's list that the kubelet knows."""
    call_timeout: float = KUBELET_CALL_TIMEOUT
    health_service: str | None = None
    """The newest version of DRAResourceHealth that both sides know; None where the plugin offers none."""
    connected: bool = False
    channel: grpc.Channel = field(init=False)
    health: HealthWatcher | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(f"unix:{self.endpoint}")
        if self.health_service is not None:
            self.health = HealthWatcher(self.channel, self.health_service)

    def close(self) -> None:
        """Ends the health stream and the connection."""
        if self.health is not None:
            self.health.stop()
        self.channel.close()

    def prepare(self, refs: Sequence[ClaimRef]) -> dra_v1_pb2.NodePrepareResourcesResponse:
        """NodePrepareResources in the negotiated version.

        Raises:
            grpc.RpcError: the call failed as a whole, or took longer than ``call_timeout``.
        """
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(refs))
        if self.service == V1:
            return dra_v1_pb2_grpc.DRAPluginStub(self.channel).NodePrepareResources(request, timeout=self.call_timeout)
        reply = dra_v1beta1_pb2_grpc.DRAPluginStub(self.channel).NodePrepareResources(
            dra_v1beta1_pb2.NodePrepareResourcesRequest.FromString(request.SerializeToString()),
            timeout=self.call_timeout,
        )
        return dra_v1_pb2.NodePrepareResourcesResponse.FromString(reply.SerializeToString())

    def unprepare(self, refs: Sequence[ClaimRef]) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources in the negotiated version.

        Raises:
            grpc.RpcError: the call failed as a whole, or took longer than ``call_timeout``.
        """
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(refs))
        if self.service == V1:
            stub = dra_v1_pb2_grpc.DRAPluginStub(self.channel)
            return stub.NodeUnprepareResources(request, timeout=self.call_timeout)
        reply = dra_v1beta1_pb2_grpc.DRAPluginStub(self.channel).NodeUnprepareResources(
            dra_v1beta1_pb2.NodeUnprepareResourcesRequest.FromString(request.SerializeToString()),
            timeout=self.call_timeout,
        )
        return dra_v1_pb2.NodeUnprepareResourcesResponse.FromString(reply.SerializeToString())


class PluginManager:
    """Registers what appears in the registry folder, and removes slices of drivers that stay away.

    Args:
        registry_dir: ``plugins_registry``.
        node_name: whose slices are wiped.
        client: for wiping; without one nothing is wiped, as in a kubelet without API server.
        root_dir: endpoints must lie in it; ``None`` takes the parent of ``registry_dir``.
        call_timeout: seconds for Prepare and Unprepare.
        wiping_delay: seconds from the loss of a driver's last connection to the removal of its slices.
        poll: seconds between looks at the folder.
        health_services: versions of DRAResourceHealth that this kubelet knows, newest first; 1.36 knows v1alpha1 only.
    """

    def __init__(
        self,
        registry_dir: Path,
        *,
        node_name: str,
        client: KubeClient | None = None,
        root_dir: Path | None = None,
        call_timeout: float = KUBELET_CALL_TIMEOUT,
        wiping_delay: float = WIPING_DELAY,
        poll: float = 0.1,
        health_services: tuple[str, ...] = (HEALTH_V1, HEALTH_V1ALPHA1),
    ) -> None:
        self._health_services = health_services
        self._registry_dir = registry_dir
        self._root_dir = root_dir if root_dir is not None else registry_dir.parent
        self._node_name = node_name
        self._client = client
        self._call_timeout = call_timeout
        self._wiping_delay = wiping_delay
        self._poll = poll
        self._changed = threading.Condition()
        self._plugins: list[RegisteredPlugin] = []
        self._seen: dict[Path, FileIdentity] = {}
        self._retry_at: dict[tuple[Path, FileIdentity], tuple[float, float]] = {}
        self._wipes: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.errors: list[str] = []
        """What registration has failed with, oldest first."""

    def start(self) -> None:
        """Starts the watcher. All slices of the node are wiped first, as at every start of a kubelet."""
        self._stop.clear()
        self._wipes[""] = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="kubelet-plugins", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watcher and closes all connections."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._changed:
            plugins, self._plugins = self._plugins, []
            self._seen.clear()
            self._retry_at.clear()
            self._wipes.clear()
        for plugin in plugins:
            plugin.close()

    def plugin(self, driver: str) -> RegisteredPlugin:
        """The plugin that is asked for this driver: the youngest connected one, else the youngest.

        Raises:
            KubeletError: none is registered.
        """
        with self._changed:
            of_driver = [plugin for plugin in self._plugins if plugin.driver == driver]
        if not of_driver:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(of_driver) if is_alive(plugin.endpoint)), of_driver[-1])

    def registered(self) -> list[RegisteredPlugin]:
        """All registered plugins, oldest first."""
        with self._changed:
            return list(self._plugins)

    def wait_registered(self, driver: str, timeout: float = 10.0) -> RegisteredPlugin:
        """Waits until a plugin of this driver is registered.

        Raises:
            KubeletError: none came; with the last reason.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: any(p.driver == driver for p in self._plugins), timeout):
                last = self.errors[-1] if self.errors else f"no socket in {self._registry_dir}"
                raise KubeletError(f"DRA driver {driver} did not register within {timeout:.0f} s: {last}")
        return self.plugin(driver)

    def wait_gone(self, driver: str, timeout: float = 10.0) -> bool:
        """Waits until no plugin of this driver is registered; ``False`` after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: all(p.driver != driver for p in self._plugins), timeout)

    def register(self, socket: Path) -> RegisteredPlugin:
        """Takes one registration socket through the kubelet's procedure.

        Raises:
            KubeletError: the plugin does not answer in time, or says what no kubelet accepts. It is told so.
        """
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = registration_v1_pb2_grpc.RegistrationStub(channel)
            info = _get_info(channel, stub, socket)
            try:
                plugin = self._accept(info, socket)
            except KubeletError as error:
                _notify(stub, registration_v1_pb2.RegistrationStatus(plugin_registered=False, error=str(error)))
                raise
            try:
                _notify(stub, registration_v1_pb2.RegistrationStatus(plugin_registered=True))
            except KubeletError:
                self._remove(plugin)
                raise
        return plugin

    def _accept(self, info: registration_v1_pb2.PluginInfo, socket: Path) -> RegisteredPlugin:
        if info.type != PLUGIN_TYPE:
            raise KubeletError(f"no handler registered for plugin type: {info.type} at socket {socket}")
        if not _DRIVER_NAME.match(info.name):
            raise KubeletError(f"plugin validation failed: driver name {info.name!r} is invalid")
        endpoint = Path(info.endpoint or socket)
        if not endpoint.is_absolute() or self._root_dir not in endpoint.parents or ".." in endpoint.parts:
            raise KubeletError(f"plugin validation failed: endpoint {endpoint} is not inside {self._root_dir}")
        if len(os.fsencode(endpoint)) > MAX_SOCKET_PATH:
            raise KubeletError(f"plugin validation failed: endpoint {endpoint} is longer than a unix socket may be")
        service = next((service for service in info.supported_versions if service in (V1, V1BETA1)), None)
        if service is None:
            raise KubeletError(
                f"none of services supported by the plugin ({list(info.supported_versions)}) are supported by the"
                f" kubelet ({[V1, V1BETA1]})"
            )
        with self._changed:
            if any(p.driver == info.name and p.endpoint == endpoint for p in self._plugins):
                raise KubeletError(f"endpoint {endpoint} already registered for DRA driver plugin {info.name}")
            health = pick_health_service(info.supported_versions, self._health_services)
            plugin = RegisteredPlugin(info.name, endpoint, socket, service, self._call_timeout, health)
            self._plugins.append(plugin)
            self._changed.notify_all()
        if plugin.health is not None:
            plugin.health.start()
        return plugin

    def _remove(self, plugin: RegisteredPlugin) -> None:
        with self._changed:
            if plugin in self._plugins:
                self._plugins.remove(plugin)
                self._changed.notify_all()
            self._schedule_wipe(plugin.driver)
        plugin.close()

    def _run(self) -> None:
        while True:
            self._wipe_due()
            self._look()
            self._watch_connections()
            if self._stop.wait(self._poll):
                return

    def _look(self) -> None:
        """One pass over the folder: sockets that went are deregistered, new ones and replaced ones registered."""
        found = dict(_sockets(self._registry_dir))
        for socket in [socket for socket, identity in self._seen.items() if found.get(socket) != identity]:
            del self._seen[socket]
            for plugin in self.registered():
                if plugin.registration_socket == socket:
                    self._remove(plugin)
        for socket, identity in found.items():
            due, delay = self._retry_at.get((socket, identity), (0.0, 0.5))
            if socket in self._seen or time.monotonic() < due:
                continue
            try:
                self.register(socket)
            except KubeletError as error:
                log.warning("%s", error)
                self.errors.append(str(error))
                self._retry_at[socket, identity] = (time.monotonic() + delay, min(120.0, 2 * delay))
            else:
                self._seen[socket] = identity

    def _watch_connections(self) -> None:
        for plugin in self.registered():
            plugin.connected = is_alive(plugin.endpoint)
            if not plugin.connected:
                self._schedule_wipe(plugin.driver)

    def _schedule_wipe(self, driver: str) -> None:
        self._wipes.setdefault(driver, time.monotonic() + self._wiping_delay)

    def _wipe_due(self) -> None:
        for plugin in self.registered():
            if plugin.connected:
                self._wipes.pop(plugin.driver, None)
        for driver, due in list(self._wipes.items()):
            if time.monotonic() < due:
                continue
            if self._client is None or self._wipe(self._client, driver):
                self._wipes.pop(driver, None)
            else:
                self._wipes[driver] = time.monotonic() + 1.0

    def _wipe(self, client: KubeClient, driver: str) -> bool:
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        try:
            client.request("DELETE", SLICES, query={"fieldSelector": selector})
        except (ApiError, ApiUnreachableError) as error:
            log.warning("slices (%s) cannot be wiped, trying again: %s", selector, error)
            return False
        log.info("wiped slices (%s)", selector)
        return True


def _claims(refs: Sequence[ClaimRef]) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]


def _sockets(folder: Path) -> Iterator[tuple[Path, FileIdentity]]:
    """Sockets below the folder whose names do not start with a dot, with their identity."""
    for root, _folders, names in os.walk(folder):
        for name in sorted(names):
            path = Path(root, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(status.st_mode) and not name.startswith("."):
                yield path, file_identity(status)


def _get_info(
    channel: grpc.Channel, stub: registration_v1_pb2_grpc.RegistrationStub, socket: Path
) -> registration_v1_pb2.PluginInfo:
    if not is_alive(socket):
        # The kubelet dials for ten seconds, but beside its other work, which waits for nobody here.
        raise KubeletError(f"RegisterPlugin error -- dial failed at socket {socket}: connection refused")
    try:
        grpc.channel_ready_future(channel).result(DIAL_TIMEOUT)
        return stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=GET_INFO_TIMEOUT)
    except grpc.FutureTimeoutError as error:
        raise KubeletError(f"RegisterPlugin error -- dial failed at socket {socket}") from error
    except grpc.RpcError as error:
        raise KubeletError(
            f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}: {rpc_text(error)}"
        ) from error


def _notify(stub: registration_v1_pb2_grpc.RegistrationStub, status: registration_v1_pb2.RegistrationStatus) -> None:
    try:
        stub.NotifyRegistrationStatus(status, timeout=NOTIFY_TIMEOUT)
    except grpc.RpcError as error:
        raise KubeletError(f"failed to send registration status: {rpc_text(error)}") from error
