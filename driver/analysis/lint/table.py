"""The table of rules. The page, the help and the reports are made from it."""

from __future__ import annotations

from typing import Final

from driver.analysis.lint import rules_claims, rules_nodes, rules_partitions, rules_pools
from driver.analysis.lint.model import CLUSTER_AUTOSCALER, KARPENTER, SCHEDULER, Rule, Severity

_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_CA = "https://github.com/kubernetes-sigs/cluster-autoscaler/blob/33c3f97/pkg/"
_KARPENTER = "https://github.com/kubernetes-sigs/karpenter/blob/v1.15.0/"
_ISSUE = "https://github.com/kubernetes/kubernetes/issues/"
_KEP = "https://github.com/kubernetes/enhancements/tree/master/keps/sig-scheduling/"
_DRA = "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/"
_ALL = (SCHEDULER, CLUSTER_AUTOSCALER, KARPENTER)
_BOTH = (CLUSTER_AUTOSCALER, KARPENTER)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "A01",
        "one-pool-per-node",
        _W,
        "A driver publishes one pool on a node.",
        "Cluster Autoscaler counts a node as ready by its number of complete pools. With a pool for each GPU, the loss "
        "of one GPU makes the whole node unready.",
        "Publish all devices of the node in one pool, in several slices where they are many.",
        _CA + "processors/customresources/dra_processor.go",
        (CLUSTER_AUTOSCALER,),
        rules_pools.one_pool_per_node,
    ),
    Rule(
        "A02",
        "node-local",
        _E,
        "Devices are bound to their node by spec.nodeName.",
        "An autoscaler copies only slices with nodeName to the nodes that it imagines; devices that are reached by a "
        "selector or by all nodes never come with a new node.",
        "Publish from an agent on the node, with spec.nodeName.",
        _CA + "simulator/dynamicresources/provider/provider.go",
        _BOTH,
        rules_pools.node_local,
    ),
    Rule(
        "A03",
        "pool-names-apart",
        _E,
        "A pool's name belongs to one driver and one node.",
        "Schedulers without kubernetes#140435 keep counters by the pool's name alone: two drivers that use the same "
        "name on a node disturb each other.",
        "Name pools <node>/<driver>.",
        _ISSUE + "140434",
        (SCHEDULER, CLUSTER_AUTOSCALER),
        rules_pools.pool_names_apart,
    ),
    Rule(
        "A04",
        "pool-complete",
        _E,
        "A pool has as many slices at its newest generation as resourceSliceCount says.",
        "Nothing is allocated from an incomplete pool, the node is never scaled down, and as a sample it misleads: the "
        "group's new nodes are believed to have nothing to give.",
        "Publish the slices of a generation in one go, and let a watch repair those that get lost.",
        _CA + "simulator/dynamicresources/utils/utilization.go",
        _ALL,
        rules_pools.complete,
    ),
    Rule(
        "A05",
        "owned-by-node",
        _W,
        "A slice of a node has the Node as an owner.",
        "Karpenter leaves the slices of a node that is coming up aside, as it counts its templates until then; without "
        "the owner it counts the devices twice. And slices that nobody owns outlive their node.",
        "Set metadata.ownerReferences to the Node, with its UID.",
        _KARPENTER + "pkg/controllers/provisioning/dra.go",
        (KARPENTER,),
        rules_pools.owned_by_node,
    ),
    Rule(
        "A06",
        "keys-are-there",
        _E,
        "Every attribute that a selector reads is there on each device that it is asked about.",
        "A CEL expression that meets a missing key ends the scheduling of its pod on all nodes, not on this one alone.",
        "Guard the expression with device.driver == '...' && in front or with .?name.orValue(...), or let the driver "
        "publish the same keys on all its devices.",
        _DRA,
        _ALL,
        rules_claims.keys_are_there,
    ),
    Rule(
        "A07",
        "group-alike",
        _W,
        "The nodes of a group publish the same shape.",
        "The group's template is one arbitrary node. Where nodes differ, what an autoscaler believes of a new one "
        "depends on which node it happened to take, and changes without a cause.",
        "Find the difference with gpudra shape diff; give nodes of another kind a group of their own.",
        _CA + "processors/nodeinfosprovider/mixed_nodeinfos_processor.go",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.group_alike,
    ),
    Rule(
        "A08",
        "no-taints-on-samples",
        _W,
        "A node from which a template may be taken has no tainted devices.",
        "Taints in slices are copied to the nodes that Cluster Autoscaler imagines: one sick GPU of the sample makes "
        "it believe that every new node has one. Karpenter does not see taints at all.",
        "Cordon the node while a device is sick: then another node is the sample. Keep the shape of a sound node "
        "(gpudra shape export) where a group may shrink to one.",
        _CA + "simulator/dynamicresources/utils/sanitize.go",
        _BOTH,
        rules_nodes.no_taints_on_samples,
    ),
    Rule(
        "A09",
        "no-launch-attributes",
        _W,
        "Claims and classes do not select by what is new on each node or shared between nodes.",
        "A UUID or a bus address is copied to imaginary nodes with the sample: nodes are added that can never match. A "
        "fabric's id is known only after a node has joined.",
        "Select by product, memory and capability; compare numaNode, pcieRoot and the like by constraints; use node "
        "labels for racks and fabrics.",
        _CA + "simulator/dynamicresources/utils/sanitize.go",
        _BOTH,
        rules_claims.no_launch_attributes,
    ),
    Rule(
        "A10",
        "counters-for-all",
        _W,
        "In a pool with counters each device draws on one.",
        "As soon as a pool has counters, devices without them do not count as used: a node whose GPUs are all "
        "allocated can look idle and be scaled down.",
        "Give GPUs that cannot be partitioned a counter set of one counter, or a pool of their own.",
        _CA + "simulator/dynamicresources/utils/utilization.go",
        (CLUSTER_AUTOSCALER,),
        rules_partitions.counters_for_all,
    ),
    Rule(
        "A11",
        "utilization-forecast",
        _N,
        "What Cluster Autoscaler reckons for a partition is near what it takes.",
        "The fullest counter of a GPU counts for all of it, and a counter that marks a place is full with its first "
        "user: one small partition can make a GPU look full, and its node is never scaled down.",
        "Know it when you set --scale-down-utilization-threshold; placement of partitions needs such counters.",
        _CA + "simulator/dynamicresources/utils/utilization.go",
        (CLUSTER_AUTOSCALER,),
        rules_partitions.forecast,
    ),
    Rule(
        "A12",
        "shares-count-whole",
        _N,
        "One share of a shareable device counts as the whole device.",
        "Cluster Autoscaler counts names of devices, not the capacity that is consumed: a node with one small share on "
        "each GPU looks full.",
        "Know it when you set --scale-down-utilization-threshold.",
        _CA + "simulator/dynamicresources/utils/utilization.go",
        (CLUSTER_AUTOSCALER,),
        rules_partitions.shares_count_whole,
    ),
    Rule(
        "A13",
        "allocated-devices-exist",
        _E,
        "A device that is allocated is published, and no counter is overdrawn.",
        "With a device that vanishes from its slice its counters vanish from the reckoning: the same hardware is given "
        "out twice.",
        "Keep a sick device in the slice and taint it; take it out when its last claim is gone.",
        _ISSUE + "140802",
        (SCHEDULER,),
        rules_claims.allocated_devices_exist,
    ),
    Rule(
        "A14",
        "room-for-a-taint",
        _W,
        "A slice has at most 64 devices, a claim asks for at most 32.",
        "A slice may have 128 devices, but 64 as soon as one has a taint: the first sick device would make the slice "
        "invalid and hide all the others.",
        "Split the pool into slices of 64 devices.",
        _DRA,
        (SCHEDULER,),
        rules_pools.room_for_a_taint,
    ),
    Rule(
        "A15",
        "one-cost-per-type",
        _W,
        "With partitionTypeAttribute, devices of one type draw on counters in one way.",
        "The pool's status reports PartitionCostMismatch or PartitionTypeMissing and gives no summary.",
        "Leave the attribute out where partitions of one type lie in different places (MIG does).",
        _KEP + "5677-dra-resource-availability-visibility",
        (SCHEDULER,),
        rules_partitions.one_cost_per_type,
    ),
    Rule(
        "A16",
        "claims-stay-on-the-node",
        _E,
        "What pods own on a node that may be a sample is allocated from that node's pools.",
        "Cluster Autoscaler cannot copy such a claim; the error ends its loop for all groups: nothing is scaled up or "
        "down anywhere.",
        "Let the pods share a claim that none of them owns, or keep them on nodes without an autoscaled group.",
        _CA + "simulator/dynamicresources/utils/sanitize.go",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.claims_stay_on_the_node,
    ),
    Rule(
        "A17",
        "daemons-look-on",
        _W,
        "Pods of a DaemonSet use devices only by admin access.",
        "On an imaginary node the devices of DaemonSet pods are taken before the pending pod is tried, and they keep "
        "a node from looking idle.",
        "Set adminAccess: true in the request (the namespace needs the label resource.kubernetes.io/admin-access).",
        _CA + "docs/dra_support.md",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.daemons_look_on,
    ),
    Rule(
        "A18",
        "rollout-keeps-slices",
        _W,
        "An update of the driver leaves the slices where they are.",
        "Thirty seconds without a registered plugin, and the kubelet deletes the driver's slices; above 45 % unready "
        "nodes Cluster Autoscaler stops.",
        "Update with maxSurge: 1 and maxUnavailable: 0 where the driver can run twice; else a few nodes at a time.",
        _CA + "processors/customresources/dra_processor.go",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.rollout_keeps_slices,
    ),
    Rule(
        "A19",
        "no-taint-rules",
        _W,
        "Devices are tainted in their slices, not by DeviceTaintRules.",
        "No autoscaler looks at the rules: the devices look free, so no node is added while pods are pending.",
        "Let the driver taint the device in its slice; keep rules for short interventions.",
        "https://github.com/kubernetes/autoscaler/issues/7947",
        _BOTH,
        rules_nodes.no_taint_rules,
    ),
    Rule(
        "A20",
        "driver-in-metrics",
        _N,
        "The driver has a name in Cluster Autoscaler's metrics.",
        "Drivers that it does not know are counted together as custom.driver.",
        "Nothing to do for a claim; ask upstream to add the name.",
        _CA + "utils/dynamicresources/metrics.go",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.driver_in_metrics,
    ),
    Rule(
        "A21",
        "understood-by-autoscalers",
        _N,
        "A claim uses what autoscalers understand.",
        "Karpenter refuses a claim with distinctAttribute and reads past tolerations and admin access; Cluster "
        "Autoscaler's own pods (ProvisioningRequest) get no claims from templates.",
        "Use matchAttribute, or know that no node will be added for these pods.",
        _KARPENTER + "pkg/scheduling/dynamicresources/request.go",
        _BOTH,
        rules_claims.understood_by_autoscalers,
    ),
    Rule(
        "A22",
        "slice-order",
        _W,
        "Names of the slices of a pool begin with an index of one width.",
        "The scheduler tries slices in the order of their names and takes the first device that fits: with random "
        "names the driver has no say in which partition is taken first.",
        "Begin generateName with the index in hexadecimal, padded to five digits.",
        "https://github.com/kubernetes/dynamic-resource-allocation/blob/master/resourceslice/resourceslicecontroller.go",
        (SCHEDULER,),
        rules_pools.slice_order,
    ),
    Rule(
        "A23",
        "all-of-a-whole",
        _E,
        "Nobody asks for all devices while a pool is incomplete.",
        "allocationMode All fails for the pod on all nodes as soon as any pool that it sees is being changed.",
        "Ask for a number of devices, or repair the pools that A04 names.",
        _ISSUE + "141829",
        (SCHEDULER,),
        rules_claims.all_of_a_whole,
    ),
    Rule(
        "A24",
        "pods-do-not-preempt",
        _N,
        "Pods with claims have preemptionPolicy Never.",
        "The scheduler does not preempt for devices, and Cluster Autoscaler takes a pod that waits for a preemption "
        "for one that needs no node.",
        "Set preemptionPolicy: Never, by a PriorityClass.",
        "https://github.com/kubernetes/autoscaler/issues/7683",
        (CLUSTER_AUTOSCALER,),
        rules_nodes.pods_do_not_preempt,
    ),
    Rule(
        "A25",
        "valid-pool",
        _E,
        "Names are unique in a pool, and counters that devices draw on exist.",
        "The API server looks at each slice alone; the scheduler takes nothing from a pool whose slices do not fit "
        "together.",
        "Build all slices of a pool from one list.",
        _KEP + "4815-dra-partitionable-devices",
        _ALL,
        rules_pools.valid_pool,
    ),
    Rule(
        "A26",
        "accepted-by-the-server",
        _E,
        "The API server accepts the document.",
        "A slice that is refused hides all of its devices.",
        "Correct the field.",
        "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/",
        (SCHEDULER,),
        rules_pools.accepted_by_the_server,
    ),
    Rule(
        "A27",
        "standard-attributes",
        _W,
        "Standard attributes are written as other drivers write them.",
        "Drivers are matched by equal values: a bus address in upper case never equals the network card's, and -1 for "
        "an unknown NUMA node makes strangers look like neighbours.",
        "Write pciBusID as 0000:1b:00.0, pcieRoot as pci0000:16, and leave numaNode out where it is unknown.",
        "https://github.com/kubernetes/dynamic-resource-allocation/tree/master/deviceattribute",
        _ALL,
        rules_pools.standard_attributes,
    ),
    Rule(
        "A28",
        "one-type-per-attribute",
        _E,
        "An attribute of a driver has the same type on all its devices.",
        "A selector that compares it fails on the devices of the other type, and with it the scheduling of the pod.",
        "Publish it as one type; give the other meaning a name of its own.",
        _DRA,
        _ALL,
        rules_pools.one_type_per_attribute,
    ),
    Rule(
        "A29",
        "selectors-compile",
        _E,
        "Selectors are valid CEL.",
        "The API server refuses the document; one that was stored by an older server fails whenever it is used.",
        "Correct the expression at the column that the message names.",
        "https://kubernetes.io/docs/reference/using-api/cel/",
        _ALL,
        rules_claims.compiles,
    ),
    Rule(
        "A30",
        "classes-are-there",
        _E,
        "The classes that claims name exist.",
        "The pod stays pending with: device class does not exist.",
        "Create the class, or correct the name.",
        _DRA,
        _ALL,
        rules_claims.classes_are_there,
    ),
)
