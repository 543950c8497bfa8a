"""The types of the fields that the analysis reads: what a document must be before anybody looks into it.

These are not the API server's rules (limits, names, formats); they say that a list is a list and a quantity a
quantity, so that a damaged dump gives an error with a path instead of a stack trace later. Unknown fields pass.
Source: k8s.io/api/resource/v1 of Kubernetes 1.37, k8s.io/api/core/v1 for the few fields of Node, Pod and DaemonSet.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

JSON = dict[str, Any]

_QUANTITY: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$"
Quantity = Annotated[str, msgspec.Meta(pattern=_QUANTITY)] | int | float
Text = Annotated[str, msgspec.Meta(min_length=1)]
TypeOfValue = Literal["string", "int", "bool", "version", "strings", "ints", "bools", "versions"]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Part(msgspec.Struct, rename="camel"):
    """Fields in the API's spelling; null stands for absent, as in JSON that Go has written."""


class _Owner(_Part):
    kind: str
    name: str
    controller: bool | None = None


class _Metadata(_Part):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Attribute(msgspec.Struct):
    bool_: bool | None = msgspec.field(name="bool", default=None)
    int_: Int64 | None = msgspec.field(name="int", default=None)
    string: str | None = None
    version: str | None = None
    bools: list[bool] | None = None
    ints: list[Int64] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class _ValidRange(_Part):
    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


class _RequestPolicy(_Part):
    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: _ValidRange | None = None


class _Capacity(_Part):
    value: Quantity
    request_policy: _RequestPolicy | None = None


class _Counter(_Part):
    value: Quantity


class _CounterSet(_Part):
    name: str
    counters: dict[str, _Counter]


class _Consumption(_Part):
    counter_set: str
    counters: dict[str, _Counter]


class _Taint(_Part):
    key: str
    effect: str
    value: str | None = None


class _NodeSelectorRequirement(_Part):
    key: str
    operator: str
    values: list[str] | None = None


class _NodeSelectorTerm(_Part):
    match_expressions: list[_NodeSelectorRequirement] | None = None
    match_fields: list[_NodeSelectorRequirement] | None = None


class _NodeSelector(_Part):
    node_selector_terms: list[_NodeSelectorTerm] | None = None


class _Device(_Part):
    name: str
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Capacity] | None = None
    consumes_counters: list[_Consumption] | None = None
    taints: list[_Taint] | None = None
    node_name: str | None = None
    node_selector: _NodeSelector | None = None
    all_nodes: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class _Pool(_Part):
    name: str
    resource_slice_count: int
    generation: int = 0


class _SliceSpec(_Part):
    driver: str
    pool: _Pool
    node_name: str | None = None
    node_selector: _NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[_Device] | None = None
    shared_counters: list[_CounterSet] | None = None
    partition_type_attribute: str | None = None
    skip_node_operations: list[str] | None = None


class _ResourceSlice(_Part):
    metadata: _Metadata
    spec: _SliceSpec


class _Cel(_Part):
    expression: str


class _Selector(_Part):
    cel: _Cel | None = None


class _Opaque(_Part):
    driver: str
    parameters: Any = None


class _Configuration(_Part):
    requests: list[str] | None = None
    opaque: _Opaque | None = None


class _Toleration(_Part):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _CapacityRequests(_Part):
    requests: dict[str, Quantity] | None = None


class _SubRequest(_Part):
    device_class_name: str
    name: str | None = None
    selectors: list[_Selector] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[_Toleration] | None = None
    capacity: _CapacityRequests | None = None


class _Request(_Part):
    name: str
    exactly: _SubRequest | None = None
    first_available: list[_SubRequest] | None = None


class _Constraint(_Part):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _DeviceClaim(_Part):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None
    config: list[_Configuration] | None = None


class _ClaimSpec(_Part):
    devices: _DeviceClaim = msgspec.field(default_factory=_DeviceClaim)


class _Result(_Part):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)


class _Results(_Part):
    results: list[_Result] | None = None


class _Allocation(_Part):
    devices: _Results = msgspec.field(default_factory=_Results)
    node_selector: _NodeSelector | None = None


