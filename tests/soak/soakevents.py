"""The events: what users, the scheduler, the kubelet, administrators, hardware and the machine do to an agent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kubeletplugin.client import ApiError, ApiUnreachableError
from native.mock import Failure
from tests.soak.soakmodel import Claim, Config, Place
from tests.soak.soakrun import CALL_SECONDS, Run
from tests.support.agents import CLAIMS, DRIVER, NODE, RESOURCES, until

_XIDS = (13, 31, 43, 45, 48, 63, 79, 94, 109, 119, 0, 2**31)
_CALLS = ("nvmlDeviceGet*", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceCreateGpuInstance*", "nvmlInit*",
          "nvmlGpuInstance*", "nvmlDeviceSetMigMode", "nvidia-smi*", "mps.start", "nvmlGpuInstanceDestroy",
          "nvmlDeviceGetHandleByPciBusId*", "nvmlDeviceGetCount*")  # fmt: skip
_CODES = (4, 9, 19, 999)
"""Not NOT_SUPPORTED, which no board says now and then. Not GPU_IS_LOST: what is lost comes back by a reset only, which
``a_gpu_is_lost`` does. Nor may nvidia-smi say that the driver is gone (9) while it is not: modes that it leaves behind
would be gone as well."""
_DAY = 86400


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


def _some(run: Run, wanted: Callable[[Claim], bool] = lambda _claim: True) -> Claim | None:
    found = [claim for claim in run.claims.values() if wanted(claim)]
    return run.chance.choice(found) if found else None


# claims


def a_claim(run: Run) -> str:
    claim = run.wish()
    if claim is None:
        return an_end(run)
    run.prepare(claim)
    return str(claim)


def a_large_claim(run: Run) -> str:
    """Several whole GPUs at once."""
    free = [place for place in run.pool.free() if place.share is None and "-mig-" not in place.device]
    if len(free) < 2:
        return an_end(run)
    claim = run.allocate(*run.chance.sample(free, 2))
    run.prepare(claim)
    return str(claim)


def a_claim_of_an_admin(run: Run) -> str:
    names = [name for name in run.pool.names if "-mig-" not in name or run.world.partitions]
    claim = run.allocate(Place(run.chance.choice(names)), admin=True)
    run.prepare(claim)
    return str(claim)


def several_claims(run: Run) -> str:
    """In one call, as for a pod that uses them."""
    claims = [claim for claim in (run.wish() for _ in range(run.chance.randint(2, 4))) if claim is not None]
    run.prepare(*claims)
    return ", ".join(map(str, claims))


def again(run: Run) -> str:
    claim = _some(run, lambda claim: claim.exists)
    if claim is not None:
        run.prepare(claim)
    return str(claim)


def an_end(run: Run) -> str:
    claim = _some(run)
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
    claim = run.allocate(*places, config=Config("Wishing") if kind == "config" else None, broken=True)
    run.prepare(claim)
    return f"{claim}: wrong {kind}"


def a_device_twice(run: Run) -> str:
    """The scheduler was told that a device is free, and it is not."""
    holder = _some(run, lambda claim: claim.prepared and not claim.admin and claim.places[0].share is None)
    if holder is None:
        return a_claim(run)
    claim = run.allocate(holder.places[0], over=holder.uid)
    run.prepare(claim)
    run.unprepare(claim)
    return str(claim)


def a_claim_deleted_by_force(run: Run) -> str:
    claim = _some(run, lambda claim: claim.exists)
    if claim is not None:
        run.delete(claim)
    return str(claim)


def a_namesake(run: Run) -> str:
    """A claim is deleted and made again under the same name, and the kubelet asks with the old UID."""
    holder = _some(run, lambda claim: claim.exists and claim.prepared)
    if holder is None:
        return a_claim(run)
    stale = Claim(holder.name, "99999999-2222-4333-8444-555555555555", ())
    reply = run.call("NodePrepareResources", [stale], CALL_SECONDS)
    assert reply is None or reply.claims[stale.uid].error, f"{stale} was prepared"
    return str(stale)


# the kubelet


def it_gives_up(run: Run) -> str:
    """The call ends before the answer."""
    claim = run.wish() if run.chance.random() < 0.6 else _some(run)
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


# hardware and driver


def _gpu(run: Run) -> str:
    theirs = run.world.partitions[0] if run.world.partitions else None
    return run.chance.choice([gpu.address for gpu in run.node.node.profile.gpus if gpu.address != theirs])


def an_xid(run: Run) -> str:
    address, code = _gpu(run), run.chance.choice(_XIDS)
    run.node.node.xid(address, code)
    run.trouble("an XID", lambda: None)
    return f"{address} {code}"


def a_gpu_is_lost(run: Run) -> str:
    address = _gpu(run)
    state = run.chance.choices(["lost", "silent", "unplugged"], [6, 1, 3])[0]
    if f"GPU {address}" in run.troubles:
        return "already"
    node = run.node.node

    def comes_back() -> None:
        if state != "silent":
            run.node.reset(address)
            run.stale.add(address)
        if state == "unplugged":
            # NVML first: a session that begins between the two waits a minute before it begins anew.
            node.plug(address, first="nvml")
        else:
            node.set_gpu_state(address, "ok")

    if state == "unplugged":
        node.unplug(address, first=run.chance.choice(["nvml", "sysfs"]))
    else:
        node.set_gpu_state(address, state)
    run.trouble(f"GPU {address}", comes_back)
    return f"{address} {state}"


def the_driver_goes(run: Run) -> str:
    node = run.node.node
    if run.chance.random() < 0.5:
        node.set_driver_loaded(False)

        def comes_back() -> None:
            node.reload_driver()
            run.boot()
            run.stale.update(gpu.address for gpu in node.profile.gpus)

        run.trouble("no driver", comes_back)
    else:
        node.set_version_mismatch(True)
        run.trouble("two versions of the driver", lambda: node.set_version_mismatch(False))
    return ""


def calls_fail(run: Run) -> str:
    functions = [run.chance.choice(_CALLS) for _ in range(run.chance.randint(1, 3))]
    rules = [
        Failure(
            function,
            run.chance.choice(_CODES if function.startswith("nvml") else (3, 19, 255)),
            delay_ms=run.chance.choice([0, 0, 20]),
            after=run.chance.randint(0, 3),
            times=run.chance.choice([1, 2, 10, None]),
            probability=run.chance.choice([1.0, 0.5]),
            seed=run.chance.getrandbits(16),
        )
        for function in functions
    ]
    run.node.node.set_failures(rules)
    run.trouble("failing calls", lambda: run.node.node.set_failures([]))
    return ", ".join(f"{rule.function} {rule.code} x{rule.times}" for rule in rules)


# the API server


def the_server_errs(run: Run) -> str:
    faults = run.node.server.faults
    kind = run.chance.choice(["500", "429", "403", "lose", "delay", "break", "end", "expire"])
    times = run.chance.choice([1, 3, 10])
    if kind.isdigit():
        reason = {"500": "InternalError", "429": "TooManyRequests", "403": "Forbidden"}[kind]
        path, methods = run.chance.choice([("resourceslices", ("POST", "PUT", "PATCH")), ("resourceclaims/", ("GET",))])
        faults.fail(int(kind), reason, methods=methods, path=path, times=times)
    elif kind == "lose":
        faults.lose_answers(methods=("PATCH",), times=times)
    elif kind == "delay":
        faults.delay(0.02)
    else:
        {"break": faults.close_watches, "end": faults.end_watches, "expire": faults.expire_watches}[kind]()
    run.trouble("the API server errs", faults.clear)
    return f"{kind} x{times}"


def the_server_goes(run: Run) -> str:
    if "no API server" not in run.troubles:
        run.node.server.stop()
        run.trouble("no API server", lambda: _start_server(run))
    return ""


def _start_server(run: Run) -> None:
    run.node.server.start(run.port)


def slices_are_deleted(run: Run) -> str:
    try:
        for item in run.node.slices():
            run.node.client.delete(f"{RESOURCES}/resourceslices/{item['metadata']['name']}")
    except (ApiError, ApiUnreachableError) as error:
        return str(error)
    run.trouble("the slices were deleted", lambda: None)
    return ""


def the_node_object_is_replaced(run: Run) -> str:
    run.node.client.delete(f"/api/v1/nodes/{NODE}")
    run.node.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    run.trouble("another Node object", lambda: None)
    return ""


# files and time


def cdi_files_are_deleted(run: Run) -> str:
    files = [path for path in run.node.specs() if path.name not in run.foreign]
    chosen = run.chance.sample(files, run.chance.randint(0, len(files)))
    for path in chosen:
        path.unlink(missing_ok=True)
    run.trouble("CDI files were deleted", lambda: None)
    return f"{len(chosen)} of {len(files)}"


def foreign_files(run: Run) -> str:
    """Others' files, which nobody may touch, and leftovers in our name, which must go."""
    name = run.chance.choice(["other.json", "nvidia.yaml", f"{DRIVER}-other_1.json", f"x-{DRIVER}-claim_1.json"])
    run.node.cdi.mkdir(exist_ok=True)
    (run.node.cdi / name).write_text("{}")
    run.foreign.add(name)
    orphan = f"{run.chance.getrandbits(32):08x}-2222-4333-8444-555555555555"
    (run.node.cdi / f"{DRIVER}-claim_{orphan}.json").write_text(run.chance.choice(["", "{}", "[" * 10000]))
    (run.node.cdi / f".{DRIVER}-claim_{orphan}.json.tmp").write_text("half")
    run.trouble("leftovers", lambda: None)
    return name


