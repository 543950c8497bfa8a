"""What one look at the node tells, joined to what the journal knows: a look that leaves something out changes nothing.

NVML refuses to list what stands on a GPU, or to say its version; the bus does not show what a function is; a GPU is
lost. None of that says that something is gone. Each function here takes what is known and gives what is known now, in
the words of ``JournalState``; what differs between the two has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driver.journal.state import JournalState

if TYPE_CHECKING:
    from driver.health.verdicts import Verdict
    from driver.model import Gpu, NodeInventory


def driver_entry(known: JournalState, inventory: NodeInventory | None, unavailable: str | None) -> dict[str, Any]:
    """NVIDIA's driver. Neither an inventory nor a reason why there is none: nobody has looked yet."""
    if inventory is None and unavailable is None:
        return dict(known.driver)
    version = (inventory.driver_version if inventory is not None else None) or known.driver.get("version")
    return {"available": unavailable is None, **({"version": version} if version else {})}


def device_states(known: JournalState, inventory: NodeInventory | None) -> dict[str, str]:
    """Device name -> state, for the GPUs of the node. Where the look may lack GPUs, those it lacks are as they were."""
    before = {name: str(entry["state"]) for name, entry in known.devices.items() if "state" in entry}
    if inventory is None:
        return before
    found = {gpu.name: gpu.state.value for gpu in inventory.gpus}
    return found if inventory.gpus_known else {**before, **found}


def partition_entries(known: JournalState, inventory: NodeInventory | None) -> dict[str, dict[str, str]]:
    """The MIG partitions: device name of a GPU -> instance -> UUID."""
    if inventory is None:
        return {name: dict(parts) for name, parts in known.partitions.items()}
    listed = {gpu.name: _partitions(known.partitions.get(gpu.name, {}), gpu) for gpu in inventory.gpus}
    if not inventory.gpus_known:
        listed = {**{name: dict(parts) for name, parts in known.partitions.items()}, **listed}
    return {name: parts for name, parts in listed.items() if parts}


def _partitions(before: Mapping[str, str], gpu: Gpu) -> dict[str, str]:
    """What stands on one GPU.

    Where not all of it is told, what is told is added: a partition in the place of another has taken it, and the others
    are as they were. One without a UUID is no news then, for its UUID may be what was not told. A list that changed
    while it was read shows moments that never were; the next one is read at once.
    """
    if not gpu.mig_settled:
        return dict(before)
    told = {f"{part.gpu_instance}/{part.compute_instance}": part.uuid for part in gpu.partitions}
    if gpu.partitions_known:
        return {instance: str(uuid) for instance, uuid in told.items()}
    return {**before, **{instance: uuid for instance, uuid in told.items() if uuid is not None}}


def device_entries(
    known: JournalState, inventory: NodeInventory | None, verdicts: Mapping[str, Verdict] | None
) -> dict[str, dict[str, Any]]:
    """Devices with their states and what is said of their health.

    Args:
        verdicts: None: not every device was judged yet, so what was said of them stands.
    """
    found: dict[str, dict[str, Any]] = {
        name: {"state": state} for name, state in device_states(known, inventory).items()
    }
    for name, entry in known.devices.items() if verdicts is None else ():
        said: dict[str, Any] = {key: entry[key] for key in ("health", "cause") if key in entry}
        if said:
            found.setdefault(name, {}).update(said)
    for name, verdict in (verdicts or {}).items():
        entry = found.setdefault(name, {})
        entry["health"] = verdict.status.value
        if verdict.word:
            entry["cause"] = verdict.word
    return found


def taint_entries(taints: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, str]]:
    """Taints as the journal's state holds them: device -> key -> ``value:effect``."""
    return {
        name: {str(taint["key"]): f"{taint.get('value', '')}:{taint['effect']}" for taint in some}
        for name, some in taints.items()
        if some
    }
