"""What goes wrong with hardware, driver, API server, files, time and the agent itself, and how it is mended."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import threading
from pathlib import Path

from driver.prepare.sharing import DEBTS_FILE
from kubeletplugin.client import ApiError, ApiUnreachableError
from native.mock import Failure
from tests.soak.soakmodel import Config
from tests.soak.soakrun import Run
from tests.support.agents import DRIVER, NODE, RESOURCES
from tests.support.ownfiles import OWN
from tests.support.preload import CHANGES, GROWS, Kind

_XIDS = (13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 109, 119, 122, 0, 2**31)
_CALLS = ("nvmlDeviceGet*", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceCreateGpuInstance*", "nvmlInit*",
          "nvmlGpuInstance*", "nvmlDeviceSetMigMode", "nvidia-smi*", "mps.start", "nvmlGpuInstanceDestroy",
          "nvmlDeviceGetHandleByPciBusId*", "nvmlDeviceGetCount*")  # fmt: skip
_CODES = (4, 9, 19, 999)
"""Not NOT_SUPPORTED, which no board says now and then. Not GPU_IS_LOST: what is lost comes back by a reset only, which
``a_gpu_is_lost`` does. Nor may nvidia-smi say that the driver is gone (9) while it is not: modes that it leaves behind
would be gone as well."""
_DAY = 86400
_WHOLE = re.compile(r"\Agpu(-[0-9a-f]+){4}\Z")
_AT_START = frozenset(
    {
        "folder of the plugin",
        "folder of the sockets' registration",
        "socket of the plugin",
        "socket of the registration",
        "state folder",
        "lock of the state",
    }
)
"""Files without which an agent ends, and its pod is started again: there is nobody here who does that."""
_WRITES = (
    ("full", errno.ENOSPC, GROWS, False),
    ("full in the midst of a write", errno.ENOSPC, Kind.WRITE, True),
    ("read-only", errno.EROFS, CHANGES, False),
    ("broken", errno.EIO, Kind.WRITE | Kind.SYNC, False),
)
_REASONS = {
    "500": "InternalError",
    "503": "ServiceUnavailable",
    "429": "TooManyRequests",
    "403": "Forbidden",
    "409": "Conflict",
    "410": "Expired",
}


# hardware and driver


def an_xid(run: Run) -> str:
    address, code = run.gpu(), run.chance.choice(_XIDS)
    run.node.node.xid(address, code)
    run.trouble("an XID", lambda: None)
    return f"{address} {code}"


def a_gpu_is_lost(run: Run) -> str:
    address = run.gpu()
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
    if state == "silent":  # NVML cannot be let go of then, so no GPU's mode can be switched
        run.modes_left.update(run.mig_modes)
    run.trouble(f"GPU {address}", comes_back)
    return f"{address} {state}"


def the_driver_goes(run: Run) -> str:
    node = run.node.node
    if run.chance.random() < 0.5:
        node.set_driver_loaded(False)
        other = run.chance.random() < 0.3

        def comes_back() -> None:
            if other:
                run.upgrades += 1
                node.upgrade_driver(f"700.{run.upgrades}")
            else:
                node.reload_driver()
            run.boot()
            run.stale.update(gpu.address for gpu in node.profile.gpus)

        run.trouble("no driver", comes_back)
        return "and another version comes" if other else ""
    node.set_version_mismatch(True)
    run.trouble("two versions of the driver", lambda: node.set_version_mismatch(False))
    return "by half"


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
    run.modes_left.update(run.mig_modes)
    run.trouble("failing calls", lambda: run.node.node.set_failures([]))
    return ", ".join(f"{rule.function} {rule.code} x{rule.times}" for rule in rules)


# the API server


def the_server_errs(run: Run) -> str:
    faults = run.node.server.faults
    kind = run.chance.choice(["500", "503", "429", "403", "409", "410", "lose", "delay", "break", "end", "expire"])
    times = run.chance.choice([1, 3, 10])
    if kind.isdigit():
        reason = _REASONS[kind]
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


def the_cdi_folder_goes(run: Run) -> str:
    """With all that is in it, whosever it is."""
    shutil.rmtree(run.node.cdi, ignore_errors=True)
    run.foreign.clear()
    run.trouble("CDI files were deleted", lambda: None)
    return ""


def files_cannot_be_written(run: Run) -> str:
    """Those of one purpose, or all."""
    own = [one for one in OWN if one.name not in _AT_START]
    chosen = own if run.chance.random() < 0.2 else [run.chance.choice(own)]
    name, code, kinds, torn = run.chance.choice(_WRITES)
    run.node.disk.fail("|".join(one.match for one in chosen), code, kinds, torn=torn)
    run.trouble("files that cannot be written", run.node.mend_disk)
    return f"{', '.join(one.name for one in chosen)}: the disk is {name}"


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
    run.node.page.set_clock(seconds)
    return f"{seconds} s"


def its_debts_are_damaged(run: Run) -> str:
    """The file of what GPUs were set to before claims ends too early, is none, or is gone. Records of claims tell it
    too: where nothing else is wrong all that is owed is known from them, and each GPU is set back in time."""
    path = run.node.state / DEBTS_FILE
    whole = [place for place in run.pool.free() if place.share is None and _WHOLE.match(place.device)]
    if run.calm and not path.exists() and whole:
        run.prepare(run.allocate(run.chance.choice(whole), config=Config("TimeSlicing", "Long")))
    if not run.calm or not path.exists():
        return "nothing is owed, or owed by what is known from there alone"
    data = path.read_bytes()
    how = run.chance.choice(["torn", "garbage", "another document", "gone"])
    if how == "gone":
        path.unlink()
    else:
        torn = data[: run.chance.randrange(len(data) - 1)]
        path.write_bytes({"torn": torn, "garbage": run.chance.randbytes(len(data))}.get(how, b'{"debts":{"uuid":[]}}'))
    run.trouble("damaged debts", lambda: None)
    return f"{how}: {len(json.loads(data)['debts'])}"


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
    claim = run.wish() if run.chance.random() < 0.6 else run.some(lambda claim: not claim.hopeless)
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
    run.boot()
    run.begin()
    run.trouble("a reboot", lambda: None)
    return ""


def _damage(run: Run, path: Path) -> str:
    data = bytearray(path.read_bytes())
    place = run.chance.randrange(len(data))
    how = run.chance.choice(["a bit", "the end", "all of it"])
    if how == "all of it":
        path.unlink()
    elif how == "the end":
        path.write_bytes(data[:place])
    else:
        data[place] ^= 1 << run.chance.randrange(8)
        path.write_bytes(data)
    return f"{how} at {place}"


def its_checkpoint_is_damaged(run: Run) -> str:
    """While no agent runs: a bit is another, or the end is missing, or all of it. Nothing else is wrong then: what a
    call left half undone is in the checkpoint alone."""
    if not run.calm:
        return it_is_killed(run)
    run.node.end(signal.SIGKILL)
    path, how = run.node.state / "checkpoint.json", "nothing"
    if path.exists():
        how = _damage(run, path)
        for claim in run.claims.values():
            claim.unsure = claim.unsure or bool(claim.ids)
            # Where only CDI files are left, claims of parts that others made hold their GPUs until they end.
            claim.replaced = claim.replaced or claim.static
    run.begin()
    run.trouble("a new agent", lambda: None)
    return how
