"""A run of random events: what is known of the node, what the driver is asked, and what must hold after each answer."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from driver.prepare import is_remnant
from kubeletplugin.client import ApiError, ApiUnreachableError
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc
from kubeletplugin.testing.plugin_manager import KubeletError
from tests.soak import soakchecks, soaktraces
from tests.soak.soakleaks import Figures, Sample, leaks
from tests.soak.soakmodel import JSON, Claim, Config, Place, Pool
from tests.soak.soaknode import SoakNode, soak_node
from tests.support.agents import CLAIMS, DRIVER, RESOURCES

CALL_SECONDS = 45.0
_WARM = 30
"""Events after which a process has nearly all that it ever needs: pools of threads and connections grow on demand."""
_WRITES = 4
"""Of the slices before the heap is measured."""


class InvariantError(AssertionError):
    """Something that must always hold does not."""


@dataclass(frozen=True)
class World:
    """A kind of node."""

    name: str
    profile: str
    devices: int
    flags: dict[str, object]
    partitions: tuple[str, str] | None = None
    """GPU and what an administrator makes on it at each boot."""
    machines: tuple[str, ...] = ()
    """GPUs that virtual machines may have."""
    program: tuple[str, ...] = ()
    """What Python runs as ``gpudra``, where it is not the agent's own."""

    @property
    def spared(self) -> frozenset[str]:
        """GPUs that never fail: those of virtual machines, and that of the administrator."""
        return frozenset({*self.machines, *(self.partitions or ())[:1]})


_QUICK: dict[str, object] = {
    "rescan_seconds": 0.3,
    "health_seconds": 0.2,
    "health_recovery_seconds": 0.3,
    "nvml_deadline_seconds": 3,
    "prepare_wait_seconds": 0.2,
    "reconcile_seconds": 2,
    "journal_bytes": 1 << 20,
    "metrics_port": 0,
    "metrics_address": "127.0.0.1",
    "metadata_versions": "metadata.resource.k8s.io/v1alpha1",
}
WORLDS = {
    "partitions": World("partitions", "rtx-pro-6000", 62, {**_QUICK, "mig": "dynamic"}),
    "sharing": World(
        "sharing",
        "dgx-h100",
        10,
        {**_QUICK, "mig": "static", "shares": json.dumps({"index=0": 4, "index=1": 4})},
        ("0000:df:00.0", "9:4,14:0,14:2"),
    ),
    "machines": World(
        "machines",
        "dgx-h100",
        10,
        {**_QUICK, "mig": "static", "passthrough_devices": "index=6,index=7"},
        machines=("0000:d1:00.0", "0000:df:00.0"),
        program=("-m", "tests.support.kernelagent"),
    ),
}


