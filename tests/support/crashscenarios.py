"""Ways of having a GPU, each with a claim that has it and another claim beside it, for every step of the table.

A step that no scenario is about fails the tests: whoever adds one adds its scenario here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driver.making import make_preparer
from driver.offering import Offering
from driver.prepare.steps import Plan, Step
from driver.settings import Settings
from tests.support.crashnode import DRIVER, NODE, POOL, CrashNode, claim

ALWAYS = ("hardware", "spec")
"""Steps that every claim has something of."""


def table(settings: Settings | None = None) -> Plan:
    """The whole table of steps, as the agent makes it."""
    settings = settings or Settings(node_name=NODE, driver_name=DRIVER)
    offering = Offering(settings, lambda: None, lambda: None)
    return make_preparer(settings, POOL, None, lambda: None, lambda: None, offering).plan


def steps_of(plan: Plan) -> dict[str, Step]:
    """The steps of a table by name, in its order."""
    return {step.name: step for step in plan._steps}


def sharing(strategy: str, **fields: object) -> dict[str, Any]:
    """The parameters of a GpuConfig."""
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    return {**kind, "sharing": {"strategy": strategy, **fields}}


def share(node: CrashNode, number: int, request: str = "r") -> dict[str, Any]:
    """A quarter of the first GPU."""
    consumed = {"shares": "1", "memory": "20Gi"}
    share_id = f"{number:08x}-0f3a-4b6d-9a6e-0d6f1f0c2a11"
    return {"request": request, "device": node.gpu(0), "shareID": share_id, "consumedCapacity": consumed}


def nothing(node: CrashNode) -> None:
    """The administrator leaves the node as it is."""


@dataclass(frozen=True)
class Scenario:
    """One way of having a GPU.

    Args:
        claim: gives the claim that is killed, of a UID.
        bystander: gives the claim that nothing may happen to.
        steps: names of the steps that have something to do for the claim, beside those of every claim.
        spared: points of these steps that the claim does not come to.
        settings: of the agent, beside the usual ones.
        boot: what the administrator's services do at each boot.
    """

    name: str
    claim: Callable[[CrashNode, str], dict[str, Any]]
    bystander: Callable[[CrashNode, str], dict[str, Any]]
    steps: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    boot: Callable[[CrashNode], None] = nothing

    def __str__(self) -> str:
        return self.name

    def prepare_points(self, plan: Plan) -> list[str]:
        """The points of Prepare at which something is different for the claim, in their order."""
        return [point for point in plan.prepare_points if point in self._own(plan) | {"p1", "p4", "p5"}]

    def unprepare_points(self, plan: Plan) -> list[str]:
        """The same for Unprepare."""
        return [point for point in plan.unprepare_points if point in self._own(plan) | {"u1", "u4"}]

    def _own(self, plan: Plan) -> set[str]:
        own = [step for name, step in steps_of(plan).items() if name in self.steps or name in ALWAYS]
        return {point for step in own for point in (*step.do_points, *step.undo_points)} - self.spared


def _other_gpu(node: CrashNode, uid: str) -> dict[str, Any]:
    return claim(uid, [{"device": node.gpu(1)}])


def _partitioned_by_hand(node: CrashNode) -> None:
    node.mock.nvidia_smi("-i", "0", "-mig", "1")
    node.mock.nvidia_smi("mig", "-i", "0", "-cgi", "9:4,14:0,14:2", "-C")


NOT_MADE = frozenset({"mode-on", "gi-made", "gi-known", "ci-gone", "gi-gone"})
"""Points that only a partition that is made comes to."""

SCENARIOS = (
    Scenario("full GPU", lambda node, uid: claim(uid, [{"device": node.gpu(0)}]), _other_gpu),
    Scenario(
        "static MIG",
        lambda node, uid: claim(uid, [{"device": node.part("3g.47gb", 4)}, {"device": node.part("2g.24gb", 2)}]),
        lambda node, uid: claim(uid, [{"device": node.part("2g.24gb", 0)}]),
        frozenset({"mig"}),
        NOT_MADE,
        boot=_partitioned_by_hand,
    ),
    Scenario(
        "dynamic MIG",
        lambda node, uid: claim(uid, [{"device": node.part("3g.47gb", 4)}]),
        lambda node, uid: claim(uid, [{"device": node.part("2g.24gb", 0)}]),
        frozenset({"mig"}),
        settings={"mig": "dynamic"},
    ),
    Scenario(
        "dynamic MIG, the first partition of its GPU",
        lambda node, uid: claim(uid, [{"device": node.part("3g.47gb", 4)}, {"device": node.part("1g.12gb", 0)}]),
        lambda node, uid: claim(uid, [{"device": node.part("2g.24gb", 0, 1)}]),
        frozenset({"mig"}),
        settings={"mig": "dynamic"},
    ),
    Scenario(
        "full GPU where MIG is dynamic",
        lambda node, uid: claim(uid, [{"device": node.gpu(0)}]),
        lambda node, uid: claim(uid, [{"device": node.part("2g.24gb", 0, 1)}]),
        frozenset({"mig"}),
        NOT_MADE,
        settings={"mig": "dynamic"},
    ),
    Scenario(
        "shares",
        lambda node, uid: claim(uid, [share(node, 1), share(node, 2)]),
        lambda node, uid: claim(uid, [share(node, 3)]),
        frozenset({"share", "sharingRules"}),
        settings={"shares": '{"*": 4}'},
    ),
    Scenario(
        "time slices",
        lambda node, uid: claim(
            uid, [{"device": node.gpu(0)}], [sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"})]
        ),
        _other_gpu,
        frozenset({"modes", "timeSlice"}),
    ),
    Scenario(
        "shares with time slices",
        lambda node, uid: claim(
            uid, [share(node, 1)], [sharing("TimeSlicing", timeSlicingConfig={"interval": "Short"})]
        ),
        lambda node, uid: claim(
            uid, [share(node, 2)], [sharing("TimeSlicing", timeSlicingConfig={"interval": "Short"})]
        ),
        frozenset({"modes", "share", "sharingRules", "timeSlice"}),
        settings={"shares": '{"*": 4}'},
    ),
    Scenario(
        "MPS",
        lambda node, uid: claim(
            uid, [{"device": node.gpu(0)}], [sharing("MPS", mpsConfig={"defaultActiveThreadPercentage": 50})]
        ),
        _other_gpu,
        frozenset({"modes", "mps"}),
    ),
    Scenario(
        "shares with MPS",
        lambda node, uid: claim(uid, [share(node, 1)], [sharing("MPS")]),
        lambda node, uid: claim(uid, [share(node, 2)], [sharing("MPS")]),
        frozenset({"modes", "share", "sharingRules", "mps"}),
        settings={"shares": '{"*": 4}'},
    ),
    Scenario(
        "VFIO",
        lambda node, uid: claim(uid, [{"device": f"{node.gpu(0)}-vfio"}]),
        _other_gpu,
        frozenset({"vfio"}),
        settings={"passthrough_devices": "*"},
    ),
)
