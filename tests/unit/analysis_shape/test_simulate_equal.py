"""The allocator decides on an instantiated shape as it does on the real slices: what an autoscaler needs of it."""

from __future__ import annotations

from typing import Any

import pytest

from driver.analysis.allocator import Allocator, rules
from driver.analysis.shape import AttributeKinds, export, instantiate
from tests.support import dradocs as dra

JSON = dict[str, Any]
NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
KINDS = AttributeKinds({f"{dra.DRIVER}/uuid": "launch", f"{dra.DRIVER}/parentUUID": "launch"})
NIC = "nic.example.com"
CLASSES = [
    dra.device_class("gpu", "device.driver == 'gpu.nvidia.com'", "device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    dra.device_class("mig", "device.driver == 'gpu.nvidia.com'", "device.attributes['gpu.nvidia.com'].type == 'mig'"),
    dra.device_class("nic", "device.driver == 'nic.example.com'"),
]


def gpu(number: int, **fields: Any) -> JSON:
    attributes = {
        "type": "gpu",
        "model": "H200" if number else "H100",
        "uuid": f"GPU-{number}",
        NUMA: number // 4,
        ROOT: f"pci0000:{number // 2:02x}",
    }
    return dra.device(f"gpu-{number}", attributes, capacity={"memory": {"value": "141Gi"}}, **fields)


def parts(number: int) -> list[JSON]:
    """A GPU in two halves, and whole."""
    halves = [
        dra.device(
            f"gpu-{number}-mig-{half}",
            {"type": "mig", "parentUUID": f"GPU-{number}", NUMA: number},
            consumesCounters=dra.uses(f"set-{number}", memory="70Gi", **{f"slice-{half}": "1"}),
        )
        for half in range(2)
    ]
    whole = gpu(number, consumesCounters=dra.uses(f"set-{number}", memory="141Gi", **{"slice-0": "1", "slice-1": "1"}))
    return [*halves, whole]


WHOLE = [
    dra.resource_slice(*(gpu(number) for number in range(5)), count=2, name="00000-gpu"),
    dra.resource_slice(*(gpu(number) for number in range(5, 8)), count=2, name="00001-gpu"),
    dra.resource_slice(
        *(dra.device(f"nic-{n}", {ROOT: f"pci0000:{n:02x}"}) for n in range(3)),
        driver=NIC,
        pool="node-a",
        name="00000-nic",
    ),
]
DIVIDED = [
    dra.resource_slice(
        sharedCounters=[
            dra.counter_set(f"set-{n}", memory="141Gi", **{"slice-0": "1", "slice-1": "1"}) for n in range(2)
        ],
        count=2,
        name="00000-gpu",
    ),
    dra.resource_slice(*(device for n in range(2) for device in parts(n)), count=2, name="00001-gpu"),
]


def claim(*requests: JSON, match: str | None = None, distinct: str | None = None) -> JSON:
    constraints = [{"matchAttribute": match}] if match else []
    constraints += [{"distinctAttribute": distinct}] if distinct else []
    return dra.claim("c", *requests, constraints=constraints)


MODEL = "device.attributes['gpu.nvidia.com'].model == 'H100'"
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) > 0"
CORPUS = {
    "one": claim(dra.request("a", "gpu")),
    "eight": claim(dra.request("a", "gpu", count=8)),
    "nine": claim(dra.request("a", "gpu", count=9)),
    "all": claim(dra.request("a", "gpu", allocationMode="All")),
    "by model": claim(dra.request("a", "gpu", MODEL)),
    "two by model": claim(dra.request("a", "gpu", MODEL, count=2)),
    "by memory": claim(dra.request("a", "gpu", MEMORY, count=3)),
    "four of a NUMA node": claim(dra.request("a", "gpu", count=4), match=NUMA),
    "five of a NUMA node": claim(dra.request("a", "gpu", count=5), match=NUMA),
    "two of a root": claim(dra.request("a", "gpu", count=2), match=ROOT),
    "a GPU and a NIC of a root": claim(dra.request("a", "gpu"), dra.request("b", "nic"), match=ROOT),
    "two GPUs and a NIC of a root": claim(dra.request("a", "gpu", count=2), dra.request("b", "nic"), match=ROOT),
    "two of different roots": claim(dra.request("a", "gpu", count=1), dra.request("b", "gpu"), distinct=ROOT),
    "a half": claim(dra.request("a", "mig")),
    "four halves": claim(dra.request("a", "mig", count=4)),
    "a half and a whole": claim(dra.request("a", "mig"), dra.request("b", "gpu")),
    "a half and two wholes": claim(dra.request("a", "mig"), dra.request("b", "gpu", count=2)),
    "two halves of a GPU": claim(dra.request("a", "mig", count=2), match=f"{dra.DRIVER}/parentUUID"),
    "three halves of a GPU": claim(dra.request("a", "mig", count=3), match=f"{dra.DRIVER}/parentUUID"),
}


def decided(slices: list[JSON], node: str, wanted: JSON, release: int) -> tuple[bool, str, list[tuple[str, str, str]]]:
    allocator = Allocator(rules(release), CLASSES, slices)
    outcome = allocator.allocate(dra.node(node), [wanted])
    assert outcome.unsupported == ()
    chosen = [
        (entry["request"], entry["driver"], entry["device"])
        for document in outcome.allocations or ()
        for entry in document["devices"]["results"]
    ]
    return outcome.fits, outcome.kind, chosen


@pytest.mark.parametrize("release", [36, 37])
@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("slices", [WHOLE, DIVIDED], ids=["whole", "divided"])
def test_the_same_devices_are_given_on_the_imaginary_node(slices: list[JSON], name: str, release: int) -> None:
    imaginary = list(instantiate(export(slices, KINDS, strict=True), "imaginary"))

    real = decided(slices, "node-a", CORPUS[name], release)

    assert decided(imaginary, "imaginary", CORPUS[name], release) == real
    assert not decided(imaginary, "node-a", CORPUS[name], release)[2]


def test_the_corpus_holds_claims_that_fit_and_claims_that_do_not() -> None:
    answers = {
        name: [decided(slices, "node-a", wanted, 37)[:2] for slices in (WHOLE, DIVIDED)]
        for name, wanted in CORPUS.items()
    }

    assert {kind for both in answers.values() for _, kind in both} == {""}  # none is refused for how it is written
    never = {name for name, both in answers.items() if not any(fits for fits, _ in both)}
    assert never == {
        "nine",
        "two by model",
        "five of a NUMA node",
        "three halves of a GPU",
        "a half and two wholes",
    }
