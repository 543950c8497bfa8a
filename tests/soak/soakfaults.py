"""GPUs whose memory errs, and GPUs that somebody uses: what a board says of itself, and what programs do on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from driver.health.verdicts import UNHEALTHY_TAINT, XID_TAINT
from native.mock.control import Process
from tests.soak import soakchecks
from tests.soak.soakmodel import Claim, Place
from tests.soak.soakrun import CALL_SECONDS, InvariantError, Run

_PID = 4242
_UNHEALTHY = frozenset({UNHEALTHY_TAINT})
_HEARD_OR_SEEN = frozenset({XID_TAINT, UNHEALTHY_TAINT})
"""An XID is not heard while NVML refuses to report a GPU's events; that the driver wants a reset is seen."""
_IN_USE = ("has it open", "in use", "still used by")
"""What a refusal says where somebody uses a GPU."""


@dataclass(frozen=True)
class Fault:
    """What a board says, until it is reset or replaced."""

    name: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Of the mock, while it lasts."""
    event: str | None = None
    """That NVML reports once, when it begins."""
    xid: int | None = None
    """The same."""
    taints: frozenset[str] = frozenset()
    """Keys of which the GPU has one for as long as it lasts; empty: it goes on without any."""
    rows: bool = False
    """Boards do not tell of it while there are partitions, nor that it has passed."""


FAULTS = (
    Fault("corrected errors", {"ecc_single": 7}, "single-bit-ecc"),
    Fault("a storm of corrected errors", {"ecc_single": 70_000}, "single-bit-ecc-storm"),
    Fault("a contained error", {"ecc_double": 1}, "nonfatal-poison", 94),
    Fault("an uncontained error", {"ecc_double": 1, "recovery_action": 1}, "double-bit-ecc", 95, _HEARD_OR_SEEN),
    Fault("poison", {"recovery_action": 2}, "fatal-poison", taints=_UNHEALTHY),
    Fault("an error after which it is to be drained", {"recovery_action": 4}, taints=_UNHEALTHY),
    Fault("a row that waits", {"remap_pending": 1}, "dram-retirement", 63, rows=True),
    Fault("a row without a spare", {"remap_failure": 1}, "dram-retirement-failure", 64, _UNHEALTHY, rows=True),
)


def its_memory_errs(run: Run) -> str:
    """The taint comes where there is to be one, and stays until the fault has ended (``soakchecks.taints_stand``)."""
    address = run.gpu()
    fault = run.chance.choice([one for one in FAULTS if not one.rows or run.world.flags["mig"] == "static"])
    name = f"{soakchecks.MEMORY}{address}"
    if name in run.troubles:
        return "already"
    node, calm = run.node.node, run.calm

    def ends() -> None:
        run.taints.pop(address, None)
        for number in fault.numbers:
            node.set_number(address, number, 0)

    for number, value in fault.numbers.items():
        node.set_number(address, number, value)
    if fault.event is not None:
        node.event(address, fault.event)
    if fault.xid is not None:
        node.xid(address, fault.xid)
    run.trouble(name, ends)
    if calm and fault.taints:
        what = f"{' or '.join(sorted(fault.taints))} on {address}"
        run.node.until(lambda: fault.taints & soakchecks.taints(run).get(address, set()), what)
        run.taints[address] = fault.taints
    return f"{address} {fault.name}"


# who uses a GPU


def a_gpu_is_used(run: Run) -> str:
    """By a program of a claim, or by one that was asked of nobody. The claim is counted as one that works."""
    held = [
        (claim, device)
        for uid, record in sorted(run.node.records().items())
        if (claim := run.claims.get(uid)) is not None and claim.prepared and claim.exists and not claim.admin
        for device in record.devices
        if device.address not in run.world.spared
    ]
    claim, device = run.chance.choice(held) if held and run.chance.random() < 0.8 else (None, None)
    address = run.gpu() if device is None else device.address
    if f"use of {address}" in run.troubles:
        return "already"
    part = None if device is None else device.partition
    calm = run.calm
    _use(run, address, None if part is None else part.gpu_instance)
    run.modes_left.add(address)  # who ends a partition then leaves the mode to the next claim
    run.trouble(f"use of {address}", lambda: _let_go(run, address))
    if calm and claim is not None and device is not None:
        key = claim.name, device.device
        run.node.until(lambda: run.node.idle_seconds().get(key) == 0, f"{key} to count as one that works")
    return f"{address}, by {claim or 'a program of nobody'}"


def a_used_gpu_is_refused(run: Run) -> str:
    """No mode is switched below a program and no board is taken from it, no partition and no virtual machine ends with
    one in it; as soon as it has ended, all goes on."""
    switches = [place for place in run.pool.free() if _is_switched(run, place)]
    ends = [claim for claim in run.claims.values() if _can_be_used(run, claim)]
    if not run.calm or not (switches or ends):
        return a_gpu_is_used(run)
    if switches and (not ends or run.chance.random() < 0.5):
        claim = run.allocate(run.chance.choice(switches))
        with _used(run, claim):
            run.ask_prepare([claim], CALL_SECONDS)
            _refused(run, claim, was_done=claim.prepared)
        run.prepare(claim)
    else:
        claim = run.chance.choice(ends)
        with _used(run, claim):
            run.ask_unprepare([claim], CALL_SECONDS)
            _refused(run, claim, was_done=claim.uid not in run.claims)
        run.unprepare(claim)
    return str(claim)


def _refused(run: Run, claim: Claim, *, was_done: bool) -> None:
    if was_done:
        raise InvariantError(f"{claim} although a program uses it")
    if not any(words in run.last_error for words in _IN_USE):
        raise InvariantError(f"{claim} was refused with: {run.last_error}")


def _is_switched(run: Run, place: Place) -> bool:
    """Whether its GPU would be another for it: MIG mode is off below a partition, or NVIDIA's driver has a board that
    is for a machine."""
    if place.device.endswith("-vfio"):
        return True
    address = soakchecks.address_of(place.device)
    return address is not None and not run.world.partitions and run.node.node.number(address, "mig_current") == 0


def _can_be_used(run: Run, claim: Claim) -> bool:
    """Whether something would end with it that a program may be in."""
    if not claim.prepared or not claim.exists or claim.admin or claim.replaced or claim.static:
        return False
    return len(claim.places) == 1 and ("-mig-" in claim.places[0].device or claim.places[0].device.endswith("-vfio"))


@contextmanager
def _used(run: Run, claim: Claim) -> Iterator[None]:
    """While a program uses what the claim has, or is to have."""
    device = claim.places[0].device
    address = soakchecks.address_of(device)
    assert address is not None, device
    record = run.node.records().get(claim.uid)
    part = record.devices[0].partition if record is not None else None
    _use(run, address, None if part is None else part.gpu_instance)
    try:
        yield
    finally:
        _let_go(run, address)


def _use(run: Run, address: str, instance: int | None) -> None:
    """A program begins: NVML tells of it, and it has the GPU's file open, or that of its IOMMU group."""
    node, pid = run.node.node, _pid(run, address)
    if node.kernel.driver(address) == soakchecks.VFIO:
        group = (node.root / f"sys/bus/pci/devices/{address}/iommu_group").resolve().name
        opened = f"/dev/vfio/{group}"
    else:
        opened = f"/dev/nvidia{node.number(address, 'minor')}"
        node.set_processes(address, [Process(pid, memory_mib=100, gi=instance)])
        if instance is None:
            node.set_number(address, "utilization_gpu", 90)
    folder = node.root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text("python3\n")
    (folder / "fd/3").symlink_to(opened)


def _pid(run: Run, address: str) -> int:
    """Of the one program that uses a GPU."""
    return _PID + [one.address for one in run.node.node.profile.gpus].index(address)


def _let_go(run: Run, address: str) -> None:
    """The program has ended."""
    node = run.node.node
    node.set_processes(address, ())
    node.set_number(address, "utilization_gpu", 0)
    shutil.rmtree(node.root / f"proc/{_pid(run, address)}")
