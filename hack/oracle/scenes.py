"""Random small clusters, made from a seed alone: everything that the allocator looks at, right and wrong."""

from __future__ import annotations

import random
from typing import Any

from .build import Release

Document = dict[str, Any]

DRIVERS = ("gpu.example.com", "nic.example.com")
NUMA = "resource.kubernetes.io/numaNode"
DEFAULTS = {
    34: ("AdminAccess", "DeviceStatus", "PrioritizedList"),
    36: ("AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "PartitionableDevices",
         "PrioritizedList"),
    37: ("AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "FractionalCapacityRange",
         "PartitionableDevices", "PrioritizedList"),
}  # fmt: skip
MORE = {
    34: ("ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "PartitionableDevices"),
    36: ("ListTypeAttributes",),
    37: ("CompatibilityGroups", "DerivedAttributes", "ListTypeAttributes", "OptionalNodeOperations"),
}
STABLE = ("AdminAccess", "DeviceTaints", "PartitionableDevices", "PrioritizedList")
SELECTORS = (
    "true",
    'device.driver.endsWith(".example.com")',
    'device.driver == "gpu.example.com"',
    'device.driver == "nic.example.com"',
    'device.attributes["gpu.example.com"].model == "a"',
    'device.attributes["gpu.example.com"].?model.orValue("") in ["a", "b"]',
    'has(device.attributes["gpu.example.com"].model) && device.attributes["gpu.example.com"].model != "c"',
    'device.attributes["resource.kubernetes.io"].numaNode == 0',
    '"numaNode" in device.attributes["resource.kubernetes.io"]',
    'device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.1.0"))',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("20Gi")) >= 0',
    "device.capacity.exists(d, device.capacity[d].exists(k, k == 'memory'))",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "true",
    "1 + 1 == 2 && device.attributes.all(d, d != 'x')",
)


