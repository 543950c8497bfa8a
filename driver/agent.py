"""The agent of a node: where the rooms are wired together.

The order at start is the point of this module. What was under way is finished or undone from the record, then the
plugin registers with the kubelet and serves; only then NVML is touched, in a thread of its own. Nothing is published
before the first whole reading of the node, and what an earlier instance published stays until then. At the end only
what is this instance's own is removed: its sockets.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from driver import ahead
from driver.bridge import (
    AgentObserver,
    ClaimHandler,
    own_partitions,
    resources,
    with_owners,
)
from driver.discovery import Discovery, View
from driver.lacks import Lacks
from driver.later import Later
from driver.lookout import Lookout, Surroundings
from driver.making import connect, make_preparer
from driver.metrics import Deferred, Metrics
from driver.model import GpuState, MigSupport, NodeInventory
from driver.offering import Offering
from driver.prepare import PatientPreparer, read_boot_id
from driver.publish import DeviceOrder, PoolDocument, build_pool, pool_name
from driver.recovering import Recovering
from driver.settings import Settings, listed
from kubeletplugin import api
from kubeletplugin.plugin import Plugin
from kubeletplugin.sockets import SocketError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.journal.scribe import Scribe
    from driver.node import NodeReader
    from driver.shapekeeper import ShapeKeeper
    from native.nvml.session import NvmlSession
    from native.uevents import UeventWatcher

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 20.0
FIRST_SLICE_PATIENCE = 1.0
"""Seconds for which metrics, health and uevents wait for the first slice: beside it they would only be in its way."""
DRIVER_TAINT = "gpu.nvidia.com/driver-unavailable"


class _Parts(msgspec.Struct, frozen=True):
    """What is started after the registration, to be ended in reverse."""

    uevents: UeventWatcher


class Agent:
    """One instance of the daemon. ``run`` may be called once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mig = MigSupport(settings.mig)
        self._metrics = Deferred()
        self._pool_name = pool_name(settings.node_name, settings.driver_name)
        self._client = connect(settings)
        self._scribe: Later[Scribe] = Later()
        self._observer = AgentObserver(self._metrics, self._scribe)
        # A boot id lasts as long as the kernel, and this process ends before it.
        self._boot_id = read_boot_id(Path(settings.proc_root))
        self._publishing = threading.Lock()
        self._discovery = Discovery(
            self._read,
            self._changed,
            rescan_seconds=settings.rescan_seconds,
            retry_seconds=settings.driver_retry_seconds,
            looked=self._looked,
            measured=self._measured,
        )
        self._offering = Offering(settings, self._discovery.inventory, self._let_go)
        self._preparer = make_preparer(
            settings,
            self._pool_name,
            self._boot_id,
            self._discovery.inventory,
            self._session,
            self._offering,
            changed=self._discovery.request,
        )
        self._patient = PatientPreparer(self._preparer, settings.prepare_wait_seconds)
        self._lookout = self._make_lookout()
        self._plugin = self._make_plugin()
        self._recovering = Recovering(
            self._preparer,
            self._patient,
            self._plugin,
            self._lookout,
            self._offering,
            self._observer,
            self._scribe,
            self._metrics,
        )
        self._lacks = Lacks()
        self._reader: NodeReader | None = None
        self._shapes = self._make_shape_keeper()

    def run(self, stop: threading.Event) -> int:
        """Serve until ``stop`` is set.

        Returns:
            The exit code: 0, or 1 where the agent cannot serve (the log says why).
        """
        # A thread that computes must not keep a gRPC worker from the interpreter for the default 5 ms.
        sys.setswitchinterval(0.001)
        if not self._alone(stop):
            return 0
        self._recovering.recover()
        self._offering.resume(self._preparer.prepared())
        try:
            self._plugin.start()
            if (port := self._plugin.probe_port) is not None:
                log.info("health is served", extra={"port": port})
        except SocketError:
            log.exception("the plugin cannot be served")
            return 1
        ahead.import_reading(self._settings.nvml_backend)
        self._discovery.start()
        ahead.import_publishing(self._client)
        self._observer.heard.wait(FIRST_SLICE_PATIENCE)
        parts = self._start_parts()
        if parts is None:
            self._plugin.stop(0)
            return 1
        gc.collect()
        gc.freeze()
        gc.enable()
        stop.wait()
        self._shut_down(parts)
        return 0

    def _alone(self, stop: threading.Event) -> bool:
        """Wait until no other driver registers under our name; False when stopped meanwhile."""
        from kubeletplugin.neighbours import find_neighbours

        settings = self._settings
        said: list[str] = []
        while True:
            neighbours = find_neighbours(Path(settings.registry_dir), settings.driver_name)
            strangers = [str(neighbour.socket) for neighbour in neighbours if not neighbour.related]
            if not strangers:
                return True
            if strangers != said:
                said = strangers
                log.error(
                    "another driver registers as %s at %s; both would hand out the same GPUs, so this agent waits "
                    "until it is gone: remove it from this node, or give this driver another name with --driver-name",
                    settings.driver_name,
                    ", ".join(strangers),
                )
            if stop.wait(settings.driver_retry_seconds):
                return False

    def _start_parts(self) -> _Parts | None:
        """Everything that can wait until the kubelet knows of us."""
        from importlib import metadata

        from kubeletplugin.events import EventRecorder
        from native.uevents import UeventWatcher

        settings = self._settings
        metrics = Metrics()
        self._metrics.attach(metrics)
        version = metadata.version("gpudra")
        metrics.set("gpudra_build_info", 1, version=version)
        node: api.JSON = {"apiVersion": "v1", "kind": "Node", "name": settings.node_name, "uid": settings.node_name}
        events = EventRecorder(self._client, component="gpudra-agent", host=settings.node_name)
        self._observer.attach(events, node)
        try:
            if settings.metrics_port >= 0:
                port = metrics.serve(settings.metrics_port, settings.metrics_address)
                log.info("metrics are served", extra={"port": port})
        except OSError as err:
            log.error("metrics cannot be served: %s; choose another port or -1 for none", err)  # noqa: TRY400
            return None
        uevents = UeventWatcher(self._discovery.request, sys_root=Path(settings.sys_root))
        uevents.start()
        self._lookout.start(self._plugin, self._discovery, version)
        return _Parts(uevents)

    def _shut_down(self, parts: _Parts) -> None:
        log.info("ending: calls in hand are finished, published slices stay")
        self._patient.close()
        parts.uevents.stop()
        self._lookout.stop()
        self._discovery.stop(1.0)
        self._plugin.stop(SHUTDOWN_SECONDS)
        self._offering.close()
        self._observer.close()
        self._lookout.close()
        if self._shapes is not None:
            self._shapes.close()
        if self._reader is not None:
            self._reader.close()
        log.info("ended")

    def _readiness(self) -> str | None:
        if (problem := self._plugin.readiness()) is not None:
            return problem
        if (problem := self._observer.publish_problem) is not None:
            return problem
        view = self._discovery.view
        return view.unavailable if view.inventory is None else None

    # the node

    def _read(self) -> NodeInventory:
        reader = self._reader
        if reader is None:
            from driver.node import NodePaths, NodeReader  # there already, see driver.ahead

            settings = self._settings
            paths = NodePaths(
                Path(settings.driver_root),
                Path(settings.sys_root),
                Path(settings.proc_root),
                Path(settings.nvml_library) if settings.nvml_library else None,
            )
            reader = self._reader = NodeReader(
                paths,
                backend=settings.nvml_backend,
                deadline=settings.nvml_deadline_seconds,
                mig=self._mig is MigSupport.DYNAMIC,
                state_dir=settings.state_dir,
            )
            reader.session.accompany(self._offering.sightings)
        # A partition that comes or goes during the reading is in one of the two.
        before = own_partitions(self._preparer.prepared())
        inventory = reader.read()
        if not all(gpu.mig_settled for gpu in inventory.gpus):
            self._discovery.request()
        return with_owners(inventory, before | own_partitions(self._preparer.prepared()))

    def _let_go(self) -> None:
        """End the session with NVML: it holds every GPU open, and the kernel hands none over that is. The next reading
        begins another one."""
        reader, self._reader = self._reader, None
        self._lookout.let_go()
        if reader is not None:
            reader.close()

    def _session(self) -> NvmlSession | None:
        """The door to NVML; None before the first reading."""
        reader = self._reader
        return None if reader is None else reader.session

    def _looked(self) -> None:
        self._recovering.recover()

    def _measured(self, seconds: float, failure: str | None) -> None:
        if failure:
            self._observer.heard.set()

        def tell(metrics: Metrics) -> None:
            metrics.observe("gpudra_snapshot_duration_seconds", seconds)
            metrics.set("gpudra_driver_available", 0 if failure else 1)
            if failure:
                metrics.add("gpudra_snapshot_failures_total", reason=failure)

        self._metrics.tell(tell)

    def _changed(self, view: View) -> None:
        """The node is another: publish it."""
        inventory = view.inventory
        self._scribe.tell(lambda scribe: scribe.node(inventory, view.unavailable))
        self._lookout.looked()
        if view.unavailable is not None:
            self._offering.sightings.interrupted()
        if inventory is None:
            return
        if inventory.mock:
            log.warning("this node is a MOCK: its GPUs do not exist")
        states = [gpu.state for gpu in inventory.gpus]

        def tell(metrics: Metrics) -> None:
            for state in GpuState:
                metrics.set("gpudra_gpus", states.count(state), state=state.value)

        self._metrics.tell(tell)
        self._publish()

    def _publish(self) -> None:
        """Publish the newest snapshot, with the taints of now."""
        with self._publishing:
            view = self._discovery.view
            if view.inventory is None:
                return
            inventory, taints = self._lookout.view(view.inventory)
            inventory = self._offering.offered(inventory, self._preparer.prepared())
            if view.unavailable is not None:
                taint: api.JSON = {"key": DRIVER_TAINT, "effect": "NoSchedule"}
                # What stands against one partition stands on.
                taints |= {gpu.name: [*taints.get(gpu.name, ()), taint] for gpu in inventory.gpus}
            if self._mig is MigSupport.DYNAMIC or self._settings.passthrough_devices:
                if self._settings.metadata_versions:  # which containers get whether or not the API server is there
                    self._lookout.described(self._build(inventory, taints, counters=True).devices)
                self._plugin.publish(lambda features: self._pool(inventory, taints, counters=features.partitionable))
            else:
                self._plugin.publish(self._pool(inventory, taints))

    def _pool(
        self, inventory: NodeInventory, taints: Mapping[str, list[api.JSON]], *, counters: bool = False
    ) -> api.DriverResources:
        pool = self._build(inventory, taints, counters=counters)
        self._lacks.tell(pool, uncounted=self._mig is MigSupport.DYNAMIC and not counters)
        self._lookout.published(pool.devices, taints)
        if self._shapes is not None:
            self._shapes.offer(pool)
        return resources(pool)

    def _build(self, inventory: NodeInventory, taints: Mapping[str, list[api.JSON]], *, counters: bool) -> PoolDocument:
        settings = self._settings
        return build_pool(
            inventory,
            node_name=settings.node_name,
            driver_name=settings.driver_name,
            taints=taints,
            mig=self._mig,
            order=DeviceOrder(settings.device_order),
            counters=counters,
        )

    def _make_lookout(self) -> Lookout:
        settings = self._settings
        return Lookout(
            Surroundings(
                settings,
                self._pool_name,
                self._boot_id,
                self._metrics,
                self._observer,
                self._preparer.prepared,
                self._publish,
                self._session,
                self._client,
                self._patient.unprepare,
            ),
            self._scribe,
        )

    def _make_plugin(self) -> Plugin:
        settings = self._settings
        return Plugin(
            settings.driver_name,
            settings.node_name,
            ClaimHandler(
                self._patient,
                self._metrics,
                self._say,
                self._scribe,
                self._lookout.condition,
                self._lookout.metadata,
                self._lookout.claims_changed,
            ),
            client=self._client,
            plugins_dir=Path(settings.plugins_dir),
            registry_dir=Path(settings.registry_dir),
            instance_uid=settings.instance_uid or None,
            observer=self._observer,
            health=self._lookout.board,
            metadata_versions=listed(settings.metadata_versions),
            cdi_dir=Path(settings.cdi_dir),
            probe_address=_host_and_port(settings.metrics_address, settings.health_port),
            checks={"readiness": self._readiness},
        )

    def _make_shape_keeper(self) -> ShapeKeeper | None:
        settings = self._settings
        if not settings.shape_namespace:
            return None
        from driver.shapekeeper import ShapeKeeper

        return ShapeKeeper(
            self._client,
            driver_name=settings.driver_name,
            node_name=settings.node_name,
            namespace=settings.shape_namespace,
        )

    # claims

    def _say(self, claim: api.Claim, devices: Sequence[api.DeviceStatus]) -> None:
        """Tell people which hardware a claim got, once; in the background, nothing waits for it."""
        from kubeletplugin.claimstatus import is_said

        if not is_said(self._settings.driver_name, claim.document, devices):
            self._plugin.report_status(claim.ref, devices)


def _host_and_port(address: str, port: int) -> str | None:
    """As gRPC takes it; None for a negative port, which means none."""
    if port < 0:
        return None
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
