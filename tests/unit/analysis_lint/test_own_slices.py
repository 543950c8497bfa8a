"""What this driver publishes is clean by its own rules, on every mock profile, whole and divided; so is its shape."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.analysis.document_text import Value
from driver.analysis.documents import Collection, collect, load
from driver.analysis.lint import Options, Severity, lint
from driver.analysis.shape import AttributeKinds, config_map, differences, export, instantiate
from driver.cli.documents import published, validators
from driver.cli.main import build_parser
from driver.cli.node import read_node
from driver.model import Gpu, MigSupport, NodeInventory, Passthrough
from driver.publish import build_pool, slice_objects
from driver.publish.kinds import attribute_kinds

JSON = dict[str, Any]
PROFILES = Path(__file__).parents[3] / "native" / "mock" / "profiles"
DEPLOY = Path(__file__).parents[3] / "deploy"
NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))
KINDS = AttributeKinds(attribute_kinds("gpu.nvidia.com"))
OPTIONS = Options(kinds=KINDS, validators=validators())


@functools.cache
def own(profile: str, mig: str) -> tuple[JSON, ...]:
    """The slices that the agent would publish for a mock node, which takes a moment to make."""
    args = build_parser(["lint"]).parse_args(["lint", "--mock-profile", profile, "--mig", mig])
    return tuple(published(args, "node-a"))


def read(bodies: Iterable[JSON]) -> Collection:
    return collect([Value(body) for body in bodies], "own")


def worse_than_notes(documents: Collection) -> list[tuple[str, str]]:
    report = lint(documents, OPTIONS)
    assert report.problems == ()
    return [(entry.rule.id, entry.finding.message) for entry in report.found if entry.severity is not Severity.NOTE]


@pytest.mark.parametrize("mig", ["static", "dynamic"])
@pytest.mark.parametrize("profile", NAMES)
def test_slices_of_a_profile_are_clean_beside_classes_and_demos(profile: str, mig: str) -> None:
    assert worse_than_notes(read(own(profile, mig)) + load([DEPLOY])) == []


@pytest.mark.parametrize("mig", ["static", "dynamic"])
@pytest.mark.parametrize("profile", NAMES)
def test_the_shape_of_a_profile_gives_clean_slices_and_itself_again(profile: str, mig: str) -> None:
    shape = export(own(profile, mig), KINDS, strict=True)

    made = instantiate(shape, "imaginary", node_uid="uid")

    assert worse_than_notes(read(made)) == []
    again = export(made, KINDS, strict=True)
    assert again.document == shape.document
    assert differences(shape, again, KINDS) == ()


FEATURES: dict[str, Callable[[int, Gpu], Gpu]] = {
    "shares": lambda _number, gpu: replace(gpu, shares=4),
    "shares of some": lambda number, gpu: replace(gpu, shares=4) if number < 4 else gpu,
    "passthrough": lambda _number, gpu: replace(gpu, passthrough=Passthrough("NVIDIA H200")),
    "passthrough of some": lambda number, gpu: replace(gpu, passthrough=Passthrough()) if number < 4 else gpu,
}


@functools.cache
def machine() -> NodeInventory:
    """An H200 node and what its boards can be divided into."""
    return read_node(build_parser(["lint"]).parse_args(["lint", "--mock-profile", "h200"]), mig=True)


@pytest.mark.parametrize("mig", MigSupport)
@pytest.mark.parametrize("feature", FEATURES)
def test_slices_with_a_feature_are_clean_and_have_a_shape(feature: str, mig: MigSupport) -> None:
    gpus = tuple(FEATURES[feature](number, gpu) for number, gpu in enumerate(machine().gpus))
    inventory = replace(machine(), gpus=gpus)
    names = {"node_name": "node-a", "driver_name": "gpu.nvidia.com"}
    slices = slice_objects(build_pool(inventory, mig=mig, counters=mig is MigSupport.DYNAMIC, **names), **names)

    assert worse_than_notes(read(slices) + load([DEPLOY])) == []
    shape = export(slices, KINDS, strict=True)
    assert export(instantiate(shape, "imaginary"), KINDS).document == shape.document


def test_sixteen_gpus_in_all_their_partitions_fit_into_a_config_map() -> None:
    eight = config_map(export(own("dgx-h100", "dynamic"), KINDS), namespace="gpudra-system")

    assert 2 * len(json.dumps(eight).encode()) < 2**20


def test_profiles_have_shapes_of_their_own() -> None:
    hashes = {profile: export(own(profile, "static"), KINDS).hash for profile in NAMES}

    assert len(set(hashes.values())) == len(NAMES)