class Maker:
    """Makes one scene for one release."""

    def __init__(self, version: str, seed: int) -> None:
        self.release = Release(version).minor
        self.seed = seed
        self._random = random.Random(f"{version}:{seed}")

    def chance(self, part: float) -> bool:
        """True in this part of the cases."""
        return self._random.random() < part

    def mishap(self, part: float) -> bool:
        """True in this part of the cases, less often in a scene that is meant to be orderly."""
        return self.chance(part * self.trouble)

    def pick(self, options: Any) -> Any:
        """One of them."""
        return self._random.choice(tuple(options))

    def some(self, options: Any, part: float) -> list[Any]:
        """Each of them in this part of the cases."""
        return [each for each in options if self.chance(part)]

    def scene(self) -> Document:
        """The whole scene, as the oracle reads it."""
        self.features = self._features()
        self.nodes = [self._node(number) for number in range(self._random.choice((1, 1, 2)))]
        self.budget = self._random.randint(2, 8)
        self.trouble = self._random.choice((0.0, 0.0, 0.3, 1.0))
        slices: list[Document] = []
        for pool in range(self._random.randint(1, 3)):
            slices += self._pool(pool)
        self._random.shuffle(slices)
        self.classes = [self._class(name) for name in ("any", "class-a")]
        claims = [self._claim(number) for number in range(self._random.choice((1, 1, 1, 2)))]
        scene = {
            "ID": f"{self.seed}",
            "Features": self.features,
            "Nodes": self.nodes,
            "Slices": slices,
            "Classes": self.classes,
            "Allocated": self._allocated(slices),
            "Claims": claims,
            "TimeoutMs": 5000,
        }
        if self.release >= 36 and self.chance(0.1):
            scene["TaintRules"] = [self._rule(slices) for _ in range(self._random.randint(1, 2))]
        return scene

    def _features(self) -> list[str]:
        if self.chance(0.25):
            return sorted(self.some(STABLE, 0.75))
        if self.chance(0.5):
            return sorted(DEFAULTS[self.release])
        base = [*self.some(DEFAULTS[self.release], 0.9), *self.some(MORE[self.release], 0.5)]
        if "CompatibilityGroups" in base and "PartitionableDevices" not in base:
            base.append("PartitionableDevices")
        return sorted(base)

    def _on(self, feature: str, otherwise: float = 0.1) -> bool:
        return feature in self.features or self.chance(otherwise)

    def _node(self, number: int) -> Document:
        labels = {"zone": self.pick("ab"), "size": self.pick(("1", "2", "x"))}
        node: Document = {"metadata": {"name": f"node-{number}", "labels": labels}}
        if self.chance(0.5):
            node["status"] = {"declaredFeatures": ["DRAOptionalNodeOperations"]}
        return node

    def _where(self) -> Document:
        roll = self._random.random()
        if roll < 0.95 - 0.3 * self.trouble:
            return {"nodeName": self.pick(self.nodes)["metadata"]["name"]}
        if roll < 0.97:
            return {"allNodes": True}
        return {"nodeSelector": {"nodeSelectorTerms": [self._term()]}}

    def _term(self) -> Document:
        if self.chance(0.2):
            field = {"key": "metadata.name", "operator": self.pick(("In", "NotIn")), "values": ["node-0"]}
            return {"matchFields": [field]}
        operator = self.pick(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        key = "size" if operator in ("Gt", "Lt") else self.pick(("zone", "size", "nope"))
        values = {"Exists": [], "DoesNotExist": [], "Gt": ["1"], "Lt": ["2"]}.get(
            operator, self.some("ab12", 0.6) or ["a"]
        )
        requirement = {"key": key, "operator": operator} | ({"values": values} if values else {})
        return {"matchExpressions": [requirement]}

    def _pool(self, number: int) -> list[Document]:
        driver = self.pick(DRIVERS)
        name = f"pool-{self._random.randint(0, number)}" if self.chance(0.3) else f"pool-{number}"
        pool = {"name": name, "generation": self._random.choice((1, 1, 1, 2)), "resourceSliceCount": 1}
        where = {"perDeviceNodeSelection": True} if self.chance(0.12) else self._where()
        counting = self._on("PartitionableDevices") and self.chance(0.5)
        sets = self._counter_sets() if counting else []
        slices = []
        for index in range(self._random.choice((1, 1, 2))):
            spec: Document = {"driver": driver, "pool": dict(pool), **where}
            spec["devices"] = self._devices(number, index, sets, "perDeviceNodeSelection" in where)
            if self._on("OptionalNodeOperations", 0.0) and self.chance(0.2):
                spec["skipNodeOperations"] = ["NodeUnprepareResources"]
            slices.append({"metadata": {"name": f"{self.pick('abc')}{number}{index}"}, "spec": spec})
        if sets and self.release == 34:
            for each in slices:
                each["spec"]["sharedCounters"] = sets
        elif sets:
            spec = {"driver": driver, "pool": dict(pool), **self._for_counters(where), "sharedCounters": sets}
            slices.append({"metadata": {"name": f"{self.pick('abc')}{number}x"}, "spec": spec})
        return self._counted(slices)

    def _for_counters(self, where: Document) -> Document:
        return where if self.chance(0.7) else self._where()

    def _counted(self, slices: list[Document]) -> list[Document]:
        for each in slices:
            each["spec"]["pool"]["resourceSliceCount"] = len(slices)
        if self.mishap(0.1):
            slices.pop()
        if slices and self.mishap(0.1):
            slices[0]["spec"]["pool"]["generation"] += 1
        return slices

    def _counter_sets(self) -> list[Document]:
        names = ["set-0"] if self.chance(0.6) else ["set-0", "set-1"]
        if self.mishap(0.1):
            names.append("set-0")
        return [
            {"name": name, "counters": {key: {"value": str(self._random.randint(1, 4))} for key in ("sms", "memory")}}
            for name in names
        ]

    def _devices(self, pool: int, index: int, sets: list[Document], per_device: bool) -> list[Document]:
        count = min(self.budget, self._random.randint(self._random.choice((0, 2)), 5))
        self.budget -= count
        devices = []
        for number in range(count):
            name = f"dev-{index}{number}" if not self.mishap(0.05) else "dev-00"
            device = self._device(name, pool, number)
            if sets and self.chance(0.8):
                device["consumesCounters"] = [self._consumption(sets)]
            if per_device:
                device |= self._where()
            devices.append(device)
        return devices

    def _consumption(self, sets: list[Document]) -> Document:
        name = self.pick(sets)["name"] if not self.mishap(0.05) else "nope"
        counters = {
            key: {"value": str(self._random.randint(0, 3))} for key in self.some(("sms", "memory"), 0.7) or ["sms"]
        }
        if self.mishap(0.05):
            counters["nope"] = {"value": "1"}
        consumption: Document = {"counterSet": name, "counters": counters}
        if self._on("CompatibilityGroups", 0.02) and self.chance(0.5):
            consumption["compatibilityGroups"] = self.some(("mig", "vgpu"), 0.6) or ["mig"]
        return consumption

    def _device(self, name: str, pool: int, number: int) -> Document:
        device: Document = {"name": name, "attributes": self._attributes()}
        if self.chance(0.5):
            device["capacity"] = {"memory": {"value": self.pick(("10Gi", "40Gi", "80Gi"))}}
        if self._on("ConsumableCapacity", 0.05) and self.chance(0.4):
            device["allowMultipleAllocations"] = self.chance(0.9)
            device["capacity"] = self._shareable_capacity()
        if self._on("DeviceTaints") and self.chance(0.15):
            device["taints"] = [self._taint() for _ in range(self._random.randint(1, 2))]
        if self._on("DeviceBindingAndStatus") and self.chance(0.1):
            device |= {
                "bindingConditions": ["ready"],
                "bindingFailureConditions": ["failed"],
                "bindsToNode": self.chance(0.5),
            }
        return device

    def _attributes(self) -> Document:
        found: Document = {}
        if self.chance(0.9):
            found["model"] = {"string": self.pick("abc")}
        if self.chance(0.85):
            found[NUMA] = {"int": self._random.randint(0, 1)}
        if self.chance(0.7):
            found["version"] = {"version": self.pick(("1.0.0", "1.2.0", "2.0.0-rc.1"))}
        if self.chance(0.3):
            found["healthy"] = {"bool": self.chance(0.5)}
        if self._on("ListTypeAttributes", 0.0) and self.chance(0.5):
            found["links"] = {"strings": self.some("xyz", 0.5) or ["x"]}
        if self._on("ListTypeAttributes", 0.0) and self.chance(0.2):
            found["model"] = {"strings": self.some("abc", 0.5) or ["a"]}
        return found

    def _shareable_capacity(self) -> Document:
        policies: list[Document] = [
            {"value": "10"},
            {"value": "10", "requestPolicy": {"default": "2"}},
            {"value": "10", "requestPolicy": {"default": "2", "validValues": ["1", "2", "5"]}},
            {"value": "10", "requestPolicy": {"default": "2", "validRange": {"min": "1", "max": "8", "step": "1"}}},
            {"value": "10", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}},
            {"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "512Mi", "max": "8Gi"}}},
            {"value": "2", "requestPolicy": {"default": "500m", "validRange": {"min": "250m", "step": "250m"}}},
            {"value": "0"},
        ]
        return {name: self.pick(policies) for name in self.some(("memory", "cores"), 0.7)}

    def _taint(self) -> Document:
        effects = ("NoSchedule", "NoExecute", "None") if self.release >= 36 else ("NoSchedule", "NoExecute")
        return {"key": self.pick(("bad", "worse")), "value": self.pick(("", "x")), "effect": self.pick(effects)}

    def _toleration(self) -> Document:
        found: Document = {"operator": self.pick(("Exists", "Equal"))}
        if found["operator"] == "Equal" or self.chance(0.7):
            found["key"] = self.pick(("bad", "worse"))
        if found["operator"] == "Equal" and self.chance(0.5):
            found["value"] = "x"
        if self.chance(0.4):
            found["effect"] = self.pick(("NoSchedule", "NoExecute"))
        return found

    def _class(self, name: str) -> Document:
        spec: Document = {}
        if name != "any":
            spec["selectors"] = [
                {"cel": {"expression": self.pick(SELECTORS)}} for _ in range(self._random.choice((0, 1, 1)))
            ]
        if self.chance(0.2):
            spec["config"] = [{"opaque": {"driver": DRIVERS[0], "parameters": {"class": name}}}]
        return {"metadata": {"name": name}, "spec": spec}

    def _claim(self, number: int) -> Document:
        requests = [self._request(index) for index in range(self._random.choice((1, 1, 2, 2, 3)))]
        devices: Document = {"requests": requests}
        names = [each["name"] for each in requests]
        full = [f"{each['name']}/{sub['name']}" for each in requests for sub in each.get("firstAvailable", ())]
        if self.chance(0.4):
            devices["constraints"] = [self._constraint([*names, *full]) for _ in range(self._random.choice((1, 1, 2)))]
        if self.chance(0.2):
            config: Document = {"opaque": {"driver": DRIVERS[0], "parameters": {"claim": number}}}
            if self.chance(0.7):
                config["requests"] = self.some([*names, *full], 0.5) or names[:1]
            devices["config"] = [config]
        return {"metadata": {"name": f"claim-{number}", "namespace": "ns"}, "spec": {"devices": devices}}

    def _request(self, index: int) -> Document:
        name = f"req-{index}"
        if self._on("PrioritizedList", 0.02) and self.chance(0.25):
            subs = [self._wish() | {"name": f"sub-{each}"} for each in range(self._random.randint(1, 3))]
            return {"name": name, "firstAvailable": subs}
        wish = self._wish()
        if self._on("AdminAccess", 0.02) and self.chance(0.08):
            wish["adminAccess"] = self.chance(0.8)
        return {"name": name, "exactly": wish}

    def _wish(self) -> Document:
        wish: Document = {"deviceClassName": self.pick(("any", "any", "class-a")) if not self.mishap(0.02) else "nope"}
        if self.chance(0.1):
            wish["allocationMode"] = "All"
        else:
            wish |= {"allocationMode": "ExactCount", "count": self._random.choice((1, 1, 1, 1, 2, 3))}
        if self.mishap(0.05):
            wish["count"] = 40
        if self.chance(0.25):
            wish["selectors"] = [{"cel": {"expression": self.pick(SELECTORS)}}]
        if self._on("DeviceTaints") and self.chance(0.25):
            wish["tolerations"] = [self._toleration()]
        if self._on("ConsumableCapacity", 0.02) and self.chance(0.3):
            amounts = ("1", "2", "3", "5", "9", "500m", "1Gi", "300m", "20")
            wish["capacity"] = {"requests": {name: self.pick(amounts) for name in self.some(("memory", "cores"), 0.6)}}
        if "DerivedAttributes" in self.features and self.chance(0.3):
            wish["derivedAttributes"] = [{"name": NUMA, "expression": self.pick(_DERIVED)}]
        return wish

    def _constraint(self, names: list[str]) -> Document:
        kind = "distinctAttribute" if self.chance(0.25) else "matchAttribute"
        attribute = self.pick((NUMA, "gpu.example.com/model", "gpu.example.com/links", NUMA, "gpu.example.com/nope"))
        found: Document = {kind: attribute}
        if self.chance(0.4):
            found["requests"] = self.some(names, 0.6) or names[:1]
        return found

    def _allocated(self, slices: list[Document]) -> list[Document]:
        results: list[Document] = []
        for each in slices:
            for device in each["spec"].get("devices", ()):
                if not self.chance(0.15):
                    continue
                result = self._result(each, device)
                if device.get("allowMultipleAllocations") and self.chance(0.9):
                    result |= {"shareID": f"00000000-0000-4000-8000-{len(results):012}"}
                    if device.get("capacity") and self.chance(0.9):
                        result["consumedCapacity"] = dict.fromkeys(device["capacity"], self.pick(("1", "2", "4")))
                elif self.chance(0.1):
                    result["adminAccess"] = True
                results.append(result)
        if not results:
            return []
        return [{"metadata": {"name": "before"}, "status": {"allocation": {"devices": {"results": results}}}}]

    def _result(self, slice_: Document, device: Document) -> Document:
        spec = slice_["spec"]
        return {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}

    def _rule(self, slices: list[Document]) -> Document:
        spec: Document = {"taint": self._taint()}
        if self.chance(0.9):
            chosen: Document = self.pick(slices)["spec"] if slices else {"driver": "x", "pool": {"name": "y"}}
            selector: Document = {}
            if self.chance(0.5):
                selector["driver"] = chosen["driver"]
            if self.chance(0.5):
                selector["pool"] = chosen["pool"]["name"]
            if self.chance(0.5):
                selector["device"] = f"dev-0{self._random.randint(0, 2)}"
            spec["deviceSelector"] = selector
        return {"metadata": {"name": "rule"}, "spec": spec}


_DERIVED = (
    'device.attributes["gpu.example.com"].model',
    "device.driver",
    'device.attributes["resource.kubernetes.io"].?numaNode.orValue(7)',
    '["a", device.driver]',
    "1 + 1",
)


def scene(version: str, seed: int) -> Document:
    """The scene of a seed; the same seed gives the same scene."""
    return Maker(version, seed).scene()
