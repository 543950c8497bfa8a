"""A mock node whose driver is wired as the agent wires it, in this process: it lives, ends without a word, comes back.

``picture`` gives everything that a claim can leave behind (hardware, daemons, files, records, slices) as one value in
which only what is different in each run anyway (UUIDs of partitions, process ids, the boot id) has been made equal.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import stat
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import native.vfio
from driver.bridge import own_partitions, with_owners
from driver.making import make_preparer
from driver.model import MigSupport, NodeInventory
from driver.names import partition_name
from driver.node import NodePaths, NodeReader
from driver.offering import Offering
from driver.prepare import ClaimError, ClaimRef, Preparer, read_boot_id
from driver.prepare.checkpoint import stored
from driver.prepare.records import record_to_json
from driver.publish import DeviceOrder, build_pool, pool_name
from driver.settings import Settings
from native.mock import MockNode, layout, tree
from native.nvml.session import NvmlSession
from native.vfio import VfioBus

DRIVER = "gpu.nvidia.com"
NODE = "node-a"
POOL = pool_name(NODE, DRIVER)
PROFILE = "h100-nvl"
_COUNTED = frozenset({"mig_instances_made", "plugged"})
"""Numbers of the mock that only ever grow."""

JSON: TypeAlias = dict[str, Any]


class Crash(BaseException):
    """The process ends here."""


class Life:
    """One driver process: what ``driver.agent`` does with claims, from its start to its end."""

    def __init__(self, node: CrashNode) -> None:
        self._node = node
        self._reader: NodeReader | None = None
        self.seen: NodeInventory | None = None
        settings = node.settings
        self.offering = Offering(settings, lambda: self.seen, self._let_go)
        self.preparer: Preparer = make_preparer(
            settings,
            POOL,
            read_boot_id(Path(settings.proc_root)),
            lambda: self.seen,
            self._session,
            self.offering,
            node.passed,
        )

    def begin(self) -> None:
        """All that comes before the registration."""
        self._recover()
        self.offering.resume(self.preparer.prepared())
        for thread in threading.enumerate():
            if thread.name == "mps-resume":
                thread.join(30)

    def read(self) -> None:
        """A reading of the node, and what follows from it."""
        if self._reader is None:
            settings = self._node.settings
            paths = NodePaths(Path(settings.driver_root), Path(settings.sys_root), Path(settings.proc_root))
            mig = settings.mig == MigSupport.DYNAMIC
            self._reader = NodeReader(
                paths, deadline=settings.nvml_deadline_seconds, mig=mig, state_dir=settings.state_dir
            )
        before = own_partitions(self.preparer.prepared())
        inventory = self._reader.read()
        self.seen = with_owners(inventory, before | own_partitions(self.preparer.prepared()))
        self._recover()

    def prepare(self, *claims: JSON) -> list[object]:
        documents = {claim["metadata"]["uid"]: claim for claim in claims}
        answers = self.preparer.prepare(documents)
        return [answers[uid] for uid in documents]

    def unprepare(self, *uids: str) -> list[ClaimError | None]:
        answers = self.preparer.unprepare([ref(uid) for uid in uids])
        return [answers[uid] for uid in uids]

    def end(self) -> None:
        """What the kernel does for a process that was killed: nothing of it runs any more."""
        self.offering.close()
        self._let_go()

    def _recover(self) -> None:
        self.problems = self.preparer.recover().problems
        self.offering.recovered(self.preparer.prepared)

    def _session(self) -> NvmlSession | None:
        return None if self._reader is None else self._reader.session

    def _let_go(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class CrashNode:
    """The node, its files below ``base``, and the driver that lives on it now.

    Args:
        base: a short path, for sockets; a node that stands there already is taken as it is.
        settings: of the driver, beside the usual ones.
        patch: told how the driver's writes to sysfs are done.
        boot: what the administrator's services do at each boot, before the driver starts.
    """

    def __init__(
        self,
        base: Path,
        settings: Mapping[str, Any],
        patch: pytest.MonkeyPatch,
        boot: Callable[[CrashNode], None] = lambda _node: None,
    ) -> None:
        self.base = base
        self._boot = boot
        fresh = not (base / "node").exists()
        self.mock = MockNode.create(base / "node", PROFILE) if fresh else MockNode.open(base / "node")
        self.mock.activate()
        bind_by_mock(self.mock, patch)
        root = self.mock.root
        self.settings = Settings(
            node_name=NODE,
            plugins_dir=str(base / "plugins"),
            registry_dir=str(base / "registry"),
            cdi_dir=str(base / "cdi"),
            mps_dir=str(base / "mps"),
            driver_root=str(root),
            sys_root=str(root / "sys"),
            proc_root=str(root / "proc"),
            dev_root=str(root / "dev"),
            plain_device_nodes=True,
            **settings,
        )
        self.faults: Callable[[str], None] | None = None
        if fresh:
            self.mock.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
            self._boot(self)
        self.life = Life(self)

    def passed(self, point: str) -> None:
        """The driver passes a crash point."""
        if self.faults is not None:
            self.faults(point)

    # what happens to a node

    def die_at(self, wanted: str, work: Callable[[], object]) -> None:
        """Let the driver do something in which it ends at this point."""

        def stop(point: str) -> None:
            if point == wanted:
                raise Crash

        self.faults = stop
        try:
            work()
        except Crash:
            return
        finally:
            self.faults = None
            self.life.end()
        raise AssertionError(f"the point {wanted} was not passed")

    def start(self) -> Life:
        """A driver process starts, and has not read the node yet."""
        self.life.end()
        self.life = Life(self)
        self.life.begin()
        return self.life

    def restart(self) -> Life:
        """A driver process starts, and has read the node."""
        life = self.start()
        life.read()
        return life

    def reboot(self) -> None:
        """Nothing is left of tmpfs folders, daemons, MIG, drivers that were bound; the boot id is another."""
        self.life.end()
        for pid_file in (self.base / "mps").glob("*/*/pipe/*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        for folder in ("mps", "cdi"):
            shutil.rmtree(self.base / folder, ignore_errors=True)
        unbind_all(self.mock)
        self.mock.reload_driver()
        boot_id = self.mock.root / "proc/sys/kernel/random/boot_id"
        count = int(hashlib.sha256(boot_id.read_bytes()).hexdigest(), 16)
        boot_id.write_text(f"{count % 16**8:08x}-0000-4000-8000-000000000000\n")
        self._boot(self)

    # names

    def gpu(self, index: int = 0) -> str:
        """The device name of a GPU."""
        assert self.life.seen is not None
        return self.life.seen.gpus[index].name

    def part(self, profile: str, start: int, index: int = 0) -> str:
        """The device name of a partition."""
        assert self.life.seen is not None
        gpu = self.life.seen.gpus[index]
        found = next(one for one in gpu.mig_profiles if one.name == profile)
        return partition_name(gpu.name, found.name, found.profile_id, start)

    # what can be seen

    def picture(self) -> JSON:
        """Everything, as one value."""
        seen = {
            "hardware": hardware(self.mock),
            "daemons": self._daemons(),
            "files": dict(self._files()),
            "specs": {path.name: json.loads(path.read_bytes()) for path in sorted((self.base / "cdi").glob("*.json"))},
            "records": self._records(),
            "slices": self._slices(),
            "problems": [f"{problem.subject}: {problem.message}" for problem in self.life.problems],
        }
        text = json.dumps(seen, sort_keys=True, indent=1)
        for uuid, name in self._own_names().items():
            text = text.replace(uuid, name)
        picture: JSON = json.loads(text)
        return picture

    def _daemons(self) -> JSON:
        """Settings of the MPS daemons that run."""
        found: JSON = {}
        for pid_file in sorted((self.base / "mps").glob("*/*/pipe/*.pid")):
            pid = int(pid_file.read_text())
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            devices = [entry.decode() for entry in environment if entry.startswith(b"CUDA_VISIBLE_DEVICES=")]
            found[pid_file.parent.parent.name] = devices
        return found

    def _files(self) -> Iterator[tuple[str, str]]:
        """Every file and folder of ours, with its mode; not the folders of all daemons, which come with the first."""
        for folder in ("plugins", "cdi", f"mps/{DRIVER}"):
            for path in sorted((self.base / folder).rglob("*")):
                yield str(path.relative_to(self.base)), stat.filemode(path.lstat().st_mode)

    def _records(self) -> JSON:
        """The checkpoint's records, as they stand in the file."""
        boot_id = read_boot_id(Path(self.settings.proc_root))
        found = {}
        state = stored(self.settings.state_dir)
        assert state is not None
        for uid, record in sorted(state.records.items()):
            document = record_to_json(record)
            document["bootID"] = "this" if record.boot_id == boot_id else record.boot_id
            spec = self.base / "cdi" / f"{DRIVER}-claim_{uid}.json"
            if spec.exists() and hashlib.sha256(spec.read_bytes()).hexdigest() == record.spec_digest:
                document["specDigest"] = "as the file"
            found[uid] = document
        return found

    def _slices(self) -> JSON:
        life = self.life
        assert life.seen is not None
        inventory = life.offering.offered(life.seen, life.preparer.prepared())
        pool = build_pool(
            inventory,
            node_name=NODE,
            driver_name=DRIVER,
            mig=MigSupport(self.settings.mig),
            order=DeviceOrder(self.settings.device_order),
            counters=True,
        )
        return {"counters": pool.counters, "devices": pool.slices}

    def _own_names(self) -> dict[str, str]:
        """UUIDs of MIG devices, which are new each time -> their place."""
        assert self.life.seen is not None
        return {
            one.uuid: f"MIG-{gpu.name}-{one.gpu_instance}"
            for gpu in self.life.seen.gpus
            for one in gpu.partitions
            if one.uuid is not None
        }

    def close(self) -> None:
        """End the driver and the daemons."""
        self.reboot()


