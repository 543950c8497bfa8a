"""The questions: random small nodes from a fixed seed, and the scenes that the lint and the pages speak of."""

from __future__ import annotations

import itertools
import random
from typing import Any, TypeAlias

from driver.analysis.shape import AttributeKinds, export, karpenter

JSON: TypeAlias = dict[str, Any]

SEED = 20261130
COUNT = 30
PREFIX = "resource.kubernetes.io/"
MATCHED = (PREFIX + "numaNode", PREFIX + "pcieRoot", "gpu.nvidia.com/nvlinkGroup", "gpu.nvidia.com/uuid")
DRIVERS = ("gpu.nvidia.com", "nic.example.com")


def questions() -> list[JSON]:
    """All of them, the same each time."""
    chance = random.Random(SEED)
    asked = []
    for _ in range(COUNT):
        slices = _slices(chance)
        claims = _claims(chance, slices)
        asked += [
            {"op": "utilization", "slices": slices, "claims": claims},
            {"op": "complete", "slices": slices},
            {"op": "ready", "slices": slices, "template": _slices(chance)},
            {"op": "slices", "slices": slices, "newNode": "new", "suffix": "x1"},
            {"op": "pools", "slices": slices, "node": "node-a"},
            _claims_question(chance, claims),
            _bindings_question(chance),
        ]
    asked += [_match_question(attribute) for attribute in MATCHED]
    names = [*DRIVERS, "dra.net", "tpu.google.com", "compute-domain.nvidia.com"]
    asked += [{"op": "driver", "slices": [_slice(name, "p", 1, 1)]} for name in names]
    return asked


def sample() -> list[JSON]:
    """What a node of eight GPUs and two network cards publishes: pairs on a PCIe root, fours on a NUMA node."""
    gpus = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"GPU-{number}"},
                "nvlinkGroup": {"string": "0000:10:00.0" if number < 7 else "0000:80:00.0"},
                PREFIX + "numaNode": {"int": number // 4},
                PREFIX + "pcieRoot": {"string": f"pci0000:{number // 2:02x}"},
            },
        }
        for number in range(8)
    ]
    nics = [
        {
            "name": f"nic-{number}",
            "attributes": {
                PREFIX + "numaNode": {"int": number},
                PREFIX + "pcieRoot": {"string": f"pci0000:{2 * number:02x}"},
            },
        }
        for number in range(2)
    ]
    return [
        _slice("gpu.nvidia.com", "node-a/gpu.nvidia.com", 1, 1, devices=gpus),
        _slice("nic.example.com", "node-a", 1, 1, devices=nics),
    ]


def _match_question(attribute: str) -> JSON:
    """Which devices of the sample's shape, as it is written for Karpenter, share a value."""
    shape = export(sample(), AttributeKinds({"gpu.nvidia.com/uuid": "launch"}))
    emitted = karpenter(shape).content
    names = [device["name"] for _, device in shape.devices]
    bindings = [
        {
            "attribute": entry["attribute"],
            "devices": [[device["driver"], device["pool"], device["device"]] for device in entry["devices"]],
        }
        for entry in emitted["attributeBindings"]
    ]
    return {
        "op": "match",
        "attribute": attribute,
        "templates": emitted["resourceSliceTemplates"],
        "bindings": bindings,
        "tries": [[name] for name in names] + [list(pair) for pair in itertools.combinations(names, 2)],
    }


def _slice(driver: str, pool: str, generation: int, count: int, **spec: Any) -> JSON:
    where = {} if {"allNodes", "nodeSelector"} & set(spec) else {"nodeName": "node-a"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{pool}-{generation}".replace("/", "-")},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            **where,
            **spec,
        },
    }


