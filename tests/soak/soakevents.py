"""The events: what users, the scheduler, the kubelet, administrators, hardware and the machine do to an agent."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

from driver.model import PciAddress
from tests.soak import soakfaults, soaktroubles
from tests.soak.soakmodel import JSON, Claim, Config, Place
from tests.soak.soakrun import CALL_SECONDS, Run

_DOCUMENT: JSON = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
_WRONG_CONFIGS = tuple(
    json.dumps(document)
    for document in (
        {**_DOCUMENT, "sharing": {"strategy": "Wishing"}},
        {**_DOCUMENT, "shering": {"strategy": "MPS"}},
        {**_DOCUMENT, "apiVersion": "resource.nvidia.com/v9"},
        {**_DOCUMENT, "kind": "GpuWish"},
        {**_DOCUMENT, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 1000}}},
        {**_DOCUMENT, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "For ever"}}},
        {**_DOCUMENT, "sharing": "x" * 9000},
        {},
        functools.reduce(lambda inner, _: {"sharing": inner}, range(90), _DOCUMENT),
    )
)


@dataclass(frozen=True)
class Event:
    """Something that may happen."""

    name: str
    weight: float
    happen: Callable[[Run], str]
    """Lets it happen and says to whom."""
    restarts: bool = False
    """Another agent serves afterwards."""
    server: bool = False
    """The API server must be there for it."""


_DASHES = 4
"""In the name of a whole GPU."""


# claims


def a_claim(run: Run) -> str:
    claim = run.wish()
    if claim is None:
        return an_end(run)
    run.prepare(claim)
    return str(claim)


def a_large_claim(run: Run) -> str:
    """Several whole GPUs at once."""
    free = [place for place in run.pool.free() if place.share is None and place.device.count("-") == _DASHES]
    if len(free) < 2:
        return an_end(run)
    claim = run.allocate(*run.chance.sample(free, 2))
    run.prepare(claim)
    return str(claim)


def a_claim_of_several_devices(run: Run) -> str:
    """Whatever may be given beside each other, each for a request of its own."""
    places: list[Place] = []
    for _ in range(run.chance.randint(2, 4)):
        free = [place for place in run.pool.free() if _mixes(run, place) and place.device not in _names(places)]
        if free:
            places.append(run.chance.choice(free))
            run.pool.take(places[-1:])
    run.pool.give_back(places)
    if len(places) < 2:
        return an_end(run)
    claim = run.allocate(*places)
    run.prepare(claim)
    return str(claim)


def _names(places: list[Place]) -> set[str]:
    return {place.device for place in places}


def _mixes(run: Run, place: Place) -> bool:
    """Whether it can be had without a configuration, beside others, in a container."""
    shared_otherwise = place.share is not None and run.pool.config(place, run.chance) is not None
    return not shared_otherwise and not place.device.endswith("-vfio")


def a_claim_of_an_admin(run: Run) -> str:
    # What a virtual machine has can be looked at by nobody, an administrator included.
    lent = {PciAddress.parse(address).label for address in run.world.machines}
    names = [
        name
        for name in run.pool.names
        if (name.count("-") == _DASHES or run.world.partitions) and name.removeprefix("gpu-") not in lent
    ]
    claim = run.allocate(Place(run.chance.choice(names)), admin=True)
    run.prepare(claim)
    return str(claim)


def several_claims(run: Run) -> str:
    """In one call, as for a pod that uses them."""
    claims = [claim for claim in (run.wish() for _ in range(run.chance.randint(2, 4))) if claim is not None]
    run.prepare(*claims)
    return ", ".join(map(str, claims))


def again(run: Run) -> str:
    claim = run.some(lambda claim: claim.exists)
    if claim is not None:
        run.prepare(claim)
    return str(claim)


def an_end(run: Run) -> str:
    claim = run.some()
    if claim is not None:
        run.unprepare(claim)
    return str(claim)


def several_ends(run: Run) -> str:
    claims = run.chance.sample(sorted(run.claims.values(), key=lambda one: one.name), min(3, len(run.claims)))
    run.unprepare(*claims)
    return ", ".join(map(str, claims))


def an_end_of_nothing(run: Run) -> str:
    uid = run.chance.choice(["11111111-2222-4333-8444-555555555555", "../../etc", "a b", "x" * 300])
    stranger = Claim("nobody", uid, ())
    reply = run.call("NodeUnprepareResources", [stranger], CALL_SECONDS)
    malformed = len(stranger.uid) != 36
    assert reply is None or malformed or not reply.claims[stranger.uid].error or run.troubles, reply
    return stranger.uid[:40]


def a_broken_claim(run: Run) -> str:
    free = [place for place in run.pool.free() if place.share is None]
    if not free:
        return an_end(run)
    kind = run.chance.choice(["config", "device"])
    places = {
        "config": (run.chance.choice(free),),
        "device": (Place("gpu-9999-99-99-0"),),
    }[kind]
    config = Config("", text=run.chance.choice(_WRONG_CONFIGS)) if kind == "config" else None
    claim = run.allocate(*places, config=config, broken=True)
    run.prepare(claim)
    return f"{claim}: wrong {kind} {config.text[:100] if config is not None and config.text is not None else ''}"


def a_device_twice(run: Run) -> str:
    """The scheduler was told that a device is free, and it is not."""
    holder = run.some(lambda claim: claim.prepared and not claim.admin and claim.places[0].share is None)
    if holder is None:
        return a_claim(run)
    claim = run.allocate(holder.places[0], over=holder.uid)
    run.prepare(claim)
    run.unprepare(claim)
    return str(claim)


def a_claim_deleted_by_force(run: Run) -> str:
    claim = run.some(lambda claim: claim.exists)
    if claim is not None:
        run.delete(claim)
    return str(claim)


def a_claim_made_again(run: Run) -> str:
    """Its object is deleted by force, and another one has its name: only the UID tells them apart."""
    former = run.some(lambda claim: claim.exists and claim.prepared)
    if former is None:
        return a_claim(run)
    run.delete(former)
    claim = run.wish(former.name)
    if claim is not None:
        run.prepare(claim)
    return f"{former}, now {claim}"


def a_namesake(run: Run) -> str:
    """A claim is deleted and made again under the same name, and the kubelet asks with the old UID."""
    holder = run.some(lambda claim: claim.exists and claim.prepared)
    if holder is None:
        return a_claim(run)
    stale = Claim(holder.name, "99999999-2222-4333-8444-555555555555", ())
    reply = run.call("NodePrepareResources", [stale], CALL_SECONDS)
    assert reply is None or reply.claims[stale.uid].error, f"{stale} was prepared"
    return str(stale)


# the kubelet


def it_gives_up(run: Run) -> str:
    """The call ends before the answer."""
    claim = run.wish() if run.chance.random() < 0.6 else run.some()
    if claim is None:
        return an_end(run)
    timeout = run.chance.uniform(0.001, 0.03)
    method = (
        run.chance.choice(["NodePrepareResources", "NodeUnprepareResources"]) if claim.ids else "NodePrepareResources"
    )
    claim.unsure = True
    run.call(method, [claim], timeout)
    run.trouble("a call that nobody waits for", lambda: None)
    return f"{method} {claim} {timeout:.3f} s"


def a_storm(run: Run) -> str:
    """Many calls at once, about the same claims."""
    claims = [claim for claim in (run.wish() for _ in range(3)) if claim is not None]
    if not claims:
        return an_end(run)
    methods = [run.chance.choice(["NodePrepareResources", "NodeUnprepareResources"]) for _ in range(8)]
    for claim in claims:
        claim.unsure = True
    calls = [
        lambda method=method, claim=claim: run.call(method, [claim], CALL_SECONDS)
        for method, claim in zip(methods, run.chance.choices(claims, k=len(methods)), strict=True)
    ]
    run.together(calls)
    for claim in claims:
        run.prepare(claim)
    return f"{len(methods)} calls about {len(claims)} claims"


def a_restart_of_the_kubelet(run: Run) -> str:
    """It wipes the slices, and asks for all claims of its pods again."""
    run.node.kubelet.restart()
    run.node.until(lambda: run.node._reachable(), "the plugin")
    run.trouble("the slices were wiped", lambda: None)
    return ""


EVENTS = (
    Event("a claim", 22, a_claim, server=True),
    Event("a claim of two GPUs", 2, a_large_claim, server=True),
    Event("a claim of several devices", 2, a_claim_of_several_devices, server=True),
    Event("a claim of an administrator", 2, a_claim_of_an_admin, server=True),
    Event("several claims at once", 3, several_claims, server=True),
    Event("prepare again", 10, again),
    Event("unprepare", 20, an_end),
    Event("several unprepared at once", 3, several_ends),
    Event("unprepare of nothing", 2, an_end_of_nothing),
    Event("a broken claim", 3, a_broken_claim, server=True),
    Event("a device twice", 3, a_device_twice, server=True),
    Event("a claim deleted by force", 1, a_claim_deleted_by_force, server=True),
    Event("a claim made again", 1, a_claim_made_again, server=True),
    Event("a namesake", 1, a_namesake, server=True),
    Event("the kubelet gives up", 2, it_gives_up, server=True),
    Event("a storm of calls", 1.5, a_storm, server=True),
    Event("the kubelet restarts", 0.5, a_restart_of_the_kubelet),
    Event("an XID", 1.5, soaktroubles.an_xid),
    Event("memory errs", 3, soakfaults.its_memory_errs),
    Event("a GPU is used", 1.5, soakfaults.a_gpu_is_used),
    Event("a used GPU is refused", 1.5, soakfaults.a_used_gpu_is_refused, server=True),
    Event("a GPU is lost", 1.5, soaktroubles.a_gpu_is_lost),
    Event("the driver goes", 1, soaktroubles.the_driver_goes),
    Event("calls fail", 3, soaktroubles.calls_fail),
    Event("the API server errs", 2.5, soaktroubles.the_server_errs),
    Event("the API server goes", 0.7, soaktroubles.the_server_goes),
    Event("slices are deleted", 0.7, soaktroubles.slices_are_deleted, server=True),
    Event("the Node object is replaced", 0.3, soaktroubles.the_node_object_is_replaced, server=True),
    Event("CDI files are deleted", 0.7, soaktroubles.cdi_files_are_deleted),
    Event("the CDI folder goes", 0.3, soaktroubles.the_cdi_folder_goes),
    Event("files cannot be written", 1.5, soaktroubles.files_cannot_be_written),
    Event("the debts are damaged", 0.7, soaktroubles.its_debts_are_damaged, server=True),
    Event("files of others", 0.5, soaktroubles.foreign_files),
    Event("the clock jumps", 1, soaktroubles.the_clock_jumps),
    Event("the agent is ended", 0.6, soaktroubles.it_ends_and_another_starts, restarts=True),
    Event("the agent is killed", 0.6, soaktroubles.it_is_killed, restarts=True),
    Event("the agent is killed in a call", 1.2, soaktroubles.it_is_killed_in_a_call, restarts=True, server=True),
    Event("a reboot", 0.7, soaktroubles.a_reboot, restarts=True),
    Event("the checkpoint is damaged", 0.2, soaktroubles.its_checkpoint_is_damaged, restarts=True),
)
