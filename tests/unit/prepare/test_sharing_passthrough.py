"""Passthrough: a GPU goes to a virtual machine with its board and comes back, and nobody who uses it is disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from driver.model import GpuState
from driver.prepare import ClaimError, Reason
from driver.prepare.sharing.passthrough import VfioStep
from driver.prepare.steps import Step
from native.vfio import VfioBus
from tests.support.cdispecs import given
from tests.unit.native_vfio.fake_kernel import AUDIO, GPU, Kernel, machine
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal
from tests.unit.prepare.prepare_node import claim, config, device, ref, result
from tests.unit.prepare.sharing_node import SharingNode, uuid


@dataclass
class PassthroughNode(SharingNode):
    """GPU 0 stands behind an IOMMU with its audio function."""

    users: dict[str, list[str]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    offered: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kernel: Kernel = machine(self.base / "host")

    def steps(self) -> Sequence[Step]:
        holders: Callable[[Sequence[str]], list[str]] = lambda paths: [u for p in paths for u in self.users.get(p, ())]  # noqa: E731
        bus = VfioBus(self.kernel.sys, self.kernel.dev, self.kernel.write)
        step = VfioStep(bus, holders, lambda: self.released.append("nvml"), offered=self.offered, seconds=5)
        return (*super().steps(), step)

    def driver(self, address: str = GPU) -> str | None:
        return VfioBus(self.kernel.sys, self.kernel.dev).driver(address)

    def hide(self) -> None:
        """NVML does not see a GPU that is bound to another driver."""
        self.change_gpu(0, state=GpuState.UNBOUND, uuid=None, product_name=None, minor=None)


@pytest.fixture
def node(tmp_path: Path) -> PassthroughNode:
    return PassthroughNode(tmp_path)


def vfio(**changes: Any) -> dict[str, Any]:
    return result(0, **changes) | {"device": f"{device(0)}-vfio"}


def iommu(**fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": fields}
    return config(parameters)


def nodes_of(node: PassthroughNode) -> list[str]:
    spec = json.loads(node.spec_path("u1").read_text())
    (made,) = given(spec)
    return [item["path"] for item in made["containerEdits"].get("deviceNodes", [])]


def test_a_gpu_goes_to_vfio_with_its_board_and_comes_back(node: PassthroughNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", vfio()))
    assert (node.driver(), node.driver(AUDIO)) == ("vfio-pci", "vfio-pci")
    assert nodes_of(node) == ["/dev/vfio/7"]
    assert node.released == ["nvml"]
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert (node.driver(), node.driver(AUDIO)) == ("nvidia", "snd_hda_intel")


def test_a_gpu_that_is_not_given_back_although_nothing_failed_is_found_out(
    node: PassthroughNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", vfio()))
    with monkeypatch.context() as patch:
        patch.setattr(VfioBus, "restore", lambda *_arguments: None)
        error = preparer.unprepare([ref("u1")])["u1"]
    assert error is not None
    assert "the driver of its GPUs is not as it was left" in str(error)
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.driver() == "nvidia"


@pytest.mark.parametrize(
    ("fields", "iommufd", "expected"),
    [
        ({}, True, ["/dev/vfio/7"]),
        ({"enableAPIDevice": True}, True, ["/dev/vfio/7", "/dev/vfio/vfio"]),
        ({"backendPolicy": "PreferIommuFD"}, True, ["/dev/vfio/devices/vfio3"]),
        ({"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}, True, ["/dev/vfio/devices/vfio3", "/dev/iommu"]),
        ({"backendPolicy": "PreferIommuFD"}, False, ["/dev/vfio/7"]),
    ],
)
def test_the_device_files_are_those_that_were_asked_for(
    node: PassthroughNode, fields: dict[str, Any], iommufd: bool, expected: list[str]
) -> None:
    if iommufd:
        (node.kernel.dev / "iommu").touch()
    prepare(node.start(), claim("u1", vfio(), configs=[iommu(**fields)]))
    assert nodes_of(node) == expected


@pytest.mark.bug("B65")
def test_after_a_restart_a_bound_gpu_is_still_the_claims(node: PassthroughNode) -> None:
    document = claim("u1", vfio())
    first = prepare(node.start(), document)
    node.hide()
    restarted = node.start()
    assert restarted.recover().problems == []
    assert prepare(restarted, document) == first
    assert restarted.unprepare([ref("u1")]) == {"u1": None}
    assert node.driver() == "nvidia"


@pytest.mark.bug("B72")
def test_after_a_reboot_it_is_bound_again(node: PassthroughNode) -> None:
    prepare(node.start(), claim("u1", vfio()))
    node.reboot()
    for address, driver in ((GPU, "nvidia"), (AUDIO, "snd_hda_intel")):
        VfioBus(node.kernel.sys, node.kernel.dev, node.kernel.write).restore(address, driver, _soon())
    assert node.start().recover().remade == ["u1"]
    assert node.driver() == "vfio-pci"


def _soon() -> Any:
    from native.commands import Deadline

    return Deadline(10)


def test_a_gpu_that_is_in_use_is_not_taken(node: PassthroughNode) -> None:
    preparer = node.start()
    node.users["/dev/nvidia0"] = ["python (pid 8)", "nvidia-persistenced (pid 9)"]
    error = refusal(preparer, claim("u1", vfio()))
    assert (error.reason, error.permanent) == (Reason.DEVICE_IN_USE, False)
    assert "in use by python (pid 8), nvidia-persistenced (pid 9)" in str(error)
    assert node.driver() == "nvidia"
    assert node.kernel.writes == [] or all(text != "vfio-pci" for _, text in node.kernel.writes)
    node.users.clear()
    prepare(preparer, claim("u1", vfio()))


def test_a_machine_that_still_runs_keeps_it(node: PassthroughNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", vfio()))
    node.users["/dev/vfio/7"] = ["qemu-kvm (pid 7)"]
    error = preparer.unprepare([ref("u1")])["u1"]
    assert isinstance(error, ClaimError)
    assert "still used by qemu-kvm (pid 7)" in str(error)
    assert node.driver() == "vfio-pci"
    node.users.clear()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


def test_a_kernel_that_does_not_come_back_fails_the_claim_and_it_is_put_right(node: PassthroughNode) -> None:
    preparer = node.start()
    node.kernel.refused["drivers_probe"] = 16
    error = refusal(preparer, claim("u1", vfio()))
    assert "cannot be handed over" in str(error)
    node.kernel.refused.clear()
    assert preparer.recover().undone == ["u1"]
    assert (node.driver(), node.driver(AUDIO)) == ("nvidia", "snd_hda_intel")


def test_what_the_machine_lacks_is_told_before_anything_is_recorded(node: PassthroughNode) -> None:
    node.kernel.add("0000:3e:00.0", "mlx5_core", 7, "0x020000")
    preparer = node.start()
    assert "0000:3e:00.0 in its IOMMU group 7" in str(refusal(preparer, claim("u1", vfio())))
    assert preparer.prepared() == ()


def test_the_gpu_and_its_twin_are_one_device(node: PassthroughNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", vfio()))
    assert refusal(preparer, claim("u2", result(0))).reason is Reason.DEVICE_IN_USE
    preparer.unprepare([ref("u1")])
    prepare(preparer, claim("u2", result(0)))
    assert refusal(preparer, claim("u3", vfio())).reason is Reason.DEVICE_IN_USE
    assert uuid(0)


def test_a_gpu_that_was_vfios_before_stays_so(node: PassthroughNode) -> None:
    bus = VfioBus(node.kernel.sys, node.kernel.dev, node.kernel.write)
    bus.bind(GPU, _soon())
    node.hide()
    preparer = node.start()
    prepare(preparer, claim("u1", vfio()))
    preparer.unprepare([ref("u1")])
    assert node.driver() == "vfio-pci"


def test_admin_access_binds_nothing(node: PassthroughNode) -> None:
    error = refusal(node.start(), claim("u1", vfio(adminAccess=True)))
    assert error.permanent
    assert "binds no driver" in str(error)
    assert node.driver() == "nvidia"


def test_where_it_is_not_offered_it_is_refused_but_what_was_begun_is_undone(node: PassthroughNode) -> None:
    prepare(node.start(), claim("u1", vfio()))
    node.offered = False
    later = node.start()
    assert "turned off on this node" in str(refusal(later, claim("u2", vfio())))
    assert later.unprepare([ref("u1")]) == {"u1": None}
    assert node.driver() == "nvidia"


class Killed(BaseException):
    """The process ends here."""


def killed_at(node: PassthroughNode, wanted: str, action: Callable[[], object]) -> None:
    def pass_point(point: str) -> None:
        if point == wanted:
            raise Killed

    node.faults = pass_point
    with pytest.raises(Killed):
        action()
    node.faults = lambda _point: None


@pytest.mark.parametrize("point", ["p1", "p2", "s4", "p3", "p4", "p5"])
def test_killed_in_prepare_it_is_finished_or_given_back(node: PassthroughNode, point: str) -> None:
    killed_at(node, point, lambda: node.start().prepare({"u1": claim("u1", vfio())}))
    later = node.start()
    later.recover()
    if not later.prepared():
        assert (node.driver(), node.driver(AUDIO)) == ("nvidia", "snd_hda_intel")
    prepare(later, claim("u1", vfio()))
    assert later.unprepare([ref("u1")]) == {"u1": None}
    assert (node.driver(), node.driver(AUDIO)) == ("nvidia", "snd_hda_intel")


@pytest.mark.parametrize("point", ["u1", "v4", "u3", "u2", "u4"])
def test_killed_in_unprepare_it_is_given_back(node: PassthroughNode, point: str) -> None:
    prepare(node.start(), claim("u1", vfio()))
    node.hide()
    killed_at(node, point, lambda: node.start().unprepare([ref("u1")]))
    later = node.start()
    later.recover()
    assert later.prepared() == ()
    assert (node.driver(), node.driver(AUDIO)) == ("nvidia", "snd_hda_intel")