def _slices(chance: random.Random) -> list[JSON]:
    found = []
    for number in range(chance.randint(1, 3)):
        driver, pool = chance.choice(DRIVERS), f"pool-{number}"
        partitioned = chance.random() < 0.5
        parts = chance.randint(1, 2) + partitioned
        claimed = parts if chance.random() < 0.8 else parts + 1
        if partitioned:
            sets = [_counter_set(chance, f"set-{index}") for index in range(chance.randint(1, 3))]
            found.append(_slice(driver, pool, 2, claimed, sharedCounters=sets))
            parts -= 1
        else:
            sets = []
        for part in range(parts):
            where = {"allNodes": True} if chance.random() < 0.06 else {}
            devices = [_device(chance, f"d{part}-{index}", sets) for index in range(chance.randint(0, 4))]
            if chance.random() < 0.06 and devices:
                devices.append(devices[0])
            found.append(_slice(driver, pool, 2, claimed, devices=devices, **where))
        if chance.random() < 0.2:
            found.append(_slice(driver, pool, 1, 1, devices=[{"name": "old"}]))
        if chance.random() < 0.1:
            found.append(_slice(driver, pool, 3, 1, devices=[{"name": "newer"}]))
    chance.shuffle(found)
    return found


def _counter_set(chance: random.Random, name: str) -> JSON:
    amounts = {"memory": chance.choice(["40Gi", "80Gi"]), "slices": chance.choice(["7", "8"]), "none": "0"}
    return {"name": name, "counters": {key: {"value": value} for key, value in amounts.items()}}


def _device(chance: random.Random, name: str, sets: list[JSON]) -> JSON:
    device: JSON = {"name": name, "attributes": {"index": {"int": chance.randint(0, 3)}}}
    if sets and chance.random() < 0.8:
        chosen = chance.choice(sets)["name"] if chance.random() < 0.95 else "nowhere"
        amounts = {"memory": chance.choice(["5Gi", "10Gi", "500M"]), "slices": chance.choice(["1", "2", "1500m"])}
        use = {"counterSet": chosen, "counters": {key: {"value": value} for key, value in amounts.items()}}
        device["consumesCounters"] = [use]
    if chance.random() < 0.1:
        device["taints"] = [{"key": "example.com/sick", "effect": "NoSchedule"}]
    return device


def _claims(chance: random.Random, slices: list[JSON]) -> list[JSON]:
    names = [
        (body["spec"]["driver"], body["spec"]["pool"]["name"], device["name"])
        for body in slices
        for device in body["spec"].get("devices") or ()
    ]
    claims = []
    for number in range(chance.randint(0, 3)):
        results = []
        for driver, pool, device in chance.sample(names, min(len(names), chance.randint(0, 2))):
            result = {"request": "r", "driver": driver, "pool": pool, "device": device}
            results.append(result | ({"adminAccess": True} if chance.random() < 0.2 else {}))
        claims.append(_claim(chance, f"claim-{number}", results))
    return claims


def _claim(chance: random.Random, name: str, results: list[JSON]) -> JSON:
    values = [["node-a"], ["node-b"], ["node-a", "node-b"]][chance.choices(range(3), [16, 1, 1])[0]]
    field = {"key": "metadata.name", "operator": "In", "values": values}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "pod-uid", "controller": True}
    metadata: JSON = {"name": name, "namespace": "ml"}
    if chance.random() < 0.8:
        metadata["ownerReferences"] = [owner]
    status = {"allocation": allocation} if chance.random() < 0.95 else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {}},
        "status": status,
    }


def _claims_question(chance: random.Random, claims: list[JSON]) -> JSON:
    pools = ["pool-0", "pool-1", "pool-2"] if chance.random() < 0.8 else ["pool-0"]
    names = {"node": "node-a", "newNode": "new", "suffix": "x1", "owner": "pod-uid"}
    return {"op": "claims", "claims": claims, "pools": pools, **names}


def _bindings_question(chance: random.Random) -> JSON:
    devices = [["gpu.nvidia.com", "p", f"gpu-{index}"] for index in range(6)]
    bindings = [
        {
            "attribute": chance.choice(["resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"]),
            "devices": chance.sample(devices, chance.randint(1, 3)),
        }
        for _ in range(chance.randint(0, 4))
    ]
    return {"op": "bindings", "bindings": bindings}
