"""The real allocator decides claims on an instantiated shape as on the machine that it was taken of."""

from __future__ import annotations

from typing import Any

import pytest

from driver.analysis.shape import export, instantiate
from hack.oracle import build, client, compare
from hack.oracle.build import Release
from tests.support.shapeclaims import KINDS, PROFILES, corpus, machine, scene

JSON = dict[str, Any]


@pytest.fixture(params=build.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    chosen = str(request.param)
    if build.binary(chosen) is None:
        pytest.skip(f"the oracle is not built: python -m hack.oracle build --version {chosen}")
    return chosen


def asked(version: str, slices: tuple[JSON, ...], node: str) -> list[JSON]:
    """The scenes of the corpus."""
    return [scene(Release(version).minor, slices, node, wanted) for wanted in corpus().values()]


def given(answer: JSON) -> Any:
    """The devices of an answer by request, in order; None where the claim does not fit; the kind of an error."""
    if answer.get("kind") or answer["results"] is None:
        return answer.get("kind") or None
    results = (entry for each in answer["results"] for entry in each["devices"]["results"])
    return [(entry["request"], entry["device"]) for entry in results]


MACHINES = [(profile, "static") for profile in PROFILES] + [(profile, "dynamic") for profile in ("dgx-a100", "h200")]


@pytest.mark.parametrize(("profile", "mig"), MACHINES)
def test_the_real_allocator_finds_the_same_devices_on_the_shape(version: str, profile: str, mig: str) -> None:
    real = machine(profile, mig)
    if mig == "dynamic" and Release(version).minor < 36:
        pytest.skip("Kubernetes 1.34 has counters in the slices of their devices alone")
    imaginary = instantiate(export(real, KINDS, strict=True), "imaginary")

    answers = client.ask(version, [*asked(version, real, "node-a"), *asked(version, imaginary, "imaginary")])

    one = [given(each["answers"][0]) for each in answers[: len(corpus())]]
    other = [given(each["answers"][0]) for each in answers[len(corpus()) :]]
    assert one == other
    assert None in one
    offered = any(body["spec"].get("devices") for body in real)
    assert any(isinstance(each, list) for each in one) is offered


@pytest.mark.parametrize("profile", PROFILES)
def test_the_port_decides_on_shapes_as_the_real_allocator_does(version: str, profile: str) -> None:
    imaginary = instantiate(export(machine(profile, "static"), KINDS, strict=True), "imaginary")
    scenes = asked(version, imaginary, "imaginary")

    differ = list(compare.differences(version, scenes))

    assert [(each.scene["Claims"], each.port, each.oracle) for each in differ] == []
