"""What must hold after every event, and what must hold beside that when the node is at rest."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from driver.model import PciAddress
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.remnant import is_remnant
from kubeletplugin.publisher.queue import RepairPace
from tests.soak import soaktraces
from tests.soak.soakmodel import LEVELS, Claim
from tests.support.agents import DRIVER
from tests.support.cdispecs import given

if TYPE_CHECKING:
    from tests.soak.soakrun import Run

_PARTITION = re.compile(r"\A(gpu-.+)-mig-.+-(\d+)-(\d+)\Z")
_MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")
_MACHINE = re.compile(r"\Agpu-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-9a-f])-vfio\Z")
_PART = re.compile(r"\Agpu-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-9a-f])-mig-")
_EXCLUSIVE_PROCESS = 3
_REPAIR_SECONDS = 2 * RepairPace.CAP
"""Slices that were deleted again and again are made again ever more slowly, in the end after ``CAP``."""
MEMORY = "memory of "
"""Begins the names of troubles that change nothing but what a board says of itself."""
NVIDIA = "nvidia"
VFIO = "vfio-pci"


def after_event(run: Run) -> None:
    """What no event may break, whatever is wrong meanwhile."""
    assert run.node.alive(), "the agent ended"
    records = run.node.records()
    for uid, record in records.items():
        if is_remnant(record):  # of a claim that was unprepared, or is prepared elsewhere by now
            continue
        claim = run.claims.get(uid)
        assert claim is not None, f"a record of nobody's claim: {record}"
        assert claim.ids or claim.unsure, f"a record of a claim that was never asked for: {record}"
    _nothing_twice(run, records)
    for claim in run.claims.values():
        if claim.prepared and claim.exists:
            assert claim.uid in records, f"{claim} is prepared without a record"
            phase = records[claim.uid].phase
            assert phase is Phase.PREPARED, f"{claim} is prepared, its record says {phase}"
    if run.calm:
        _hardware_behind(run, records)
    if run.troubles and all(name.startswith(MEMORY) for name in run.troubles):
        _taints_stand(run)


def _hardware_behind(run: Run, records: dict[str, ClaimRecord]) -> None:
    """Nothing is wrong with the node: then each prepared claim has its hardware and its file at any time, and nobody
    else has any."""
    stands, drivers = standing(run), soaktraces.drivers(run)
    known = {
        (_name(device.address), device.partition.profile_id, device.partition.placement.start)
        for record in records.values()
        for device in record.devices
        if device.partition is not None
    }
    assert set(stands) <= known, f"{set(stands) - known} stand without a record"
    for claim in run.claims.values():
        if not claim.prepared or not claim.exists:
            continue
        lacks = set(_partitions(claim)) - set(stands)
        assert not lacks, f"{claim} is prepared without {lacks}"
        assert _spec(run, claim.uid).exists(), f"{claim} is prepared without its CDI file"
        for address in _machines(claim):
            assert drivers[address] == VFIO, f"{claim} is prepared, and {address} is bound to {drivers[address]}"


def taints(run: Run) -> dict[str, set[str]]:
    """Address -> keys of the taints that its whole GPU has, as far as the pool is complete."""
    addresses = {_name(gpu.address): gpu.address for gpu in run.node.node.profile.gpus}
    return {
        addresses[device["name"]]: {taint["key"] for taint in device.get("taints", ())}
        for device in run.node.devices()
        if device["name"] in addresses
    }


def _taints_stand(run: Run) -> None:
    """Nothing is wrong but what GPUs say of themselves: each has its taint for as long as its fault lasts."""
    found = taints(run)
    lacking = {address: keys for address, keys in run.taints.items() if not keys & found.get(address, keys)}
    assert not lacking, f"no taint on {lacking}, the taints are {found}"


def _nothing_twice(run: Run, records: dict[str, ClaimRecord]) -> None:
    held: dict[tuple[str, str], str] = {}
    for uid, record in records.items():
        for device in record.devices:
            if device.admin_access:
                continue
            for atom in run.pool.atoms(device.device, device.share_id):
                other = held.setdefault(atom, uid)
                assert other == uid, f"{atom} is in two claims: {records[other]} and {record}"


def _agree(run: Run, what: str, found: Callable[[], object], wanted: object) -> None:
    """Wait until it is so."""
    try:
        run.node.until(lambda: found() == wanted, what)
    except AssertionError as error:
        seen = found()
        if isinstance(wanted, set) and isinstance(seen, set):
            raise AssertionError(f"{what}: missing {wanted - seen}, too many {seen - wanted}; {error}") from None
        raise AssertionError(f"{what}: wanted {wanted}, found {seen}; {error}") from None


def whole(run: Run) -> None:
    """Wait until all devices of the node are published, and none has a taint."""

    def taints() -> list[tuple[str, str]]:
        return [(one["name"], taint["key"]) for one in run.node.devices() for taint in one.get("taints", ())]

    theirs = set(_MIG_UUID.findall(run.node.node.nvidia_smi("-L"))) if run.world.partitions else set()

    def is_whole() -> bool:
        devices = run.node.devices()
        uuids = {one["attributes"]["uuid"]["string"] for one in devices if "uuid" in one["attributes"]}
        names = {one["name"] for one in devices}
        lent = set(run.pool.names) - names
        return len(devices) + len(lent) == run.world.devices and theirs <= uuids and not taints() and lent <= away()

    def away() -> set[str]:
        """GPUs that are not NVML's while a virtual machine has them, or may have."""
        return {_name(address) for claim in run.claims.values() for address in _machines(claim)}

    try:
        run.node.until(is_whole, "the whole pool", patience=_REPAIR_SECONDS)
    except AssertionError as error:
        found = f"{len(run.node.devices())} of {run.world.devices} devices, {taints()}"
        raise AssertionError(f"not the whole pool: {found}; {error}") from None


