"""Each rule finds what it is for, and nothing where nothing is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from driver.analysis.lint import RULES, Options, Severity, lint
from kubeletplugin.validation import validate_slice
from tests.support import dradocs as dra

JSON = dict[str, Any]
POOL = "node-a/gpu.nvidia.com"
TYPED = {"type": "gpu", "productName": "NVIDIA H200"}


@dataclass(frozen=True)
class Case:
    """Documents that a rule finds something in, the same without the fault, and where it is found."""

    rule: str
    bad: list[JSON]
    good: list[JSON]
    path: str
    part: str
    severity: Severity | None = None
    label: str = field(default="")


def gpu(number: int = 0, **fields: Any) -> JSON:
    return dra.device(f"gpu-{number}", TYPED, **fields)


def two_slices(first: str, second: str) -> list[JSON]:
    return [dra.resource_slice(gpu(n), count=2, name=name) for n, name in enumerate((first, second))]


COUNTED = dra.resource_slice(
    sharedCounters=[dra.counter_set("set-0", memory="80Gi", place="1"), dra.counter_set("set-1", memory="80Gi")],
    count=2,
    name="00000-a",
)


def counted(*devices: JSON, **fields: Any) -> list[JSON]:
    return [COUNTED, dra.resource_slice(*devices, count=2, name="00001-a", **fields)]


def drawing(name: str, counter_set: str = "set-0", typed: str | None = None, **amounts: str) -> JSON:
    attributes = {"profile": typed} if typed else None
    return dra.device(name, attributes, consumesCounters=dra.uses(counter_set, **amounts))


def driver_daemon(**rolling: Any) -> JSON:
    spec = {"volumes": [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}}]}
    return dra.daemon_set("agent", pod_spec=spec, updateStrategy={"type": "RollingUpdate", "rollingUpdate": rolling})


def daemon_with_claim() -> JSON:
    entry = {"name": "gpu", "resourceClaimTemplateName": "look"}
    return dra.daemon_set("exporter", pod_spec={"resourceClaims": [entry], "preemptionPolicy": "Never"})


PROVISIONING = {
    "apiVersion": "autoscaling.x-k8s.io/v1",
    "kind": "ProvisioningRequest",
    "metadata": {"name": "p", "namespace": "ml"},
    "spec": {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io"},
}
OWNED = {"results": [("gpu-0", POOL)], "owner": "train-uid"}
GOOD_CLASS = dra.device_class("gpu.nvidia.com", "device.driver == 'gpu.nvidia.com'")
READS_TYPE = dra.device_class("gpus", "device.attributes['gpu.nvidia.com'].type == 'gpu'")
OTHER_DRIVER = {"driver": "nic.example.com", "pool": "node-a/nic.example.com"}
GROUP = {"node.kubernetes.io__instance-type": "p5.48xlarge"}

CASES = [
    Case(
        "A01",
        [dra.resource_slice(gpu(n), pool=f"node-a-gpu-{n}") for n in range(2)],
        [dra.resource_slice(gpu(0), gpu(1)), dra.resource_slice(**OTHER_DRIVER)],
        "spec.pool.name",
        "publishes 2 pools on node node-a: node-a-gpu-0, node-a-gpu-1",
    ),
    Case(
        "A02",
        [dra.resource_slice(gpu(), node=None, allNodes=True)],
        [dra.resource_slice(gpu())],
        "spec.allNodes",
        "not bound to a node by name, but by allNodes",
    ),
    Case(
        "A03",
        [
            dra.resource_slice(pool="node-a", driver=name, sharedCounters=[dra.counter_set("c", m="1")])
            for name in ("gpu.nvidia.com", "nic.example.com")
        ],
        [dra.resource_slice(), dra.resource_slice(**OTHER_DRIVER)],
        "spec.pool.name",
        "counters of gpu.nvidia.com, nic.example.com disturb each other",
        Severity.ERROR,
    ),
    Case(
        "A03",
        [dra.resource_slice(pool="gpus", node=name, count=2) for name in ("node-a", "node-b")],
        [dra.resource_slice(node=name) for name in ("node-a", "node-b")],
        "spec.pool.name",
        "has slices of 2 nodes: node-a, node-b",
        Severity.ERROR,
        "one pool on two nodes",
    ),
    Case(
        "A03",
        [dra.resource_slice(pool="node-a"), dra.resource_slice(pool="node-a", driver="nic.example.com")],
        [dra.resource_slice(), dra.resource_slice(**OTHER_DRIVER)],
        "spec.pool.name",
        "pool name node-a is used by 2 drivers",
        Severity.NOTE,
        "without counters",
    ),
    Case(
        "A04",
        [dra.resource_slice(gpu(), count=2)],
        two_slices("00000-a", "00001-a"),
        "spec.pool.resourceSliceCount",
        "newest generation: 1, slice count: 2 - found only 1 slices",
    ),
    Case(
        "A04",
        [dra.resource_slice(gpu(), count=2), dra.resource_slice(gpu(1), count=3)],
        two_slices("00000-a", "00001-a"),
        "spec.pool.resourceSliceCount",
        "do not agree on how many they are: 2, 3",
        label="no agreement",
    ),
    Case(
        "A04",
        [dra.resource_slice(gpu(), generation=2), dra.resource_slice(gpu(1), generation=1)],
        [dra.resource_slice(gpu(), generation=2)],
        "spec.pool.generation",
        "still has 1 slice of an older generation",
        Severity.NOTE,
        "left behind",
    ),
    Case(
        "A05",
        [{**dra.resource_slice(gpu()), "metadata": {"name": "s", "uid": "u"}}],
        [dra.resource_slice(gpu()), {**dra.resource_slice(node="node-b"), "metadata": {"generateName": "s-"}}],
        "metadata.ownerReferences",
        "no owner reference to node node-a",
    ),
    Case(
        "A06",
        [READS_TYPE, dra.resource_slice(gpu(0), dra.device("gpu-1", {"model": "x"}))],
        [READS_TYPE, dra.resource_slice(gpu(0), gpu(1))],
        "spec.selectors[0].cel.expression",
        "no such key: type), for example gpu.nvidia.com/node-a/gpu.nvidia.com/gpu-1",
    ),
    Case(
        "A06",
        [
            GOOD_CLASS,
            dra.claim("c", dra.request("gpus", "gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].fast")),
            dra.resource_slice(gpu()),
        ],
        [
            GOOD_CLASS,
            dra.claim("c", dra.request("gpus", "gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].fast")),
            dra.resource_slice(dra.device("gpu-0", {"fast": True})),
            dra.resource_slice(
                dra.device("nic"), **OTHER_DRIVER
            ),  # the class lets no other driver's device come so far
        ],
        "spec.devices.requests[0].exactly.selectors[0].cel.expression",
        "the selector fails on 1 device",
        label="in a request",
    ),
    Case(
        "A07",
        [
            dra.node("node-a", **GROUP),
            dra.node("node-b", **GROUP),
            dra.resource_slice(gpu(0), gpu(1)),
            dra.resource_slice(gpu(0), node="node-b"),
        ],
        [
            dra.node("node-a", **GROUP),
            dra.node("node-b", **GROUP),
            dra.resource_slice(gpu(0)),
            dra.resource_slice(gpu(0), node="node-b"),
        ],
        "spec.devices",
        "of another shape than node-a: gpu.nvidia.com devices: 2 against 1",
    ),
    Case(
        "A08",
        [dra.resource_slice(gpu(0), gpu(1, taints=[dra.taint()]))],
        [
            dra.resource_slice(gpu(0, taints=[dra.taint("None")])),
            dra.node("node-b", unschedulable=True),
            dra.resource_slice(gpu(0, taints=[dra.taint()]), node="node-b"),
        ],
        "spec.devices[1].taints",
        "node node-a has 1 tainted device (gpu.nvidia.com/xid on gpu-1)",
    ),
    Case(
        "A09",
        [dra.device_class("mine", "device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'")],
        [dra.device_class("any", "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H200'")],
        "spec.selectors[0].cel.expression",
        "reads gpu.nvidia.com/uuid, which is new on every node",
    ),
    Case(
        "A09",
        [dra.claim("c", constraints=[{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/fabricClique"}])],
        [dra.claim("c", constraints=[{"requests": ["gpus"], "matchAttribute": "resource.kubernetes.io/numaNode"}])],
        "spec.devices.constraints[0].matchAttribute",
        "compares gpu.nvidia.com/fabricClique, which is shared by several nodes",
        label="a constraint over a fabric",
    ),
    Case(
        "A10",
        counted(drawing("mig-0", memory="10Gi"), dra.device("gpu-1")),
        [*counted(drawing("mig-0", memory="10Gi")), dra.resource_slice(gpu(), **OTHER_DRIVER)],
        "spec.devices[1]",
        "pool node-a/gpu.nvidia.com has 1 device without a counter to draw on while others have one (gpu-1)",
    ),
    Case(
        "A11",
        counted(drawing("mig-0", memory="10Gi", place="1"), drawing("gpu-0", memory="80Gi", place="1")),
        counted(drawing("mig-0", memory="10Gi"), drawing("gpu-0", memory="80Gi")),
        "spec.devices[0].consumesCounters",
        "with mig-0 allocated, Cluster Autoscaler takes its GPU for 100% used, while 12% of it is",
    ),
    Case(
        "A12",
        [dra.resource_slice(gpu(0, allowMultipleAllocations=True), gpu(1))],
        [dra.resource_slice(gpu(0), gpu(1))],
        "spec.devices[0].allowMultipleAllocations",
        "so the pool is 50% used",
    ),
    Case(
        "A13",
        [dra.resource_slice(gpu(1)), dra.claim("c", results=[("gpu-0", POOL)])],
        [dra.resource_slice(gpu(0)), dra.claim("c", results=[("gpu-0", POOL)])],
        "status.allocation.devices.results",
        "device gpu-0 of pool node-a/gpu.nvidia.com is allocated to it and no longer published",
    ),
    Case(
        "A13",
        [
            *counted(drawing("a", memory="50Gi"), drawing("b", memory="40Gi")),
            dra.claim("c", results=[("a", POOL), ("b", POOL)]),
        ],
        [
            *counted(drawing("a", memory="40Gi"), drawing("b", memory="40Gi"), drawing("x", memory="80Gi")),
            dra.claim("c", results=[("a", POOL), ("b", POOL), ("x", POOL, {"adminAccess": True})]),
        ],
        "spec.sharedCounters[0]",
        "more is allocated than counter set set-0 has of memory: ml/c",
        label="overdrawn",
    ),
    Case(
        "A14",
        [dra.resource_slice(*(gpu(n) for n in range(65)))],
        [dra.resource_slice(*(gpu(n) for n in range(64)))],
        "spec.devices",
        "has 65 devices: the first taint on one of them makes it invalid",
    ),
    Case(
        "A14",
        [dra.claim("c", dra.request("a", count=20), dra.request("b", count=13))],
        [dra.claim("c", dra.request("a", count=20), dra.request("b", count=12))],
        "spec.devices.requests",
        "asks for 33 devices",
        Severity.ERROR,
        "too many in a claim",
    ),
    Case(
        "A15",
        counted(
            drawing("a", typed="1g", memory="10Gi"),
            drawing("b", typed="1g", memory="20Gi"),
            partitionTypeAttribute="gpu.nvidia.com/profile",
        ),
        counted(
            drawing("a", typed="1g", memory="10Gi"),
            drawing("b", "set-1", typed="1g", memory="10Gi"),
            partitionTypeAttribute="gpu.nvidia.com/profile",
        ),
        "spec.devices[1].consumesCounters",
        "devices of type 1g draw on different counters: a, b",
    ),
    Case(
        "A16",
        [
            dra.resource_slice(gpu()),
            dra.claim("c", results=[("channel-0", "fabric-wide")], owner="train-uid"),
            dra.pod("train", claims=[("gpus", "c")], node="node-a"),
        ],
        [
            dra.resource_slice(gpu()),
            dra.claim("c", **OWNED),
            dra.pod("train", claims=[("gpus", "c")], node="node-a"),
            dra.claim("shared", results=[("channel-0", "fabric-wide")]),
            dra.pod("other", claims=[("gpus", "shared")], node="node-a"),
        ],
        "status.allocation",
        "from a pool that isn't node-local on node-a - can't be sanitized: with node node-a as a sample",
    ),
    Case(
        "A17",
        [daemon_with_claim(), dra.claim_template("look", dra.request())],
        [daemon_with_claim(), dra.claim_template("look", dra.request("gpus", "gpu.nvidia.com", adminAccess=True))],
        "spec.template.spec.resourceClaims[0]",
        "its pods take devices of their own, by claim template ml/look",
    ),
    Case(
        "A18",
        [driver_daemon(maxUnavailable="50%")],
        [driver_daemon(maxUnavailable=0, maxSurge=1), dra.daemon_set("other")],
        "spec.updateStrategy.rollingUpdate.maxUnavailable",
        "takes the driver from 50% of the nodes at once",
    ),
    Case(
        "A19",
        [dra.taint_rule("sick")],
        [dra.taint_rule("watched", "None")],
        "spec.taint",
        "gpu.nvidia.com/xid:NoSchedule of a rule is seen by no autoscaler",
    ),
    Case(
        "A20",
        [dra.resource_slice(dra.device("nic"), **OTHER_DRIVER)],
        [dra.resource_slice(gpu())],
        "spec.driver",
        "count driver nic.example.com as custom.driver",
    ),
    Case(
        "A21",
        [dra.claim("c", constraints=[{"requests": ["gpus"], "distinctAttribute": "gpu.nvidia.com/nvlinkGroup"}])],
        [dra.claim("c", constraints=[{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/nvlinkGroup"}])],
        "spec.devices.constraints[0].distinctAttribute",
        "Karpenter refuses the claim",
    ),
    Case(
        "A21",
        [PROVISIONING, dra.claim_template("t", dra.request())],
        [PROVISIONING, dra.claim("c")],
        "spec",
        "pods with claim templates are never provisioned for",
        Severity.WARNING,
        "a provisioning request",
    ),
    Case(
        "A22",
        two_slices("node-a-gpu-x7k2p", "node-a-gpu-b4c9d"),
        two_slices("00000-gpu", "00001-gpu"),
        "metadata.name",
        "the 2 slices of pool node-a/gpu.nvidia.com have no index of one width",
    ),
    Case(
        "A23",
        [dra.claim("c", dra.request(allocationMode="All")), dra.resource_slice(gpu(), count=2)],
        [dra.claim("c", dra.request(allocationMode="All")), dra.resource_slice(gpu())],
        "spec.devices.requests[0].exactly.allocationMode",
        "asks for all devices while not all pools are complete (gpu.nvidia.com/node-a/gpu.nvidia.com)",
    ),
    Case(
        "A24",
        [dra.pod("train", claims=[("gpus", "c")])],
        [dra.pod("train", claims=[("gpus", "c")], preemptionPolicy="Never"), dra.pod("plain")],
        "spec.preemptionPolicy",
        "preemption policy PreemptLowerPriority",
    ),
    Case(
        "A25",
        [dra.resource_slice(gpu(), count=2, name=f"0000{n}-a") for n in range(2)],
        two_slices("00000-a", "00001-a"),
        "spec.devices",
        "has device names twice: gpu-0",
    ),
    Case(
        "A25",
        counted(drawing("mig-0", "set-7", memory="1")),
        counted(drawing("mig-0", memory="1")),
        "spec.devices[0].consumesCounters[0]",
        "device mig-0 draws on set-7: memory, which pool node-a/gpu.nvidia.com of driver gpu.nvidia.com lacks",
        label="a counter that is not there",
    ),
    Case(
        "A26",
        [dra.resource_slice(dra.device("GPU_0"))],
        [dra.resource_slice(gpu())],
        "spec.devices[0].name",
        "the API server refuses it: Invalid value",
    ),
    Case(
        "A27",
        [dra.resource_slice(dra.device("gpu-0", {"resource.kubernetes.io/numaNode": -1}))],
        [dra.resource_slice(dra.device("gpu-0", {"resource.kubernetes.io/numaNode": 1}))],
        "spec.devices[0].attributes[resource.kubernetes.io/numaNode]",
        "devices without a node would look as if they shared one",
    ),
    Case(
        "A27",
        [dra.resource_slice(dra.device("gpu-0", {"resource.kubernetes.io/pciBusID": "00000000:1B:00.0"}))],
        [
            dra.resource_slice(
                dra.device(
                    "gpu-0",
                    {
                        "resource.kubernetes.io/pciBusID": "0000:1b:00.0",
                        "resource.kubernetes.io/pcieRoot": "pci0000:16",
                        "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
                    },
                )
            )
        ],
        "spec.devices[0].attributes[resource.kubernetes.io/pciBusID]",
        "other drivers write it as 0000:1b:00.0",
        label="a bus address in upper case",
    ),
    Case(
        "A28",
        [dra.resource_slice(dra.device("gpu-0", {"index": 0}), dra.device("gpu-1", {"index": "1"}))],
        [dra.resource_slice(dra.device("gpu-0", {"index": 0}), dra.device("gpu-1", {"index": 1}))],
        "spec.devices[1].attributes[index]",
        "attribute index is string on device gpu-1 and int on gpu-0",
    ),
    Case(
        "A29",
        [dra.device_class("broken", "device.driver = 'gpu.nvidia.com'")],
        [GOOD_CLASS],
        "spec.selectors[0].cel.expression",
        "the selector does not compile: 1:15",
    ),
    Case(
        "A30",
        [GOOD_CLASS, dra.claim("c", dra.request("gpus", "gpu.nvidia.con"))],
        [GOOD_CLASS, dra.claim("c", dra.request())],
        "spec.devices.requests[0].exactly.deviceClassName",
        "there is no DeviceClass gpu.nvidia.con",
    ),
]
OPTIONS = Options(validators={"ResourceSlice": lambda body: [(e.field, e.body) for e in validate_slice(body["spec"])]})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule} {case.label}".strip())
def test_a_rule_finds_its_fault_and_is_silent_without_it(case: Case) -> None:
    found = lint(dra.collection(*case.bad), OPTIONS).found
    own = [entry for entry in found if entry.rule.id == case.rule and case.part in entry.finding.message]

    assert own, [(entry.rule.id, entry.finding.message) for entry in found]
    assert own[0].finding.path == case.path
    assert own[0].finding.document is not None
    rule = next(rule for rule in RULES if rule.id == case.rule)
    assert own[0].severity is (case.severity or rule.severity)
    silent = lint(dra.collection(*case.good), OPTIONS).found
    assert [entry.finding.message for entry in silent if entry.rule.id == case.rule] == []


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in RULES}


def test_ids_and_names_are_unique_and_every_rule_says_why_and_what_to_do() -> None:
    assert [rule.id for rule in RULES] == [f"A{number:02}" for number in range(1, len(RULES) + 1)]
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.link.startswith("https://")
        assert rule.title.endswith(".")
        assert rule.why.endswith(".")
        assert rule.remedy.endswith(".")
        assert rule.affects