def the_clock_jumps(run: Run) -> str:
    seconds = run.chance.choice([-400 * _DAY, -_DAY, -3, 0, 3, _DAY, 4000 * _DAY])
    run.node.jump(seconds)
    return f"{seconds} s"


# the agent


def it_ends_and_another_starts(run: Run) -> str:
    code = run.node.end(run.chance.choice([signal.SIGTERM, signal.SIGINT]))
    assert code == 0, f"the agent ended with {code}"
    run.begin()
    run.trouble("a new agent", lambda: None)
    return ""


def it_is_killed(run: Run) -> str:
    run.node.end(signal.SIGKILL)
    run.begin()
    run.trouble("a new agent", lambda: None)
    return ""


def it_is_killed_in_a_call(run: Run) -> str:
    """At any moment of it."""
    claim = run.wish() if run.chance.random() < 0.6 else _some(run, lambda claim: not claim.hopeless)
    if claim is None:
        return it_is_killed(run)
    method = "NodeUnprepareResources" if claim.ids and run.chance.random() < 0.6 else "NodePrepareResources"
    claim.unsure = True
    moment = run.chance.uniform(0, 0.03)
    caller = threading.Thread(target=run.call, args=(method, [claim], 5.0))
    caller.start()
    caller.join(moment)
    run.node.end(signal.SIGKILL)
    run.begin()
    caller.join()
    run.trouble("a new agent", lambda: None)
    return f"{method} {claim} after {moment:.3f} s"