def at_rest(run: Run) -> None:
    """Records, files, hardware, programs and journal are those of the prepared claims, and of nobody else."""
    node = run.node
    after_event(run)
    prepared = {claim.uid: claim for claim in run.claims.values() if claim.prepared}
    # What is left of a claim on a GPU that was lost goes with the reading that finds the GPU again.
    _agree(run, "records", lambda: sorted(node.records()), sorted(prepared))
    records = node.records()
    files = {f"{DRIVER}-claim_{uid}.json" for uid in prepared} | run.foreign
    _agree(run, "CDI files", lambda: {path.name for path in node.specs()} - _metadata(run), files)
    of_nobody = lambda: [path for path in _metadata_folders(run) if path not in prepared]  # noqa: E731 - waited for
    _agree(run, "metadata of claims that are gone", of_nobody, [])
    ids = {name for claim in prepared.values() for name in claim.ids}
    _agree(run, "CDI devices of prepared claims that no file has", lambda: ids - _names_of_specs(run), set())
    _files_give_the_right_hardware(run, prepared)
    wanted = sorted(where for claim in prepared.values() for where in _partitions(claim))
    _agree(run, "partitions", lambda: standing(run), wanted)
    _agree(run, "MPS daemons", lambda: len(node.daemon_folders()), _daemons(run, prepared))
    _agree(run, "(compute mode, time slice)", lambda: _settings(run), _wanted_settings(run, prepared))
    _agree(run, "drivers of the GPUs", lambda: soaktraces.drivers(run), _wanted_drivers(run, prepared))
    _agree(run, "MIG modes", lambda: _wrong_mig_modes(run), {})
    programs = [soaktraces.CONTROL] * _daemons(run, prepared)
    _agree(run, "programs that run for the agent", node.programs, programs)
    _agree(run, "the journal's claims", node.replayed, {uid: str(record.phase) for uid, record in records.items()})
    _agree(run, "devices whose use is counted", lambda: _counted(run), _held(run, records))
    _folders(run, prepared)
    for entry in node.log_entries():
        assert "exception" not in entry, f"an exception that nobody expected: {entry['message']}\n{entry['exception']}"


def _held(run: Run, records: Mapping[str, ClaimRecord]) -> dict[tuple[str, str], bool]:
    """(claim, device) -> whether it is idle: nobody uses anything at rest."""
    return {
        (run.claims[uid].name, device.device): True
        for uid, record in records.items()
        for device in record.devices
        if not device.admin_access and not device.device.endswith("-vfio")
    }


