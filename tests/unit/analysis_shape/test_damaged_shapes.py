"""A shape that somebody edited or cut is refused in words, or it gives slices that can be read: never anything else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.shape import AttributeKinds, Shape, ShapeError, differences, export, instantiate, read
from driver.analysis.shape.emitters import cluster_api, config_map, karpenter, kwok, plain_slices
from driver.cli.main import main
from tests.support import dradocs as dra

JSON = dict[str, Any]
KINDS = AttributeKinds({f"{dra.DRIVER}/uuid": "launch"})
PATH = tuple[Any, ...]


def whole() -> JSON:
    """A shape with all that a shape can have."""
    numa = "resource.kubernetes.io/numaNode"
    sets = [dra.counter_set("set-0", memory="80Gi")]
    parts = [
        dra.device(
            f"gpu-{number}",
            {"uuid": f"GPU-{number}", "productName": "NVIDIA H200", numa: number},
            capacity={"memory": {"value": "40Gi"}},
            consumesCounters=dra.uses("set-0", memory="40Gi"),
        )
        for number in range(2)
    ]
    slices = [
        dra.resource_slice(sharedCounters=sets, count=2, name="00000-a"),
        dra.resource_slice(*parts, count=2, name="00001-a"),
        dra.resource_slice(dra.device("nic-0", {numa: 0}), driver="nic.example.com", pool="node-a"),
    ]
    return json.loads(json.dumps(export(slices, KINDS, labels={"a": "b"}).document))  # type: ignore[no-any-return]  # it is an object


WHOLE = whole()


def paths(value: Any, path: PATH = ()) -> Iterator[PATH]:
    """The way to each part of a document."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from paths(part, (*path, key))


PATHS = sorted(paths(WHOLE), key=repr)
ODD = [None, 0, -1, 1.5, True, "", "x", [], {}, [None], {"x": None}, [[]], {"string": 3}]


def changed(document: JSON, path: PATH, value: Any) -> JSON:
    """The document with another value at the end of the path; ``...`` takes the part away."""
    made = copy.deepcopy(document)
    holder: Any = made
    for step in path[:-1]:
        holder = holder[step]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made


def used(shape: Shape) -> None:
    """Everything that can be done with a shape."""
    made = instantiate(shape, "imaginary", node_uid="uid")
    found = collect([Value(body) for body in made], "made")
    assert [str(problem) for problem in found.problems] == []
    for emit in (plain_slices, cluster_api, karpenter, kwok):
        json.dumps(emit(shape).content)
    json.dumps(config_map(shape, namespace="gpudra-system"))
    assert differences(shape, shape, KINDS) == ()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "/".join(map(str, path)))
def test_a_part_that_is_missing_or_odd_is_refused_or_does_no_harm(path: PATH) -> None:
    for value in (..., *ODD):
        document = changed(WHOLE, path, value)
        try:
            shape = read(document, KINDS)
        except ShapeError:
            continue
        used(shape)


@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([..., *ODD])), min_size=2, max_size=4))
def test_so_it_is_with_several_faults_at_once(changes: list[tuple[PATH, Any]]) -> None:
    document = WHOLE
    for path, value in changes:
        try:
            document = changed(document, path, value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        shape = read(document, KINDS)
    except ShapeError:
        return
    used(shape)


def test_the_whole_shape_can_be_used() -> None:
    used(read(WHOLE, KINDS))


FIRST_PARTS: PATH = ("pools", 0, "slices", 1, "devices")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("pools", 1, "slices", 0, "devices", 0, "name"), ..., "pools[1].slices[0].devices[0]: the field name is"),
        (("pools", 0, "nameTemplate"), 7, "pools[0].nameTemplate: must be str, is int"),
        (("pools", 0, "driver"), "", "pools[0].driver: "),
        ((*FIRST_PARTS, 1, "assigned"), {"serial": "string"}, ".devices[1].assigned[serial]: is in no group of"),
        ((*FIRST_PARTS, 1, "assigned", "uuid"), "text", ".devices[1].assigned[uuid]: "),
        ((*FIRST_PARTS, 0, "attributes", "productName"), {}, ".devices[0].attributes[productName]: must have one"),
        ((*FIRST_PARTS, 0, "capacity", "memory", "value"), "40Gx", ".capacity[memory].value: is no quantity"),
        (("equalGroups", 0, "groups", 0, 0), "gpu.nvidia.com/nobody", "groups[0]: there is no device gpu.nvidia.com/n"),
        (("equalGroups", 0, "groups", 0), [], "equalGroups[0].groups[0]: is empty"),
        (("equalGroups", 0, "groups", 1, 0), "gpu.nvidia.com/gpu-0", "groups[1]: gpu.nvidia.com/gpu-0 is in a group"),
        (("equalGroups", 1, "attribute"), "gpu.nvidia.com/uuid", "equalGroups[1].attribute: gpu.nvidia.com/uuid is"),
        (("identity", "labels", "a"), 1, "identity.labels[a]: must be str"),
        (("identity",), ..., "the field identity is missing"),
    ],
)
def test_the_refusal_names_the_field(path: PATH, value: Any, words: str) -> None:
    with pytest.raises(ShapeError) as refused:
        read(changed(WHOLE, path, value), KINDS)

    assert words in str(refused.value)
    assert str(refused.value).endswith("write it again with gpudra shape export")


def test_the_verb_ends_with_code_2_and_the_fields_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(changed(WHOLE, ("pools", 0, "slices", 1, "devices", 0, "name"), ...)))

    assert main(["shape", "instantiate", str(file), "--as", "imaginary"]) == 2
    assert "pools[0].slices[1].devices[0]: the field name is missing" in capsys.readouterr().err