class _Consumer(_Part):
    resource: str
    name: str
    uid: str | None = None


class _ClaimStatus(_Part):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _ResourceClaim(_Part):
    metadata: _Metadata
    spec: _ClaimSpec
    status: _ClaimStatus | None = None


class _ClaimTemplateSpec(_Part):
    spec: _ClaimSpec


class _ResourceClaimTemplate(_Part):
    metadata: _Metadata
    spec: _ClaimTemplateSpec


class _ClassSpec(_Part):
    selectors: list[_Selector] | None = None
    config: list[_Configuration] | None = None
    extended_resource_name: str | None = None


class _DeviceClass(_Part):
    metadata: _Metadata
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


class _TaintSelector(_Part):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class _TaintRuleSpec(_Part):
    taint: _Taint
    device_selector: _TaintSelector | None = None


class _DeviceTaintRule(_Part):
    metadata: _Metadata
    spec: _TaintRuleSpec


class _NodeTaint(_Part):
    key: str
    effect: str | None = None


class _NodeSpec(_Part):
    taints: list[_NodeTaint] | None = None
    unschedulable: bool | None = None


class _Condition(_Part):
    type: str
    status: str


class _NodeStatus(_Part):
    conditions: list[_Condition] | None = None


class _Node(_Part):
    metadata: _Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _PodClaim(_Part):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(_Part):
    resource_claims: list[_PodClaim] | None = None
    preemption_policy: str | None = None
    node_name: str | None = None
    containers: list[JSON] | None = None


class _PodClaimStatus(_Part):
    name: str
    resource_claim_name: str | None = None


class _PodStatus(_Part):
    phase: str | None = None
    resource_claim_statuses: list[_PodClaimStatus] | None = None


class _Pod(_Part):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _PodTemplate(_Part):
    spec: _PodSpec


class _RollingUpdate(_Part):
    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class _UpdateStrategy(_Part):
    type: str | None = None
    rolling_update: _RollingUpdate | None = None


class _WorkloadSpec(_Part):
    template: _PodTemplate
    update_strategy: _UpdateStrategy | None = None


class _Workload(_Part):
    """DaemonSet, Deployment, StatefulSet, ReplicaSet, Job: what makes pods from a template."""

    metadata: _Metadata
    spec: _WorkloadSpec


class _ShapeDevice(_Part):
    name: str
    attributes: dict[str, _Attribute] | None = None
    assigned: dict[str, Literal["string", "int", "bool", "version", "strings", "ints", "bools", "versions"]] | None = (
        None
    )
    capacity: dict[str, _Capacity] | None = None
    consumes_counters: list[_Consumption] | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class _ShapeSlice(_Part):
    devices: list[_ShapeDevice] | None = None
    shared_counters: list[_CounterSet] | None = None
    partition_type_attribute: str | None = None


class _ShapePool(_Part):
    driver: Text
    name_template: Text
    slices: list[_ShapeSlice]


class _EqualGroup(_Part):
    attribute: Text
    kind: str
    groups: list[list[str]]


class _Dropped(_Part):
    path: str
    why: str


class _Identity(_Part):
    labels: dict[str, str] | None = None


class _NodeShape(_Part):
    """docs/shape.md; the hashes are not read, they are reckoned."""

    pools: list[_ShapePool]
    equal_groups: list[_EqualGroup]
    identity: _Identity
    dropped: list[_Dropped] | None = None


SCHEMAS: Final[dict[str, type[msgspec.Struct]]] = {
    "ResourceSlice": _ResourceSlice,
    "ResourceClaim": _ResourceClaim,
    "ResourceClaimTemplate": _ResourceClaimTemplate,
    "DeviceClass": _DeviceClass,
    "DeviceTaintRule": _DeviceTaintRule,
    "Node": _Node,
    "Pod": _Pod,
    "DaemonSet": _Workload,
    "Deployment": _Workload,
    "StatefulSet": _Workload,
    "ReplicaSet": _Workload,
    "Job": _Workload,
    "NodeShape": _NodeShape,
}
"""Kind -> type. Kinds that are not here are carried along without being looked at."""