@functools.cache
def _places() -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """Where the first GPU begins in a node file, how far it is to the next one, and the place of each number in it."""
    numbers = [name for name in MockNode.numbers() if name not in _COUNTED]
    first = layout.HEADER.size + layout.RULE.size * layout.RULE_CAPACITY
    return first, layout.GPU.size, tuple((name, layout.GPU.offset(name)) for name in numbers)


def hardware(mock: MockNode) -> JSON:
    """All that can be seen of the GPUs: settings, instances, drivers, capability files, device nodes."""
    found: JSON = {}
    data = (mock.root / tree.NODE_FILE).read_bytes()
    first, size, places = _places()
    for index, gpu in enumerate(mock.profile.gpus):
        numbers = {name: struct.unpack_from("=q", data, first + index * size + place)[0] for name, place in places}
        found[gpu.address] = {"numbers": numbers, "instances": [repr(one) for one in mock.instances(gpu.address)]}
    devices = mock.root / "sys/bus/pci/devices"
    for device in mock.profile.devices:
        override = devices / device.address / "driver_override"
        word = override.read_text().strip() if override.exists() else ""
        found[f"driver of {device.address}"] = [mock.kernel.driver(device.address), word]
    capabilities = mock.root / "proc/driver/nvidia/capabilities"
    found["capabilities"] = {
        str(path.relative_to(capabilities)): path.read_text() for path in sorted(capabilities.rglob("access"))
    }
    found["device nodes"] = sorted(str(path.relative_to(mock.root)) for path in (mock.root / "dev").rglob("*"))
    return found


