"""Claims of the kinds that people write for this driver's devices, and a machine's own slices to try them on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driver.analysis.allocator import Allocator
from driver.analysis.allocator import rules as allocator_rules
from driver.analysis.documents import load
from driver.analysis.shape import AttributeKinds
from driver.cli.documents import published
from driver.cli.main import build_parser
from driver.publish.kinds import attribute_kinds
from hack.oracle.scenes import DEFAULTS
from tests.support import dradocs as dra

JSON = dict[str, Any]
ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.stem for path in (ROOT / "native" / "mock" / "profiles").glob("*.yaml"))
KINDS = AttributeKinds(attribute_kinds(dra.DRIVER))
CLASSES = [document.body for document in load([ROOT / "deploy" / "deviceclasses.yaml"]).classes]
GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
OWN = f"device.attributes['{dra.DRIVER}']"
NUMA, PCIE = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"


@functools.cache
def machine(profile: str, mig: str) -> tuple[JSON, ...]:
    """The slices that the agent would publish on a mock node, which takes a moment to make."""
    args = build_parser(["lint"]).parse_args(["lint", "--mock-profile", profile, "--mig", mig])
    return tuple(published(args, "node-a"))


def claim(*requests: JSON, match: str | None = None, distinct: str | None = None) -> JSON:
    """A claim with one constraint over all of its requests."""
    constraints = [{"matchAttribute": match}] if match else []
    constraints += [{"distinctAttribute": distinct}] if distinct else []
    return dra.claim("c", *requests, constraints=constraints)


def either(*alternatives: JSON) -> JSON:
    """A request for the first of these that can be had."""
    subrequests = [
        {"name": f"way-{number}", **{key: value for key, value in request["exactly"].items() if key != "adminAccess"}}
        for number, request in enumerate(alternatives)
    ]
    return {"name": "gpus", "firstAvailable": subrequests}


def of(count: int, *expressions: str, device_class: str = GPU, name: str = "gpus", **fields: Any) -> JSON:
    """A request for so many."""
    return dra.request(name, device_class, *expressions, count=count, **fields)


def corpus() -> dict[str, JSON]:
    """Title -> claim."""
    found = {
        "all": claim(dra.request("gpus", GPU, allocationMode="All")),
        "a GPU of the newest generations": claim(of(1, f"{OWN}.architecture in ['Hopper', 'Blackwell']")),
        "a GPU of 80 GB": claim(of(1, f"device.capacity['{dra.DRIVER}'].memory.compareTo(quantity('80G')) >= 0")),
        "two GPUs of 80 GB": claim(of(2, f"device.capacity['{dra.DRIVER}'].memory.compareTo(quantity('80G')) >= 0")),
        "a new enough driver": claim(of(1, f"{OWN}.driverVersion.isGreaterThan(semver('500.0.0'))")),
        "a driver that is not out yet": claim(of(1, f"{OWN}.driverVersion.isGreaterThan(semver('9999.0.0'))")),
        "GPUs of NUMA node 1": claim(of(2, "device.attributes['resource.kubernetes.io'].?numaNode.orValue(-1) == 1")),
        "two of different roots": claim(of(1, name="a"), of(1, name="b"), distinct=PCIE),
        "a partition": claim(of(1, device_class=MIG)),
        "a partition and a GPU": claim(of(1, device_class=MIG, name="part"), of(1, name="whole")),
        "two partitions of a GPU": claim(of(2, device_class=MIG), match=f"{dra.DRIVER}/parentUUID"),
        "seven partitions": claim(of(7, f"{OWN}.profile.startsWith('1g')", device_class=MIG)),
        "partitions in two sizes": claim(
            of(1, f"{OWN}.profile.startsWith('3g')", device_class=MIG, name="large"),
            of(2, f"{OWN}.profile.startsWith('1g')", device_class=MIG, name="small"),
        ),
        "a partition, else a GPU": claim(either(of(1, device_class=MIG), of(1))),
        "eight GPUs, else one": claim(either(of(8), of(1))),
        "a look at one that is taken": claim(of(1, adminAccess=True)),
    }
    for count in (1, 2, 3, 4, 5, 8, 9):
        found[f"{count} GPUs"] = claim(of(count))
        found[f"{count} GPUs of a NUMA node"] = claim(of(count), match=NUMA)
    for count in (2, 3):
        found[f"{count} GPUs of a root"] = claim(of(count), match=PCIE)
    return found


ADMINISTRATORS = frozenset({"a look at one that is taken"})
"""Titles of claims that are refused outside of an administrator's namespace."""


def scene(release: int, slices: Sequence[JSON], node: str, wanted: JSON) -> JSON:
    """What the oracle is asked about one claim on one empty node, with the features that a release has on."""
    return {
        "ID": "",
        "Features": list(DEFAULTS[release]),
        "Nodes": [dra.node(node)],
        "Classes": CLASSES,
        "Slices": list(slices),
        "Claims": [wanted],
    }


def decided(slices: Sequence[JSON], node: str) -> dict[str, bool]:
    """Title -> whether the port of the scheduler's allocator finds devices for the claim on an empty node of these."""
    rules = allocator_rules(37)
    return {
        title: Allocator(rules, CLASSES, slices).allocate(dra.node(node), [wanted]).fits
        for title, wanted in corpus().items()
    }
