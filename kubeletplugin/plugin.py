"""A DRA driver's kubelet plugin in one object: registration, the DRA service, slices.

    with Plugin("gpu.example.com", node_name, handler, client=KubeClient.from_pod()) as plugin:
        plugin.publish(resources)
        stopping.wait()

The order of events follows k8s.io/dynamic-resource-allocation/kubeletplugin: the DRA socket serves before the
registration socket is there, slices go out when the driver has some. Nothing waits for the API server.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from kubeletplugin.api import ClaimRef, DeviceStatus, Handler, NullObserver, Observer, PreparedDevice, Restored
from kubeletplugin.calls import ClaimCalls
from kubeletplugin.doors import Doors
from kubeletplugin.dra import SERVICES, ArrivalPool, DraService, dra_handlers
from kubeletplugin.endpoint import Endpoint, PooledServer
from kubeletplugin.neighbours import Neighbour, find_neighbours, instance_handler
from kubeletplugin.probes import Check, Probes
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc, registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.registration import Registered, RegistrationService, registration_handler
from kubeletplugin.sockets import (
    SocketPaths,
    fresh_paths,
    is_alive,
    make_folder,
    remove_dead,
    socket_paths,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from kubeletplugin.api import HeldClaim
    from kubeletplugin.claimstatus import ClaimStatusWriter
    from kubeletplugin.client import KubeClient
    from kubeletplugin.health import HealthBoard
    from kubeletplugin.healthservice import HealthService
    from kubeletplugin.instancelock import InstanceLock
    from kubeletplugin.lazyhealth import LazyHealthService
    from kubeletplugin.metadata import MetadataWriter
    from kubeletplugin.publisher import Publisher, Wish

log = logging.getLogger(__name__)

METADATA_FOLDER = "dra-device-metadata"
"""In the plugin's own folder; ``kubeletplugin.metadata``, which has it too, is loaded only where it is needed."""
KUBELET_CALL_TIMEOUT = 45.0
"""Seconds that the kubelet waits for Prepare and Unprepare."""

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A closed connection starts the kubelet's 30 s to the removal of all slices: never close one for idleness, age or
    # frequent pings (max_connection_idle and max_connection_age stay at their default, infinite).
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)