def a_reboot(run: Run) -> str:
    run.heal()
    run.node.reboot()
    run.foreign.clear()
    run.forgotten.clear()
    run.boot()
    run.begin()
    run.trouble("a reboot", lambda: None)
    return ""


def its_checkpoint_is_damaged(run: Run) -> str:
    """While no agent runs: a bit is another, or the end is missing. Nothing else is wrong then: what a call left half
    undone is in the checkpoint alone."""
    if not run.calm:
        return it_is_killed(run)
    run.node.end(signal.SIGKILL)
    # Which GPUs an MPS daemon had nobody knows any more: their mode stays until another claim sets it.
    for claim in run.claims.values():
        if claim.config is not None:
            run.forgotten.update(place.device for place in claim.places)
    path = run.node.state / "checkpoint.json"
    if path.exists():
        data = bytearray(path.read_bytes())
        place = run.chance.randrange(len(data))
        data[place] ^= 1 << run.chance.randrange(8)
        path.write_bytes(data if run.chance.random() < 0.5 else data[:place])
        for claim in run.claims.values():
            claim.unsure = claim.unsure or bool(claim.ids)
            # Where only CDI files are left, claims of parts that others made hold their GPUs until they end.
            claim.replaced = claim.replaced or claim.static
    run.begin()
    run.trouble("a new agent", lambda: None)
    return ""


EVENTS = (
    Event("a claim", 22, a_claim, server=True),
    Event("a claim of two GPUs", 2, a_large_claim, server=True),
    Event("a claim of an administrator", 2, a_claim_of_an_admin, server=True),
    Event("several claims at once", 3, several_claims, server=True),
    Event("prepare again", 10, again),
    Event("unprepare", 20, an_end),
    Event("several unprepared at once", 3, several_ends),
    Event("unprepare of nothing", 2, an_end_of_nothing),
    Event("a broken claim", 3, a_broken_claim, server=True),
    Event("a device twice", 3, a_device_twice, server=True),
    Event("a claim deleted by force", 1, a_claim_deleted_by_force, server=True),
    Event("a namesake", 1, a_namesake, server=True),
    Event("the kubelet gives up", 2, it_gives_up, server=True),
    Event("a storm of calls", 1.5, a_storm, server=True),
    Event("the kubelet restarts", 0.5, a_restart_of_the_kubelet),
    Event("an XID", 1.5, an_xid),
    Event("a GPU is lost", 1.5, a_gpu_is_lost),
    Event("the driver goes", 1, the_driver_goes),
    Event("calls fail", 3, calls_fail),
    Event("the API server errs", 2.5, the_server_errs),
    Event("the API server goes", 0.7, the_server_goes),
    Event("slices are deleted", 0.7, slices_are_deleted, server=True),
    Event("the Node object is replaced", 0.3, the_node_object_is_replaced, server=True),
    Event("CDI files are deleted", 0.7, cdi_files_are_deleted),
    Event("files of others", 0.5, foreign_files),
    Event("the clock jumps", 1, the_clock_jumps),
    Event("the agent is ended", 0.6, it_ends_and_another_starts, restarts=True),
    Event("the agent is killed", 0.6, it_is_killed, restarts=True),
    Event("the agent is killed in a call", 1.2, it_is_killed_in_a_call, restarts=True, server=True),
    Event("a reboot", 0.7, a_reboot, restarts=True),
    Event("the checkpoint is damaged", 0.2, its_checkpoint_is_damaged, restarts=True),
)

__all__ = ["CLAIMS", "EVENTS", "Event", "until"]
