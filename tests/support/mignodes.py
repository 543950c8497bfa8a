"""A driver on a mock node that MIG divides: its claims are prepared by the real steps over the look-alike library."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from driver.bridge import own_partitions, with_owners
from driver.model import Gpu, MigSupport, NodeInventory
from driver.names import partition_name
from driver.node import NodePaths, NodeReader
from driver.prepare import ClaimError, ClaimRef, CommonEdits, DeviceNodes, Preparer, read_boot_id
from driver.prepare.cdi import CdiMount, ContainerEdits
from driver.prepare.miglook import MigDoor
from driver.prepare.migstep import MigStep
from native.capabilities import capability_minor
from native.devnodes import read_node
from native.mock import MockNode
from tests.support.cdispecs import given

DRIVER = "gpu.nvidia.com"
POOL = "node-a/gpu.nvidia.com"


class OneLibrary:
    """Common edits that every driver has."""

    def common(self, driver_version: str | None) -> CommonEdits:
        return CommonEdits(ContainerEdits(mounts=(CdiMount("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"),)), "one")


def nothing(point: str) -> None:
    """Pass every crash point."""


def not_at_all() -> None:
    """Do nothing."""


@dataclass
class MigNode:
    """A mock node with a driver process, which may be started again over the same state."""

    node: MockNode
    base: Path
    mig: MigSupport = MigSupport.DYNAMIC
    faults: Callable[[str], None] = nothing
    boot: str | None = None
    patience: float = 10.0
    seen: NodeInventory | None = None
    """The inventory that the driver works with: as of the last ``read``."""
    reader: NodeReader | None = None
    asked: int = 0
    """How often the driver asked for another reading."""
    on_ask: Callable[[], None] = not_at_all
    preparer: Preparer = field(init=False)

    def __post_init__(self) -> None:
        self.node.activate()
        self.start()

    def start(self) -> Preparer:
        """A driver process that starts now, without a look at the node."""
        if self.reader is not None:
            self.reader.close()
        paths = NodePaths(self.node.root, self.node.root / "sys", self.node.root / "proc", self.node.library)
        reader = self.reader = NodeReader(paths, mig=self.mig is MigSupport.DYNAMIC)
        nodes = DeviceNodes(
            lambda path: read_node(self.node.root, path),
            require_devices=False,
            capabilities=lambda *ids: capability_minor(self.node.root / "proc", *ids),
        )
        door = MigDoor(lambda: reader.session, 20.0)
        steps = [MigStep(door, self.mig, nodes, self.boot_id, lambda point: self.faults(point), self.ask)]
        self.preparer = Preparer(
            DRIVER,
            POOL,
            self.base / "state",
            self.base / "cdi",
            lambda: self.seen,
            edits=OneLibrary(),
            nodes=nodes,
            steps=steps,
            mig=self.mig,
            boot_id=self.boot_id,
            faults=lambda point: self.faults(point),
            patience=self.patience,
        )
        return self.preparer

    def ask(self) -> None:
        self.asked += 1
        self.on_ask()

    def boot_id(self) -> str | None:
        return self.boot or read_boot_id(self.node.root / "proc")

    def read(self) -> NodeInventory:
        """Look at the node, as the rescan does."""
        assert self.reader is not None
        before = own_partitions(self.preparer.prepared())
        self.seen = with_owners(self.reader.read(), before | own_partitions(self.preparer.prepared()))
        return self.seen

    def reboot(self) -> None:
        """Nothing of the CDI folder and of MIG is left, and the boot id is another."""
        for path in (self.base / "cdi").glob("*"):
            path.unlink()
        self.node.reload_driver()
        self.boot = f"{self.boot_id()}'"

    def gpu(self, index: int = 0) -> Gpu:
        """As the driver sees it."""
        return (self.seen or self.read()).gpus[index]

    def name(self, profile: str, start: int, index: int = 0) -> str:
        """The device name of a partition by NVIDIA's name of its profile."""
        gpu = self.gpu(index)
        found = next(one for one in gpu.mig_profiles if one.name == profile)
        return partition_name(gpu.name, found.name, found.profile_id, start)

    def prepare(self, uid: str, *devices: str, **result: Any) -> Any:
        """Prepare a claim of these devices; an answer of the Preparer's."""
        return self.preparer.prepare({uid: claim(uid, *devices, **result)})[uid]

    def prepared(self, uid: str, *devices: str, **result: Any) -> Sequence[Any]:
        """The same, which must succeed."""
        answer = self.prepare(uid, *devices, **result)
        assert not isinstance(answer, ClaimError), answer
        assert isinstance(answer, tuple)
        return answer

    def refused(self, uid: str, *devices: str, **result: Any) -> ClaimError:
        """The same, which must fail."""
        answer = self.prepare(uid, *devices, **result)
        assert isinstance(answer, ClaimError), answer
        return answer

    def unprepare(self, uid: str) -> ClaimError | None:
        return self.preparer.unprepare([ClaimRef("ns", f"claim-{uid}", uid)])[uid]

    def instances(self, index: int = 0) -> list[tuple[str, int]]:
        """(profile, start) of what stands on a GPU, by place."""
        found = self.node.instances(self.node.profile.gpus[index].address)
        return sorted(((one.profile, one.start) for one in found), key=lambda one: (one[1], one[0]))

    def mode(self, index: int = 0) -> tuple[int, int]:
        """(current, pending) MIG mode."""
        address = self.node.profile.gpus[index].address
        return self.node.number(address, "mig_current"), self.node.number(address, "mig_pending")

    def spec(self, uid: str) -> Path:
        return self.base / "cdi" / f"{DRIVER}-claim_{uid}.json"

    def nothing_left(self) -> None:
        """No instance, no file, no record, no mode."""
        for index in range(len(self.node.profile.gpus)):
            assert self.instances(index) == []
            assert self.mode(index) == (0, 0)
        assert list((self.base / "cdi").glob("*")) == []
        assert self.preparer.prepared() == ()


def claim(uid: str, *devices: str, **changes: Any) -> dict[str, Any]:
    """An allocated ResourceClaim."""
    results = [
        {"request": f"r{number}", "driver": DRIVER, "pool": POOL, "device": device, **changes}
        for number, device in enumerate(devices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": results, "config": []}}},
    }


def listed(node: MigNode, uid: str, folder: Path) -> list[str]:
    """What ``nvidia-smi -L`` prints in a container with the claim's devices alone."""
    spec = json.loads(node.spec(uid).read_text())
    parts = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    dev = folder / f"container-{uid}"
    for path in {entry["path"] for part in parts for entry in part.get("deviceNodes", [])}:
        target = dev / path.removeprefix("/dev/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    env = {**os.environ, **node.node.environment, "GPUDRA_MOCK_DEV": str(dev)}
    done = subprocess.run([node.node.smi, "-L"], env=env, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


def uuids(node: MigNode, uid: str) -> list[str]:
    """Of the claim's devices, as its containers are told."""
    spec = json.loads(node.spec(uid).read_text())
    return [device["containerEdits"]["env"][0].partition("=")[2] for device in given(spec)]


Make: TypeAlias = Callable[..., MigNode]


def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes nodes of a profile, each with a driver on it that has looked at it once."""
    monkeypatch.setenv("GPUDRA_MOCK_QUIET", "1")

    def made(profile: str = "h200", mig: MigSupport = MigSupport.DYNAMIC) -> MigNode:
        for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
            monkeypatch.setenv(name, "")  # put back behind the test, whatever the node sets
        node = MigNode(MockNode.create(tmp_path / "node", profile), tmp_path, mig)
        node.read()
        return node

    return made
