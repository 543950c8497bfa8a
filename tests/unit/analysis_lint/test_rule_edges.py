"""Where each rule begins and ends: the neighbours of the faults, found or left alone with exactly so many words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from driver.analysis.documents import read_text
from driver.analysis.lint import Options, Severity, chosen, lint
from driver.analysis.shape import AttributeKinds
from tests.support import dradocs as dra

JSON = dict[str, Any]
POOL = "node-a/gpu.nvidia.com"
NIC: dict[str, Any] = {"driver": "nic.example.com", "pool": "node-a/nic.example.com"}
OWN = "device.attributes['gpu.nvidia.com']"
KINDS = AttributeKinds({"gpu.nvidia.com/uuid": "launch", "gpu.nvidia.com/driverVersion": "software"})
GROUP: dict[str, Any] = {"node.kubernetes.io__instance-type": "p5"}


@dataclass(frozen=True)
class Edge:
    """Documents, and what one rule finds in them: (path, part of the message) of each finding, in order."""

    rule: str
    title: str
    documents: list[JSON]
    found: list[tuple[str, str]]
    options: dict[str, Any] = field(default_factory=dict)


def gpu(number: int = 0, **attributes: Any) -> JSON:
    return dra.device(f"gpu-{number}", {"type": "gpu", **attributes})


def tainted(effect: str) -> JSON:
    return dra.device("gpu-0", {"type": "gpu"}, taints=[dra.taint(effect)])


def node_selector(name: str) -> JSON:
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}


def alternatives(*requests: JSON) -> JSON:
    subrequests = [{"name": f"way-{n}", **request["exactly"]} for n, request in enumerate(requests)]
    return {"name": "gpus", "firstAvailable": subrequests}


def counted(*devices: JSON, **fields: Any) -> list[JSON]:
    sets = [dra.counter_set("set-0", memory="80Gi"), dra.counter_set("set-1", memory="80Gi")]
    return [
        dra.resource_slice(sharedCounters=sets, count=2, name="00000-a"),
        dra.resource_slice(*devices, count=2, name="00001-a", **fields),
    ]


def part(name: str, counter_set: str = "set-0", memory: str = "10Gi", **attributes: Any) -> JSON:
    return dra.device(name, attributes or None, consumesCounters=dra.uses(counter_set, memory=memory))


def deployment(**pod_spec: Any) -> JSON:
    spec = {"template": {"spec": pod_spec}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ml"}, "spec": spec}


def driver_daemon(strategy: str, **rolling: Any) -> JSON:
    spec = {"volumes": [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins/gpu.nvidia.com"}}]}
    update = {"type": strategy, **({"rollingUpdate": rolling} if rolling else {})}
    return dra.daemon_set("agent", pod_spec=spec, updateStrategy=update)


def of_template(pod: JSON, claim: str) -> JSON:
    """The pod with its claim made from a template, as the claim controller has noted."""
    entry = {"name": "gpus", "resourceClaimTemplateName": "t"}
    status = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": claim}]}
    return {**pod, "spec": {**pod["spec"], "resourceClaims": [entry]}, "status": status}


ELSEWHERE = dra.claim("c", results=[("channel-0", "fabric-wide")], owner="train-uid")
TRAIN = dra.pod("train", claims=[("gpus", "c")], node="node-a")
CLASS = dra.device_class("gpu.nvidia.com", "device.driver == 'gpu.nvidia.com'")
TWO_NODES = [dra.node("node-a", **GROUP), dra.node("node-b", **GROUP)]

EDGES = [
    Edge("A01", "each driver may have one", [dra.resource_slice(gpu()), dra.resource_slice(**NIC)], []),
    Edge("A01", "an older generation is the same pool", [
        dra.resource_slice(gpu(), generation=1), dra.resource_slice(gpu(), generation=2)], []),
    Edge("A01", "pools of all nodes are nobody's", [
        dra.resource_slice(gpu()), dra.resource_slice(gpu(), node=None, pool="fabric", allNodes=True)], []),
    Edge("A01", "on each node that has several", [
        dra.resource_slice(gpu(), node=node, pool=f"{node}-{n}") for node in ("node-a", "node-b") for n in range(3)],
        [("spec.pool.name", "publishes 3 pools on node node-a"), ("spec.pool.name", "3 pools on node node-b")]),
    Edge("A02", "a selector of nodes", [dra.resource_slice(gpu(), node=None, nodeSelector=node_selector("node-a"))],
        [("spec.nodeSelector", "but by nodeSelector")]),
    Edge("A02", "devices with nodes of their own", [
        dra.resource_slice(gpu(), node=None, perDeviceNodeSelection=True)],
        [("spec.perDeviceNodeSelection", "but by perDeviceNodeSelection")]),
    Edge("A02", "what is written as false is not there", [dra.resource_slice(gpu(), allNodes=False)], []),
    Edge("A04", "a complete newest generation, however broken the older one", [
        dra.resource_slice(gpu(), generation=1, count=7), dra.resource_slice(gpu(), generation=2)],
        [("spec.pool.generation", "still has 1 slice of an older generation")]),
    Edge("A04", "more slices than were said", [
        dra.resource_slice(gpu(n), name=f"0000{n}-a") for n in range(2)],
        [("spec.pool.resourceSliceCount", "slice count: 1")]),
    Edge("A05", "another kind of owner is no Node", [
        {**dra.resource_slice(gpu()), "metadata": {"name": "s", "uid": "u", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "node-a", "uid": "x"}]}}],
        [("metadata.ownerReferences", "no owner reference to node node-a")]),
    Edge("A06", "a key that is asked for first", [
        dra.device_class("c", f"has({OWN}.fast) && {OWN}.fast"), dra.resource_slice(gpu())], []),
    Edge("A06", "an optional key", [
        dra.device_class("c", f"{OWN}.?fast.orValue(false)"), dra.resource_slice(gpu())], []),
    Edge("A06", "an error that || absorbs", [
        dra.device_class("c", f"{OWN}.fast || {OWN}.type == 'gpu'"), dra.resource_slice(gpu())], []),
    Edge("A06", "an earlier selector keeps other drivers' devices away", [
        dra.device_class("c", "device.driver == 'gpu.nvidia.com'", f"{OWN}.type == 'gpu'"),
        dra.resource_slice(gpu()), dra.resource_slice(dra.device("nic"), **NIC)], []),
    Edge("A06", "the same selectors the other way round", [
        dra.device_class("c", f"{OWN}.type == 'gpu'", "device.driver == 'gpu.nvidia.com'"),
        dra.resource_slice(gpu()), dra.resource_slice(dra.device("nic"), **NIC)],
        [("spec.selectors[0].cel.expression", "no such key")]),
    Edge("A06", "a capacity that is not there", [
        dra.device_class("c", "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('1Gi'))"),
        dra.resource_slice(gpu())], [("spec.selectors[0].cel.expression", "fails on 1 device")]),
    Edge("A06", "in an alternative of a template", [
        CLASS, dra.resource_slice(gpu()),
        dra.claim_template("t", alternatives(dra.request("a"), dra.request("b", dra.DRIVER, f"{OWN}.fast")))],
        [("spec.spec.devices.requests[0].firstAvailable[1].selectors[0].cel.expression", "no such key: fast")]),
    Edge("A06", "with no devices there is nothing to fail on", [dra.device_class("c", f"{OWN}.fast")], []),
    Edge("A07", "one node is no group", [dra.node("node-a", **GROUP), dra.resource_slice(gpu())], []),
    Edge("A07", "identities are a node's own", [
        *TWO_NODES, *(dra.resource_slice(gpu(uuid=node), node=node) for node in ("node-a", "node-b"))], [],
        {"kinds": KINDS}),
    Edge("A07", "so are versions", [
        *TWO_NODES, *(dra.resource_slice(gpu(driverVersion={"version": version}), node=node)
                      for node, version in (("node-a", "580.1.0"), ("node-b", "590.1.0")))], [], {"kinds": KINDS}),
    Edge("A07", "the one that differs from the most is told", [
        dra.node("node-c", **GROUP), *TWO_NODES, dra.resource_slice(gpu(), node="node-a"),
        *(dra.resource_slice(gpu(), gpu(1), node=node) for node in ("node-b", "node-c"))],
        [("spec.devices", "node-a of group node.kubernetes.io/instance-type=p5 is of another shape than node-c")]),
    Edge("A07", "a node that publishes nothing yet is not compared", [*TWO_NODES, dra.resource_slice(gpu())], []),
    Edge("A08", "NoExecute counts too", [dra.resource_slice(tainted("NoExecute"))],
        [("spec.devices[0].taints", "1 tainted device")]),
    Edge("A08", "a node that is not ready is no sample", [
        dra.node("node-a", ready=False), dra.resource_slice(tainted("NoSchedule"))], []),
    Edge("A08", "of each slice once", [
        dra.resource_slice(tainted("NoSchedule"), count=2, name=f"0000{n}-a") for n in range(2)],
        [("spec.devices[0].taints", "1 tainted device")] * 2),
    Edge("A09", "in a template", [
        dra.claim_template("t", dra.request("a", dra.DRIVER, f"{OWN}.uuid != 'x'"))],
        [("spec.spec.devices.requests[0].exactly.selectors[0].cel.expression", "reads gpu.nvidia.com/uuid")],
        {"kinds": KINDS}),
    Edge("A09", "distinct identities are met by any devices", [
        dra.claim("c", constraints=[{"distinctAttribute": "gpu.nvidia.com/uuid"}])], [], {"kinds": KINDS}),
    Edge("A09", "equal identities are met by none", [
        dra.resource_slice(gpu(uuid="GPU-0"), gpu(1, uuid="GPU-1")),
        dra.resource_slice(gpu(uuid="GPU-0"), node="node-b"),
        dra.claim("c", constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}])],
        [("spec.devices.constraints[0].matchAttribute", "no two devices of a node share: it is never met")],
        {"kinds": KINDS}),
    Edge("A09", "partitions share the identity of their GPU", [
        *counted(part("a", parentUUID="GPU-0"), part("b", parentUUID="GPU-0")),
        dra.claim("c", constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])], [], {"kinds": KINDS}),
    Edge("A09", "who shares what nobody knows without slices", [
        dra.claim("c", constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}])], [], {"kinds": KINDS}),
    Edge("A10", "without counters there is nothing to draw on", [dra.resource_slice(gpu(), gpu(1))], []),
    Edge("A12", "each pool that shares", [
        dra.resource_slice(dra.device("gpu-0", None, allowMultipleAllocations=True), node=node)
        for node in ("node-a", "node-b")],
        [("spec.devices[0].allowMultipleAllocations", "so the pool is 100% used")] * 2),
    Edge("A13", "admin access holds nothing", [
        dra.resource_slice(gpu(1)), dra.claim("c", results=[("gpu-0", POOL, {"adminAccess": True})])], []),
    Edge("A13", "a pool that is not complete may still bring it", [
        dra.resource_slice(gpu(1), count=2), dra.claim("c", results=[("gpu-0", POOL)])], []),
    Edge("A13", "what nobody gave cannot be missed", [dra.claim("c", results=[("gpu-0", POOL)])], []),
    Edge("A14", "with counters the server knows the limit itself", [
        *counted(*(part(f"p-{n}") for n in range(65)))], []),
    Edge("A14", "alternatives are not added up", [
        dra.claim("c", alternatives(dra.request("a", count=30), dra.request("b", count=30)))], []),
    Edge("A15", "other values of counters are other types", counted(
        part("a", profile="1g"), part("b", profile="2g", memory="20Gi"),
        partitionTypeAttribute="gpu.nvidia.com/profile"), []),
    Edge("A15", "a device that does not tell its type", counted(
        part("a"), partitionTypeAttribute="gpu.nvidia.com/profile"),
        [("spec.devices[0].attributes", "device a has no text in gpu.nvidia.com/profile")]),
    Edge("A15", "the third of a kind is not told again", counted(
        part("a", profile="1g"), part("b", profile="1g", memory="20Gi"), part("c", profile="1g", memory="20Gi"),
        partitionTypeAttribute="gpu.nvidia.com/profile"),
        [("spec.devices[1].consumesCounters", "draw on different counters: a, b")]),
    Edge("A16", "from a template, by the pod's status", [
        dra.resource_slice(gpu()), ELSEWHERE, of_template(TRAIN, "c")],
        [("status.allocation", "from a pool that isn't node-local on node-a")]),
    Edge("A16", "a node that is not ready is no sample", [
        dra.node("node-a", ready=False), dra.resource_slice(gpu()), ELSEWHERE, TRAIN], []),
    Edge("A16", "a pod that waits is on no node", [
        dra.resource_slice(gpu()), ELSEWHERE, dra.pod("train", claims=[("gpus", "c")])], []),
    Edge("A17", "a named claim is the user's to share", [
        dra.daemon_set("d", pod_spec={"resourceClaims": [{"name": "g", "resourceClaimName": "c"}]})], []),
    Edge("A18", "what surges leaves the slices", [
        driver_daemon("RollingUpdate", maxUnavailable=0, maxSurge="10%")], []),
    Edge("A18", "by hand", [driver_daemon("OnDelete")], []),
    Edge("A18", "the default takes one node after the other", [driver_daemon("RollingUpdate")],
        [("spec.updateStrategy.rollingUpdate.maxUnavailable", "the old pod goes before the new one comes")]),
    Edge("A18", "45 % is still allowed", [driver_daemon("RollingUpdate", maxUnavailable="45%")],
        [("spec.updateStrategy.rollingUpdate.maxUnavailable", "the old pod goes before the new one comes")]),
    Edge("A19", "NoExecute is not seen either", [dra.taint_rule("r", "NoExecute")],
        [("spec.taint", "gpu.nvidia.com/xid:NoExecute")]),
    Edge("A20", "each driver once", [
        dra.resource_slice(dra.device("nic"), node=node, driver="nic.example.com") for node in ("node-a", "node-b")],
        [("spec.driver", "count driver nic.example.com")]),
    Edge("A21", "tolerations in an alternative", [
        dra.claim("c", alternatives(dra.request("a", tolerations=[{"operator": "Exists"}])))],
        [("spec.devices.requests[0].firstAvailable[0].tolerations", "Karpenter knows no device taints")]),
    Edge("A21", "in a template", [dra.claim_template("t", dra.request("a", adminAccess=True))],
        [("spec.spec.devices.requests[0].exactly.adminAccess", "sets the device apart")]),
    Edge("A22", "one slice has no order", [dra.resource_slice(gpu(), name="node-a-x7k2p")], []),
    Edge("A22", "indices of two widths", [
        dra.resource_slice(gpu(n), count=2, name=name) for n, name in enumerate(("00000-a", "000001-a"))],
        [("metadata.name", "no index of one width")]),
    Edge("A22", "slices with counters alone are not tried", [*counted(part("a"))], []),
    Edge("A23", "in an alternative", [
        dra.resource_slice(gpu(), count=2), dra.claim("c", alternatives(dra.request("a", allocationMode="All")))],
        [("spec.devices.requests[0].firstAvailable[0].allocationMode", "asks for all devices while")]),
    Edge("A23", "whole pools can be asked for", [
        dra.resource_slice(gpu()), dra.claim("c", dra.request("a", allocationMode="All"))], []),
    Edge("A24", "in what makes pods", [deployment(resourceClaims=[{"name": "g", "resourceClaimName": "c"}])],
        [("spec.template.spec.preemptionPolicy", "preemption policy PreemptLowerPriority")]),
    Edge("A24", "pods that have ended preempt nobody", [
        {**dra.pod("done", claims=[("gpus", "c")]), "status": {"phase": "Succeeded"}}], []),
    Edge("A25", "a counter set twice", [
        dra.resource_slice(sharedCounters=[dra.counter_set("s", m="1")] * 2)],
        [("spec.sharedCounters", "has counter sets twice: s")]),
    Edge("A25", "a counter that may still come", [
        dra.resource_slice(part("a", "set-9"), count=2, name="00001-a")], []),
    Edge("A27", "a list with a node that is none", [
        dra.resource_slice(dra.device("gpu-0", {"resource.kubernetes.io/numaNode": {"ints": [0, -1]}}))],
        [("spec.devices[0].attributes[resource.kubernetes.io/numaNode]", "would look as if they shared one")]),
    Edge("A27", "a root as a bus address", [
        dra.resource_slice(dra.device("gpu-0", {"resource.kubernetes.io/pcieRoot": "0000:16:00.0"}))],
        [("spec.devices[0].attributes[resource.kubernetes.io/pcieRoot]", "other drivers write it as pci0000:16")]),
    Edge("A28", "two drivers may mean two things", [
        dra.resource_slice(dra.device("gpu-0", {"index": 0})),
        dra.resource_slice(dra.device("nic-0", {"index": "0"}), **NIC)], []),
    Edge("A28", "on another node", [
        dra.resource_slice(dra.device("gpu-0", {"index": 0})),
        dra.resource_slice(dra.device("gpu-0", {"index": "0"}), node="node-b")],
        [("spec.devices[0].attributes[index]", "attribute index is string on device gpu-0 and int on gpu-0")]),
    Edge("A29", "a function that an older release lacks", [
        dra.device_class("c", f"{OWN}.type.includes('gpu')")],
        [("spec.selectors[0].cel.expression", "does not compile")], {"release": 34}),
    Edge("A29", "the same in the release that has it", [dra.device_class("c", f"{OWN}.type.includes('gpu')")], []),
    Edge("A30", "without classes nobody can tell", [dra.claim("c", dra.request("a", "none.example.com"))], []),
    Edge("A30", "in each alternative", [
        CLASS, dra.claim("c", alternatives(dra.request("a"), dra.request("b", "none.example.com")))],
        [("spec.devices.requests[0].firstAvailable[1].deviceClassName", "there is no DeviceClass none.example.com")]),
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.rule} {edge.title}")
def test_a_rule_ends_where_its_fault_ends(edge: Edge) -> None:
    report = lint(dra.collection(*edge.documents), Options(**edge.options), rules=chosen([edge.rule]))

    found = [(entry.finding.path, entry.finding.message) for entry in report.found]
    assert [path for path, _ in found] == [path for path, _ in edge.found], found
    for (_, message), (_, words) in zip(found, edge.found, strict=True):
        assert words in message


def test_an_update_of_half_of_the_nodes_is_a_warning_and_the_gap_before_the_new_pod_a_note() -> None:
    report = lint(dra.collection(driver_daemon("RollingUpdate", maxUnavailable="50%")), rules=chosen(["A18"]))

    assert [entry.severity for entry in report.found] == [Severity.WARNING, Severity.NOTE]


def test_a_class_that_could_not_be_read_is_not_called_missing() -> None:
    broken = {**dra.device_class("gpus", "true"), "spec": {"selectors": "none"}}
    found = read_text(json.dumps([CLASS, broken, dra.claim("c", dra.request("a", "gpus"))]), "dump.json")

    report = lint(found, rules=chosen(["A30"]))

    assert [problem.document.split(" (")[0] for problem in report.problems] == ["DeviceClass gpus"]
    assert report.found == ()