_DRIVER_NAME = re.compile(r"\A(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


class Plugin:
    """One instance of a DRA driver's kubelet plugin.

    Args:
        driver_name: DNS subdomain of at most 63 characters, lower case.
        node_name: the Node object's name (``spec.nodeName`` of the pod), not the host name.
        handler: the driver.
        client: the API server, for claims and slices.
        plugins_dir: ``plugins`` in the kubelet's root folder; the plugin uses ``<plugins_dir>/<driver_name>``.
        registry_dir: ``plugins_registry`` in the kubelet's root folder.
        instance_uid: the pod's UID, where an upgrade runs the new instance beside the old (kubelet 1.33 on); gives both
            sockets names of their own. Without it a new instance takes the sockets' paths over.
        observer: told what happens.
        workers: handler calls that may run at once.
        call_deadline: seconds until a call is answered whatever its state; below the kubelet's 45.
        health: what is known of the devices' health; the kubelet is offered to watch it. ``None``: the driver knows
            nothing, and the service is neither served nor advertised. A function that gives the board is called when
            a kubelet first watches, and nothing of it is loaded before.
        metadata_versions: API versions in which containers get the devices' metadata (``devicemetadata``), the one
            that readers are to prefer first. Empty: they get none.
        cdi_dir: where the container runtime looks for CDI specifications; only metadata needs it.
        exclusive: run one handler call at a time on the whole node, those of another instance included (an upgrade
            runs two for a while). For drivers whose state is in files; they read it again in each call.
        probe_address: ``host:port`` for the pod's gRPC probes, as gRPC takes it (``0.0.0.0:8081``, ``[::]:8081``); port
            0 takes a free one. Nothing but probes is answered there. None: there are none.
        checks: what probes may ask for by name, beside or instead of ``liveness`` and ``readiness``, which are the
            plugin's methods of these names.

    Raises:
        ValueError: a name or number cannot be used.
    """

    def __init__(
        self,
        driver_name: str,
        node_name: str,
        handler: Handler,
        *,
        client: KubeClient,
        plugins_dir: Path = Path("/var/lib/kubelet/plugins"),
        registry_dir: Path = Path("/var/lib/kubelet/plugins_registry"),
        instance_uid: str | None = None,
        observer: Observer | None = None,
        workers: int = 8,
        call_deadline: float = 40.0,
        health: HealthBoard | Callable[[], HealthBoard] | None = None,
        metadata_versions: Sequence[str] = (),
        cdi_dir: Path = Path("/var/run/cdi"),
        exclusive: bool = False,
        probe_address: str | None = None,
        checks: Mapping[str, Check] | None = None,
    ) -> None:
        _check(driver_name, call_deadline)
        self.driver_name = driver_name
        self.node_name = node_name
        self.registered = Registered()
        self._client = client
        self._observer: Observer = observer if observer is not None else NullObserver()
        self._registry_dir = registry_dir
        self._plugins_dir = plugins_dir
        self._instance_uid = instance_uid
        self._workers = workers
        folder = plugins_dir / driver_name
        self._cdi_dir = cdi_dir
        self._metadata_folder = folder / METADATA_FOLDER
        self._metadata = _metadata_writer(driver_name, folder, cdi_dir, metadata_versions)
        lock = _instance_lock(folder) if exclusive else None
        self._calls = ClaimCalls(
            driver_name, handler, client, self._observer, workers=workers, metadata=self._metadata, lock=lock
        )
        self._service = DraService(self._calls, call_deadline)
        self._health = _health_service(health)
        self._probe_address = probe_address
        self._probes = Probes({"liveness": self.liveness, "readiness": self.readiness} | dict(checks or {}))
        self._lock = threading.Lock()
        self._paths: SocketPaths | None = None
        self._endpoint: Endpoint | None = None
        self._publisher: Publisher | None = None
        self._status: ClaimStatusWriter | None = None
        self._stopped = False

    def start(self) -> None:
        """Serves and asks for registration. Returns at once; ``registered`` says when the kubelet has answered.

        Raises:
            SocketError: a folder or socket cannot be used. Nothing is left behind.
            RuntimeError: started before, or stopped.
        """
        with self._lock:
            if self._stopped or self._endpoint is not None:
                raise RuntimeError("a plugin can be started once; make a new one")
            paths = socket_paths(self.driver_name, self._plugins_dir, self._registry_dir, self._instance_uid)
            make_folder(paths.dra.parent, private=True)
            make_folder(paths.registration.parent, private=False)
            named, paths = paths, fresh_paths(paths, self.driver_name, self._instance_uid)
            # The kubelet finds the plugin by the registration socket, which is therefore the last.
            sockets = (paths.dra, paths.registration)
            self._endpoint = Endpoint.serve(self._make_server(paths), sockets, self._probe_address)
            self._paths = paths
            remove_dead(named, self.driver_name, self._instance_uid)
        log.info("serving %s at %s, registration at %s", self.driver_name, paths.dra, paths.registration)

    def publish(self, resources: Wish) -> None:
        """Makes the API server's slices of this driver and node what ``resources`` says, now and from now on.

        Where it depends on what the API server keeps (taints, counters, consumable capacity, list attributes), pass a
        function from ``Features`` to ``DriverResources``: it is called again when the server is another one.
        Returns at once; the observer is told how it went. Until the first call nothing is written or deleted.

        Raises:
            RuntimeError: the plugin is stopped.
        """
        from kubeletplugin.publisher import Publisher

        with self._lock:
            if self._stopped:
                raise RuntimeError("the plugin is stopped")
            if self._publisher is None:
                self._publisher = Publisher(
                    self._client, driver_name=self.driver_name, node_name=self.node_name, observer=self._observer
                )
                self._publisher.start()
            publisher = self._publisher
        publisher.update(resources)

    def update_metadata(self, ref: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> int:
        """Tells the containers of a prepared claim what is known by now of one request's devices.

        Returns:
            The metadata's generation, which readers can watch.

        Raises:
            MetadataError: the claim or request is not prepared, or the file cannot be written.
            RuntimeError: the plugin hands out no metadata.
        """
        if self._metadata is None:
            raise RuntimeError("device metadata is not enabled: pass metadata_versions")
        return self._metadata.update(ref, request, devices)

    def sweep_metadata(self, keep: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """Removes the metadata of claims that ended without an Unprepare; whatever cannot be removed is logged, and
        tried again with the next call.

        Args:
            keep: gives the UIDs of all claims that there are, as late as possible.

        Returns:
            The UIDs of which something was removed.
        """
        if self._metadata is not None:
            return self._metadata.sweep(keep)
        return self._sweep_former_metadata(keep) if self._metadata_folder.exists() else ()

    def _sweep_former_metadata(self, keep: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """What was handed out before that was turned off: containers of claims that are still prepared mount it."""
        from kubeletplugin.metadata import MetadataWriter

        folder = self._metadata_folder
        swept = MetadataWriter(self.driver_name, folder.parent, self._cdi_dir).sweep(keep)
        try:
            if not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            log.debug("folder %s stays: %s", folder, error)
        return swept

    def restore_metadata(self, claims: Callable[[], Iterable[HeldClaim]]) -> Restored:
        """Makes the files of prepared claims' metadata again where they are gone or not as they should be.

        The kubelet starts containers of a prepared claim anew without calling Prepare, and the CDI folder does not
        outlive a reboot: to be called at start, and now and then. Needs neither the kubelet nor the API server.

        Args:
            claims: gives the claims that are prepared, as late as possible.
        """
        return Restored() if self._metadata is None else self._metadata.restore(claims)

    def report_status(self, ref: ClaimRef, devices: Sequence[DeviceStatus]) -> None:
        """Says in the claim's status exactly this of its devices (KEP-4817); returns at once.

        Nothing depends on it, so a plugin that is being stopped says no more.
        """
        from kubeletplugin.claimstatus import ClaimStatusWriter

        with self._lock:
            if self._stopped:
                return
            if self._status is None:
                self._status = ClaimStatusWriter(self._client, self.driver_name)
            status = self._status
        status.report(ref, devices)

    def stop(self, grace: float = 20.0) -> None:
        """Ends the plugin: new calls are refused, running ones get ``grace`` seconds, own sockets are removed.

        Slices stay: the kubelet removes them when no instance comes back in 30 s. Safe to call twice, and before
        ``start`` has ended in another thread; not in a signal handler, which could interrupt ``start`` itself: set an
        event there and stop in the main thread. A handler call that outlives ``grace`` keeps its thread, and the
        interpreter's ordinary exit waits for it (``os._exit`` does not).
        """
        with self._lock:
            self._stopped = True
            endpoint, self._endpoint = self._endpoint, None
            publisher, self._publisher = self._publisher, None
            status, self._status = self._status, None
        deadline = time.monotonic() + grace
        if publisher is not None:
            publisher.stop()
        if status is not None:
            status.stop()
        if self._health is not None:
            self._health.close()
        if endpoint is not None:
            endpoint.drain(grace)
        if not self._calls.drain(max(0.0, deadline - time.monotonic())):
            log.warning("a handler call still runs after %.0f s; it is left behind", grace)
        if endpoint is not None:
            # Only now: the kubelet breaks running calls off when the registration socket goes.
            endpoint.remove()
        self._calls.close()
        self._probes.close()
        if self._health is not None:
            self._health.end()

    @property
    def probe_port(self) -> int | None:
        """The port on which probes are answered; ``None`` where there is none, before ``start`` and after ``stop``."""
        with self._lock:
            return None if self._endpoint is None else self._endpoint.port

    def __enter__(self) -> Self:
        """Starts the plugin."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops it with the default grace."""
        self.stop()

    def liveness(self, timeout: float = 1.0) -> str | None:
        """Walks the kubelet's own way through both sockets; what is wrong, or ``None``.

        A DRA service that is too busy with claims to answer is alive: a restart would not free what it waits for.

        Args:
            timeout: seconds for each of the two calls; the kubelet gives GetInfo one.
        """
        with self._lock:
            paths = self._paths
            if self._stopped or paths is None:
                return "the plugin is stopped" if self._stopped else "the plugin is not started"
        try:
            with grpc.insecure_channel(f"unix:{paths.registration}") as channel:
                registration = registration_v1_pb2_grpc.RegistrationStub(channel)
                registration.GetInfo(registration_v1_pb2.InfoRequest(), timeout=timeout)
        except grpc.RpcError as error:
            return f"the kubelet cannot reach the registration socket {paths.registration}: {rpc_text(error)}"
        try:
            with grpc.insecure_channel(f"unix:{paths.dra}") as channel:
                dra = dra_v1_pb2_grpc.DRAPluginStub(channel)
                dra.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(), timeout=timeout)
        except grpc.RpcError as error:
            if not (self._calls.is_busy() and is_alive(paths.dra)):
                return f"the kubelet cannot reach the DRA socket {paths.dra}: {rpc_text(error)}"
        return None

    def readiness(self) -> str | None:
        """Whether the kubelet has taken the plugin; why not, or ``None``."""
        status = self.registered.status
        if status is None:
            return (
                f"the kubelet has not come to the registration socket in {self._registry_dir}; check that this is the"
                " folder of this node's kubelet (k0s, microk8s and some k3s keep their kubelet elsewhere than"
                " /var/lib/kubelet) and that the pod mounts it under the same path"
            )
        return None if status.ok else f"the kubelet refused the plugin: {status.error}"

    def foreign_plugins(self) -> list[Neighbour]:
        """Plugins of the same name on this node that are not made with this library. May be asked before ``start``.

        A driver that finds one should say so and wait instead of registering beside it: each would get some of the
        kubelet's calls, and neither knows the other's claims.
        """
        with self._lock:
            own = self._paths.registration if self._paths is not None else None
        neighbours = find_neighbours(self._registry_dir, self.driver_name, own=own)
        return [neighbour for neighbour in neighbours if not neighbour.related]

    def _make_server(self, paths: SocketPaths) -> PooledServer:
        """One server for all: each server has threads of its own, which look for work several times a second.

        By which of its sockets the kubelet asks makes no difference, for both are root's alone.
        """
        # Threads of the server only wait for a worker, or for the claim's turn; they must outnumber the workers so
        # that a call which has to wait too long is told so.
        pool = ArrivalPool(4 * self._workers, thread_name_prefix="dra-rpc")
        own = ArrivalPool(2, thread_name_prefix="dra-registration")  # whatever Prepare does, GetInfo is answered
        services = (*SERVICES, *(self._health.services() if self._health is not None else ()))
        registration = RegistrationService(self.driver_name, paths.dra, services, self.registered, self._observer)
        health = self._health.handlers() if self._health is not None else []
        local = [*dra_handlers(self._service), registration_handler(registration, own), instance_handler(), *health]
        server = grpc.server(pool, handlers=[Doors(local, [self._probes])], options=SERVER_OPTIONS)
        return PooledServer(server, (pool, own))


def _check(driver_name: str, call_deadline: float) -> None:
    if not _DRIVER_NAME.match(driver_name):
        raise ValueError(f"driver name {driver_name!r} is not a lower-case DNS subdomain of at most 63 characters")
    if not 0 < call_deadline < KUBELET_CALL_TIMEOUT:
        raise ValueError(f"call_deadline is {call_deadline} s; it must be below the kubelet's {KUBELET_CALL_TIMEOUT} s")


def _metadata_writer(driver_name: str, folder: Path, cdi_dir: Path, versions: Sequence[str]) -> MetadataWriter | None:
    if not versions:
        return None  # what a driver does not use, it need not import on its way to the registration socket
    from kubeletplugin.metadata import MetadataWriter

    return MetadataWriter(driver_name, folder, cdi_dir, versions)


def _instance_lock(folder: Path) -> InstanceLock:
    from kubeletplugin.instancelock import InstanceLock

    return InstanceLock(folder)


def _health_service(
    health: HealthBoard | Callable[[], HealthBoard] | None,
) -> HealthService | LazyHealthService | None:
    if health is None:
        return None
    if callable(health):
        from kubeletplugin.lazyhealth import LazyHealthService

        return LazyHealthService(health)
    from kubeletplugin.healthservice import HealthService

    return HealthService(health)


def rpc_text(error: grpc.RpcError) -> str:
    """Code and details of a failed call in one line; gRPC raises errors that also are ``grpc.Call``."""
    call: object = error
    return f"{call.code().name}: {call.details()}" if isinstance(call, grpc.Call) else str(error)
