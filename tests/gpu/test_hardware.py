"""What must be true of real GPUs. Read only: no setting is changed, nothing is created."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from native.mock import capture, profile, readings
from native.nvml import EventWatcher, NvmlSession, make_backend
from native.nvml.errors import NvmlReturn
from native.nvml.eventtypes import HEALTH_EVENTS, NvmlEvent
from native.nvml.healthtypes import GpuHealth
from native.nvml.protocol import Nvml
from native.nvml.types import GpuSnapshot, NvmlSnapshot
from native.pci import canonical_address
from native.pcipath import PathClass, path_class
from native.sysfs import HostTopology, PciDevice


def still(snapshot: NvmlSnapshot) -> NvmlSnapshot:
    """The snapshot without what moves by itself on a machine that is at work."""
    gpus = tuple(msgspec.structs.replace(gpu, memory_reserved=None) for gpu in snapshot.gpus)
    return msgspec.structs.replace(snapshot, gpus=gpus)


def addresses(library: Nvml) -> list[str]:
    return [address for address in library.addresses() if address is not None]


def test_both_backends_read_the_same(library_path: Path) -> None:
    snapshots = []
    for name in ("cffi", "pynvml"):
        library = make_backend(library_path, name)
        library.open()
        snapshots.append(still(library.snapshot(addresses(library), mig=True)))
        library.close()
    assert snapshots[0] == snapshots[1]


def test_by_index_and_by_address_the_gpus_are_the_same(library: Nvml) -> None:
    assert still(library.snapshot(None)) == still(library.snapshot(addresses(library)))


def test_versions_are_told(library: Nvml) -> None:
    snapshot = library.snapshot(None)
    assert re.fullmatch(r"\d{3}(\.\d+)+.*", snapshot.driver_version or "")
    assert snapshot.nvml_version
    kernel = Path("/proc/driver/nvidia/version")
    if kernel.exists():
        assert f" {snapshot.driver_version} " in kernel.read_text()


def test_every_gpu_has_an_identity_of_its_own(library: Nvml) -> None:
    gpus = library.snapshot(None).gpus
    assert all(re.fullmatch(r"GPU-[0-9a-f-]{36}", gpu.uuid or "") for gpu in gpus)
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert all(gpu.address == canonical_address(gpu.address or "") for gpu in gpus)
    assert len({gpu.address for gpu in gpus}) == len(gpus)
    assert all(gpu.name for gpu in gpus)
    assert all((gpu.pci_device_id or 0) & 0xFFFF == 0x10DE for gpu in gpus)


def test_what_is_not_told_has_a_code(library: Nvml) -> None:
    for gpu in library.snapshot(None).gpus:
        for field in GpuSnapshot.__struct_fields__:
            if getattr(gpu, field) is None and field != "mig":
                assert gpu.codes[field] != NvmlReturn.SUCCESS
        assert set(gpu.codes.values()) <= {NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.NO_DATA}


def bus(host: HostTopology, gpu: GpuSnapshot) -> PciDevice:
    found = [device for device in host.gpus if device.address == gpu.address]
    if not found:
        pytest.skip(f"/sys does not show GPU {gpu.address}")
    return found[0]


def test_nvml_and_the_bus_agree_on_each_gpu(library: Nvml, host: HostTopology) -> None:
    for gpu in library.snapshot(None).gpus:
        device = bus(host, gpu)
        assert gpu.pci_device_id == (device.device or 0) << 16 | device.vendor
        assert device.driver == "nvidia"
        if gpu.minor_number is not None:
            assert Path(f"/dev/nvidia{gpu.minor_number}").exists() or not Path("/dev/nvidiactl").exists()


def test_nvml_and_the_bus_agree_on_distances(library: Nvml, host: HostTopology) -> None:
    asked = addresses(library)
    if len(asked) < 2:
        pytest.skip("one GPU has no distances")
    lay = library.topology(asked)
    places = {device.address: device.place for device in host.gpus}
    for (a, b), level in lay.levels.items():
        assert PathClass(level) is path_class(places[a], places[b]), f"{a} to {b}"


def test_nvml_and_the_bus_agree_on_numa_nodes(library: Nvml, host: HostTopology) -> None:
    lay = library.topology(addresses(library))
    for device in host.gpus:
        if device.numa_node is not None and device.address in lay.memory_nodes:
            assert device.numa_node in lay.memory_nodes[device.address]


def test_links_are_numbered_and_their_far_ends_are_addresses(library: Nvml) -> None:
    for gpu in library.snapshot(None).gpus:
        links = gpu.nvlinks or ()
        assert [link.index for link in links] == sorted({link.index for link in links})
        for link in links:
            assert link.remote_address is None or link.remote_address == canonical_address(link.remote_address)


def test_partitions_lie_within_their_gpu_and_apart(library: Nvml) -> None:
    for gpu in library.snapshot(None, mig=True).gpus:
        if gpu.mig is None or not gpu.mig.profiles:
            continue
        ids = [profile.id for profile in gpu.mig.profiles]
        assert len(set(ids)) == len(ids)
        slices = max(place.start + place.size for one in gpu.mig.profiles for place in one.placements or ())
        taken: set[int] = set()
        for instance in gpu.mig.instances or ():
            held = set(range(instance.placement.start, instance.placement.start + instance.placement.size))
            assert max(held) < slices
            assert not held & taken
            taken |= held


def test_health_is_told_and_the_gpu_is_the_same(library: Nvml) -> None:
    snapshot = library.snapshot(None)
    health = library.health([gpu.address for gpu in snapshot.gpus if gpu.address is not None])
    assert [one.uuid for one in health] == [gpu.uuid for gpu in snapshot.gpus]
    for one in health:
        assert one.temperature is None or -40 < one.temperature < 130
        assert one.memory_used is None or one.memory_used >= 0


def test_events_can_be_registered_and_a_quiet_wait_ends(library: Nvml) -> None:
    library.open_events()
    kinds = [library.register_events(address, HEALTH_EVENTS) for address in addresses(library)]
    assert all(kind & ~HEALTH_EVENTS == 0 for kind in kinds)
    begin = time.monotonic()
    event = library.wait_event(0.5)
    assert event is not None or time.monotonic() - begin < 5
    library.close_events()


def test_session_and_watcher_work_side_by_side(library_path: Path) -> None:
    events: list[NvmlEvent] = []
    watcher = EventWatcher(library_path, events.append)
    with NvmlSession(library_path) as session:
        session.accompany(watcher)
        first = session.snapshot(None, deadline=120)
        watcher.watch(gpu.address for gpu in first.gpus if gpu.address is not None)
        watcher.start()
        assert still(session.snapshot(None, deadline=120)) == still(first)
        assert watcher.close(30)
    assert session.close()


def test_topology_is_read_alike_by_both_backends(library_path: Path) -> None:
    found = []
    for name in ("cffi", "pynvml"):
        library = make_backend(library_path, name)
        library.open()
        found.append(library.topology(addresses(library)))
        library.close()
    assert found[0] == found[1]


def test_a_gpu_that_is_not_there_is_an_error_that_names_it(library: Nvml) -> None:
    nowhere = "0000:ff:1f.0"
    assert nowhere not in addresses(library)
    (gpu,) = library.snapshot([nowhere]).gpus
    assert (gpu.address, gpu.uuid) == (nowhere, None)
    assert gpu.codes["handle"] in {NvmlReturn.NOT_FOUND, NvmlReturn.INVALID_ARGUMENT}


def test_reading_again_and_again_keeps_nothing_open(library_path: Path) -> None:
    library = make_backend(library_path)
    library.open()
    library.snapshot(None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        library.snapshot(None)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    library.close()


def test_what_was_seen_is_left_for_a_profile(library: Nvml, library_path: Path, host: HostTopology) -> None:
    """Writes what a bug report and a profile of the mock need, where ``GPUDRA_CAPTURE`` names a file."""
    target = os.environ.get("GPUDRA_CAPTURE")
    if not target:
        pytest.skip("set GPUDRA_CAPTURE to a file to have the readings of this machine written there")
    asked = addresses(library)
    snapshot, lay = library.snapshot(asked, mig=True), library.topology(asked)
    # who works on the machine stays out
    quiet = {name: None for name in GpuHealth.__struct_fields__ if name.endswith("_processes")}
    health = tuple(msgspec.structs.replace(one, **quiet) for one in library.health(asked))
    more = {"library": str(library_path), "health": health, "levels": lay.levels, "nvlink": lay.nvlink}
    Path(target).write_text(readings.dump(snapshot, host, **more))
    assert readings.load(Path(target).read_text()) == (snapshot, host)
    profile.parse(capture.document(snapshot, host, name="captured"))