def unbind_all(mock: MockNode) -> None:
    """What a reboot does to drivers that were bound."""
    devices = mock.root / "sys/bus/pci/devices"
    for device in mock.profile.devices:
        address, kernel = device.address, mock.kernel
        if kernel.driver(address) == "vfio-pci":
            kernel.write(devices / address / "driver_override", "\n")
            kernel.write(devices / address / "driver/unbind", address)
            kernel.write(devices.parent / "drivers_probe", address)
        elif (devices / address / "driver_override").exists():
            kernel.write(devices / address / "driver_override", "\n")


def ref(uid: str) -> ClaimRef:
    return ClaimRef("ns", f"claim-{uid}", uid)


def claim(uid: str, results: Collection[JSON], configs: Collection[JSON] = ()) -> JSON:
    """An allocated ResourceClaim; each result is completed with pool, driver and, where it has none, a request."""
    filled = [
        {"request": f"r{number}", "driver": DRIVER, "pool": POOL, **result} for number, result in enumerate(results)
    ]
    entries = [
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}} for parameters in configs
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": filled, "config": entries}}},
    }


def bind_by_mock(node: MockNode, patch: pytest.MonkeyPatch) -> None:
    """Let what the driver writes to the mock's sysfs happen: plain files do not act."""
    patch.setattr(native.vfio, "VfioBus", lambda sys_root, dev_root: VfioBus(sys_root, dev_root, node.kernel.write))


def differences(seen: object, wanted: object, where: str = "") -> list[str]:
    """Where two pictures differ, one line for each place."""
    if isinstance(seen, dict) and isinstance(wanted, dict):
        keys = sorted(seen.keys() | wanted.keys())
        return [
            line
            for key in keys
            for line in differences(seen.get(key, "(absent)"), wanted.get(key, "(absent)"), f"{where}/{key}")
        ]
    if isinstance(seen, list) and isinstance(wanted, list) and len(seen) == len(wanted):
        pairs = enumerate(zip(seen, wanted, strict=True))
        return [line for number, (one, other) in pairs for line in differences(one, other, f"{where}/{number}")]
    return [] if seen == wanted else [f"{where}: is {seen!r}, would be {wanted!r}"]