def _counted(run: Run) -> dict[tuple[str, str], bool]:
    """The same as the agent has it. Of what a virtual machine has NVML cannot tell."""
    found = run.node.idle_seconds().items()
    return {key: seconds > 0 for key, seconds in found if not key[1].endswith("-vfio")}


def _metadata(run: Run) -> set[str]:
    """CDI files that bring metadata into containers."""
    return {path.name for path in run.node.cdi.glob(f"{DRIVER}_metadata_*")}


def _metadata_folders(run: Run) -> set[str]:
    """The UIDs of claims that have metadata, in either place."""
    named = {name.removeprefix(f"{DRIVER}_metadata_").rpartition("_")[0] for name in _metadata(run)}
    return named | {path.name for path in (run.node.plugins / DRIVER / "dra-device-metadata").glob("*")}


def _names_of_specs(run: Run) -> set[str]:
    """The CDI devices that a runtime finds."""
    found = set()
    for path in run.node.specs():
        if path.name in run.foreign or path.suffix != ".json":  # one that is being written has another name
            continue
        with contextlib.suppress(FileNotFoundError):  # it has just gone
            spec = json.loads(path.read_text())
            found |= {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    return found


def _files_give_the_right_hardware(run: Run, prepared: dict[str, Claim]) -> None:
    uuids = {gpu.address: gpu.uuid for gpu in run.node.node.profile.gpus}
    records = run.node.records()
    for uid, claim in prepared.items():
        spec = json.loads(_spec(run, uid).read_text())
        names = {f"{spec['kind']}={device['name']}" for device in given(spec)}
        assert names == {one for one in claim.ids if "/metadata=" not in one}, f"{claim} has {names} in its file"
        for device in records[uid].devices:
            assert device.uuid in json.dumps(given(spec)), f"{claim}: its file does not speak of {device.uuid}"
            if "-mig-" not in device.device and not device.device.endswith("-vfio"):
                assert uuids[device.address] == device.uuid, f"{claim} has {device.uuid} at {device.address}"


def _partitions(claim: Claim) -> list[tuple[str, int, int]]:
    """(GPU, profile id, start) of what stands for a claim."""
    if claim.admin or claim.static:
        return []
    found = (_PARTITION.match(place.device) for place in claim.places)
    return [(match[1], int(match[2]), int(match[3])) for match in found if match]


def _machines(claim: Claim) -> list[str]:
    """PCI addresses of the GPUs that a claim hands to a virtual machine."""
    found = (_address(_MACHINE, place.device) for place in claim.places) if not claim.admin else ()
    return [address for address in found if address is not None]


def address_of(device: str) -> str | None:
    """The PCI address of the GPU of a partition, or of one for a virtual machine; None: it is neither."""
    return _address(_MACHINE, device) or _address(_PART, device)


def _address(pattern: re.Pattern[str], device: str) -> str | None:
    match = pattern.match(device)
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}" if match else None


def _spec(run: Run, uid: str) -> Path:
    return run.node.cdi / f"{DRIVER}-claim_{uid}.json"


def _wanted_drivers(run: Run, prepared: dict[str, Claim]) -> dict[str, str | None]:
    lent = {address for claim in prepared.values() for address in _machines(claim)}
    return {gpu.address: VFIO if gpu.address in lent else NVIDIA for gpu in run.node.node.profile.gpus}


def _wrong_mig_modes(run: Run) -> dict[str, int]:
    """GPUs whose mode is on without a partition, or off below one; where it was on at first it may be either."""
    with_partitions = {gpu for gpu, _profile, _start in standing(run)}
    modes = soaktraces.mig_modes(run, lambda address: _is_known(run, address) and address != _theirs(run))
    # A partition that is made meanwhile finds the mode on, and leaves it so: the claim for the whole GPU ends it.
    run.modes_left -= {address for address, mode in modes.items() if mode == 0}
    return {
        address: mode
        for address, mode in modes.items()
        if mode != int(_name(address) in with_partitions)
        and mode != run.mig_modes[address]
        and not (mode == 1 and address in run.modes_left)
    }