@dataclass
class Run:
    """One node through its events."""

    world: World
    node: SoakNode
    chance: random.Random
    pool: Pool = field(default_factory=lambda: Pool(()))
    claims: dict[str, Claim] = field(default_factory=dict)
    troubles: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What is wrong with the node or around it now -> what ends it."""
    foreign: set[str] = field(default_factory=set)
    """Files of others in the CDI folder."""
    stale: set[str] = field(default_factory=set)
    """GPUs whose modes were lost behind the agent's back: it believes for ten minutes what it has seen."""
    history: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    base: Figures | None = None
    life: int = 0
    """Events since the agent was started."""
    samples: list[Sample] = field(default_factory=list)
    """Of this agent's life, each at a moment without claims."""
    figures: list[Figures] = field(default_factory=list)
    port: int = 0
    upgrades: int = 0
    """How many other versions of the driver there have been."""
    mig_modes: dict[str, int] = field(default_factory=dict)
    """Address -> MIG mode, as they were before the first claim."""
    modes_left: set[str] = field(default_factory=set)
    """GPUs whose MIG mode may be on without a partition: a call failed, and the next claim will switch it."""
    taints: dict[str, frozenset[str]] = field(default_factory=dict)
    """Address -> keys of which the GPU has one in its taints as long as its fault lasts."""

    # the scheduler and the kubelet

    def allocate(self, *places: Place, name: str = "", **changes: object) -> Claim:
        """A new claim with these devices, as the API server shows it; ``name``: not one of its own."""
        self.numbers += 1
        name = name or f"c{self.numbers}"
        claim = Claim(name, "", places, static=self.world.partitions is not None, **changes)  # type: ignore[arg-type] # named fields of a Claim
        if not claim.admin and not claim.hopeless:
            self.pool.take(places)
        requests = [{"name": f"r{i}", "exactly": {"deviceClassName": DRIVER, "count": 1}} for i in range(len(places))]
        made = self.node.client.create(CLAIMS, claim_document(name, requests))
        claim.uid = made["metadata"]["uid"]
        self.node.client.update(f"{CLAIMS}/{name}/status", {**made, "status": claim.document()})
        self.claims[claim.uid] = claim
        return claim

    def wish(self, name: str = "") -> Claim | None:
        """A claim for something that is free, in a random manner; None: nothing is. ``name``: not one of its own."""
        free = self.pool.free()
        if not free:
            return None
        place = self.chance.choice(free)
        config = self.pool.config(place, self.chance)
        return self.allocate(place, name=name, config=config)

    def gpu(self) -> str:
        """The address of one that may fail."""
        gpus = [one.address for one in self.node.node.profile.gpus if one.address not in self.world.spared]
        return self.chance.choice(gpus)

    def some(self, wanted: Callable[[Claim], bool] = lambda _claim: True) -> Claim | None:
        """One of the claims that are wanted."""
        found = [claim for claim in self.claims.values() if wanted(claim)]
        return self.chance.choice(found) if found else None

    def prepare(self, *claims: Claim, timeout: float = CALL_SECONDS) -> None:
        """Ask, and judge the answer. What must succeed is asked for again as the kubelet does."""
        self.ask_prepare(claims, timeout)
        if self.calm:
            for claim in claims:
                if not claim.prepared and not claim.hopeless and claim.exists:
                    self._insist_on_prepared(claim)

    def insist(self, ask: Callable[[], None], done: Callable[[], bool], claim: Claim) -> None:
        """Ask again until it is done: nothing is in the way."""
        self.counts["asked again"] += 1

        def attempt() -> bool:
            ask()
            return done()

        self.node.until(attempt, f"{claim} although nothing is in its way: {self.last_error}")

    last_error = ""

    def _granted(self, reply: Any, claim: Claim) -> Any:
        """The claim's part of an answer that grants what was asked; None: it does not, and who knows what was done."""
        entry = reply.claims.get(claim.uid) if reply is not None else None
        if reply is not None and entry is None:
            raise InvariantError(f"no answer for {claim}")
        if entry is not None and not entry.error:
            return entry
        self.last_error = entry.error if entry is not None else self.last_error
        claim.unsure = True
        return None

    def ask_prepare(self, claims: Sequence[Claim], timeout: float) -> None:
        reply = self.call("NodePrepareResources", claims, timeout)
        for claim in claims:
            entry = self._granted(reply, claim)
            if entry is None:
                continue
            if claim.hopeless:
                raise InvariantError(f"{claim} was prepared")
            ids = tuple(name for device in entry.devices for name in device.cdi_device_ids)
            if len(entry.devices) != len(claim.places) or (claim.prepared and ids != claim.ids):
                raise InvariantError(f"{claim} got {ids}")
            claim.ids, claim.unsure = ids, False

    def unprepare(self, *claims: Claim, timeout: float = CALL_SECONDS) -> None:
        """Ask, and judge the answer; what is undone is given back and its object deleted."""
        self.ask_unprepare(claims, timeout)
        if self.calm:
            for claim in claims:
                if claim.uid in self.claims:
                    self._insist_on_gone(claim)

    def ask_unprepare(self, claims: Sequence[Claim], timeout: float) -> None:
        reply = self.call("NodeUnprepareResources", claims, timeout)
        for claim in claims:
            if self._granted(reply, claim) is not None:
                self.forget(claim)

    def forget(self, claim: Claim) -> None:
        """It is undone: its devices go to others."""
        left = [path.name for path in self.node.specs() if claim.uid in path.name]
        record = self.node.records().get(claim.uid)
        if left or (record is not None and not is_remnant(record)):
            raise InvariantError(f"{claim} was unprepared, and there is still {left or 'its record'}")
        self.claims.pop(claim.uid, None)
        if not claim.admin and not claim.hopeless:
            self.pool.give_back(claim.places)
        self.delete(claim)

    def delete(self, claim: Claim) -> None:
        """Delete the object, if the API server can be reached; a claim without a user harms nobody."""
        if claim.exists:
            with contextlib.suppress(ApiError, ApiUnreachableError):
                self.node.client.delete(f"{CLAIMS}/{claim.name}")
            claim.exists = False

    def call(
        self, method: str, claims: Sequence[Claim], timeout: float
    ) -> dra_v1_pb2.NodePrepareResourcesResponse | None:
        """One call as the kubelet makes it; None where it failed as a whole."""
        refs = [dra_v1_pb2.Claim(namespace="default", name=claim.name, uid=claim.uid) for claim in claims]
        try:
            stub = dra_v1_pb2_grpc.DRAPluginStub(self.node.plugin().channel)
            kind = getattr(dra_v1_pb2, f"{method}Request")
            return getattr(stub, method)(kind(claims=refs), timeout=timeout, wait_for_ready=True)  # type: ignore[no-any-return] # generated
        except (grpc.RpcError, KubeletError) as error:
            self.last_error = str(error)
            return None

    # order and trouble

    @property
    def calm(self) -> bool:
        """Nothing is wrong, and the agent has seen that."""
        return not self.troubles

    def trouble(self, name: str, heal: Callable[[], None]) -> None:
        """Something is wrong from now on. What is wrong already ends as it was to end; what was healed and has not been
        looked at since is wrong anew."""
        if self.troubles.get(name, _healed) is _healed:
            self.troubles[name] = heal

    def heal(self) -> None:
        """End all that is wrong."""
        ends, self.troubles = self.troubles, {}
        for end in ends.values():
            end()
        self.troubles = dict.fromkeys(ends, _healed)

    def rest(self) -> None:
        """Everything is mended, the agent has seen it, no answer is owed: now everything must agree."""
        self.heal()
        soakchecks.whole(self)
        for claim in list(self.claims.values()):
            if claim.unsure or claim.hopeless or (claim.ids and not claim.exists):
                again = not claim.hopeless and not claim.replaced and claim.exists and self.chance.random() < 0.5
                (self._insist_on_prepared if again else self._insist_on_gone)(claim)
        soakchecks.at_rest(self)
        self.troubles.clear()
        self._measure()
        self.node.forget_log()

    def _insist_on_prepared(self, claim: Claim) -> None:
        self.insist(lambda: self.ask_prepare([claim], CALL_SECONDS), claim.is_prepared, claim)

    def _insist_on_gone(self, claim: Claim) -> None:
        self.insist(lambda: self.ask_unprepare([claim], CALL_SECONDS), lambda: claim.uid not in self.claims, claim)

    def _measure(self) -> None:
        found = self.node.figures()
        self.figures.append(found)
        if self.life < _WARM:
            return
        if self.base is None:
            self.base = found
        elif (
            found.descriptors > self.base.descriptors + 24
            or found.threads > self.base.threads + 32
            or found.rss_mib > self.base.rss_mib + 32
        ):
            raise InvariantError(f"the agent had {self.base} and has {found} after {self.life} events")

    def empty(self) -> None:
        """A rest, after which all claims end; then all is as before the first of them, and what the agent holds by now
        is compared with what it held at other such moments."""
        self.rest()
        for claim in list(self.claims.values()):
            self._insist_on_gone(claim)
        soakchecks.whole(self)
        soakchecks.at_rest(self)
        soakchecks.as_before(self)
        self.samples.append(Sample(self.life, self._least()))
        if found := leaks(self.samples):
            raise InvariantError("; ".join(found))

    def _least(self) -> Figures:
        """What the agent holds now. What it keeps of the slices is up to a MiB, by whether it heard of its own write by
        the answer first or by the watch: so they are written some times, and the least counts."""
        found = [self.node.figures()]
        for _ in range(_WRITES if self.node.exact else 0):
            for item in self.node.slices():
                self.node.client.delete(f"{RESOURCES}/resourceslices/{item['metadata']['name']}")
            soakchecks.whole(self)
            found.append(self.node.figures())
        return min(found, key=lambda one: one.heap_kib or 0)

    def begin(self) -> None:
        """Start an agent."""
        self.node.begin()
        self.base, self.life = None, 0
        self.samples.clear()
        self.stale.clear()

    def boot(self) -> None:
        """What an administrator's tools do at each start of the driver: the partitions are others than before."""
        for claim in self.claims.values():
            if claim.static and any("-mig-" in place.device for place in claim.places):
                claim.unsure = claim.replaced = True
        if self.world.partitions is not None:
            address, partitions = self.world.partitions
            # Tools that fail would be called again until they succeed.
            self.node.node.set_failures([])
            self.node.node.set_version_mismatch(False)
            self.node.node.nvidia_smi("-i", address, "-mig", "1")
            self.node.node.nvidia_smi("mig", "-i", address, "-cgi", partitions, "-C")

    def together(self, calls: Iterable[Callable[[], object]]) -> None:
        """Several calls at the same moment."""
        calls = list(calls)
        with ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(call) for call in calls]:
                done.result()

    def finish(self) -> None:
        """Everything is given back: nothing of it is left, and the agent ends in order."""
        self.empty()
        soakchecks.at_the_end(self)


def _healed() -> None:
    """Ends a trouble that has ended, and whose traces the agent may not have mended yet."""


def claim_document(name: str, requests: list[JSON]) -> JSON:
    """A claim as a user writes it."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }


@contextlib.contextmanager
def opened(world: World, seed: int, *, exact: bool = False) -> Iterator[Run]:
    """A run whose agent has published everything and has no claims; ``exact``: as ``SoakNode.equip`` takes it."""
    with soak_node(world.profile, world.flags, exact=exact) as node:
        if world.program:
            node.program = world.program
        run = Run(world, node, random.Random(seed))
        run.port = int(node.server.url.rpartition(":")[2])
        run.boot()
        run.mig_modes = soaktraces.mig_modes(run, lambda _address: True)
        run.begin()
        soakchecks.whole(run)
        run.pool = Pool(node.client.get(f"{RESOURCES}/resourceslices")["items"])
        yield run


__all__ = ["WORLDS", "Config", "InvariantError", "Run", "World", "opened", "time"]