def _theirs(run: Run) -> str | None:
    """The GPU on which an administrator makes partitions."""
    return run.world.partitions[0] if run.world.partitions else None


def standing(run: Run) -> list[tuple[str, int, int]]:
    """What stands on the node beside what an administrator made."""
    theirs = _theirs(run)
    return sorted(
        (_name(gpu.address), one.profile_id, one.start)
        for gpu in run.node.node.profile.gpus
        for one in run.node.node.instances(gpu.address)
        if gpu.address != theirs
    )


def _daemons(run: Run, prepared: dict[str, Claim]) -> int:
    mps = [claim for claim in prepared.values() if claim.config is not None and claim.config.strategy == "MPS"]
    shared = {place.device for claim in mps for place in claim.places if place.share is not None}
    return len(shared) + sum(place.share is None for claim in mps for place in claim.places)


def _name(address: str) -> str:
    return f"gpu-{PciAddress.parse(address).label}"


def _is_known(run: Run, address: str) -> bool:
    """Whether the modes of this GPU are as the agent believes them to be."""
    return address not in run.stale


def _settings(run: Run) -> dict[str, tuple[int, int]]:
    """GPU -> (compute mode, time slice)."""
    return {
        gpu.address: (run.node.node.number(gpu.address, "compute_mode"), run.node.node.number(gpu.address, "timeslice"))
        for gpu in run.node.node.profile.gpus
        if _is_known(run, gpu.address)
    }


def _wanted_settings(run: Run, prepared: dict[str, Claim]) -> dict[str, tuple[int, int]]:
    found = {gpu.address: [0, 0] for gpu in run.node.node.profile.gpus}
    names = {_name(address): address for address in found}
    for claim in prepared.values():
        for place in claim.places if claim.config is not None else ():
            assert claim.config is not None
            if place.device not in names:
                continue
            if claim.config.strategy == "MPS":
                found[names[place.device]][0] = _EXCLUSIVE_PROCESS
            elif claim.config.interval is not None:
                found[names[place.device]][1] = LEVELS[claim.config.interval]
    return {address: (mode, level) for address, (mode, level) in found.items() if _is_known(run, address)}


def _folders(run: Run, prepared: dict[str, Claim]) -> None:
    """No file that is not accounted for, in any folder of ours."""
    node = run.node
    node.until(lambda: len(list(node.registry.glob("*.sock"))) == 1, "one registration socket")
    node.until(lambda: len(list((node.plugins / DRIVER).glob("*.sock"))) == 1, "one DRA socket")
    _agree(run, "files that are nobody's", lambda: soaktraces.strange_files(run, prepared), [])
    assert soaktraces.journal_fits(run), f"the journal has {soaktraces.journal_bytes(run)} bytes"
    # A partition that is made again after a reset has its file written anew, which may be at this very moment.
    _agree(run, "hidden files in the CDI folder", lambda: [path.name for path in node.cdi.glob(".*")], [])


def as_before(run: Run) -> None:
    """All claims are undone: the node is as it was before the first of them."""
    node = run.node
    _agree(run, "records without claims", node.records, {})
    _agree(run, "CDI files without claims", lambda: {path.name for path in node.specs()}, run.foreign)
    _agree(run, "metadata without claims", lambda: _metadata_folders(run), set())
    _agree(run, "partitions without claims", lambda: standing(run), [])
    _agree(run, "MPS daemons without claims", node.daemon_folders, [])
    _agree(run, "programs without claims", node.programs, [])
    _agree(run, "settings without claims", lambda: set(_settings(run).values()) - {(0, 0)}, set())
    _agree(run, "drivers without claims", lambda: set(soaktraces.drivers(run).values()), {NVIDIA})
    _agree(run, "devices without claims", lambda: {device["name"] for device in node.devices()}, set(run.pool.names))


def at_the_end(run: Run) -> None:
    """The agent leaves the node in order."""
    node = run.node
    code = node.end()
    assert code == 0, f"the agent ended with {code}"
    left = [*node.programs(), *node.registry.iterdir(), *(node.plugins / DRIVER).glob("*.sock")]
    assert not left, f"the agent left {left}"
