"""Whatever a file holds, what can be read is read, and what cannot is named with its path."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.document_text import Value
from driver.analysis.documents import Collection, collect, load, read_text


def slice_named(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
            ],
            **spec,
        },
    }


def dump(count: int = 4) -> dict[str, Any]:
    return {"apiVersion": "v1", "items": [slice_named(f"slice-{n}") for n in range(count)], "kind": "List"}


def names(collection: Collection) -> list[str]:
    return [document.name for document in collection.documents]


@pytest.mark.parametrize("write", [json.dumps, lambda value: json.dumps(value, indent=4), yaml.safe_dump])
def test_a_dump_of_kubectl_is_opened(write: Any) -> None:
    found = read_text(write(dump()), "dump")

    assert names(found) == ["slice-0", "slice-1", "slice-2", "slice-3"]
    assert found.slices[2].label == "ResourceSlice slice-2 (dump, document 1, items[2])".replace(
        "document 1, ", "" if write is not yaml.safe_dump else "document 1, "
    )
    assert found.problems == ()


def test_documents_of_a_stream_carry_their_line() -> None:
    text = "# a comment\n---\n" + yaml.safe_dump(slice_named("one")) + "---\n---\n" + yaml.safe_dump(slice_named("two"))

    found = read_text(text, "stream.yaml")

    assert names(found) == ["one", "two"]
    assert [text.splitlines()[document.line - 1] for document in found.documents] == ["---", "---"]


def test_json_values_may_stand_one_after_the_other() -> None:
    text = json.dumps(slice_named("one")) + "\n" + json.dumps([slice_named("two"), slice_named("three")])

    assert names(read_text(text, "two.json")) == ["one", "two", "three"]


def test_items_of_a_typed_list_get_its_kind_and_version() -> None:
    bare = slice_named("one")
    del bare["kind"], bare["apiVersion"]

    found = read_text(
        json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "items": [bare]}), "list.json"
    )

    assert [(document.kind, document.name) for document in found.documents] == [("ResourceSlice", "one")]


@pytest.mark.parametrize("indent", [None, 1])
def test_of_a_json_dump_that_is_cut_off_the_whole_items_are_read(indent: int | None) -> None:
    text = json.dumps(dump(), indent=indent)

    found = read_text(text[: text.index("slice-3") + 3], "cut.json")

    assert names(found) == ["slice-0", "slice-1", "slice-2"]
    (problem,) = found.problems
    assert problem.path == "items[3]"
    assert "the 3 items before it are read" in problem.message
    assert problem.line == (1 if indent is None else text[: text.index("slice-3")].count("\n") + 1)


def test_a_json_dump_that_ends_after_its_items_is_cut_off_too() -> None:
    text = json.dumps(dump())

    found = read_text(text[: text.rindex("]") + 1], "cut.json")

    assert names(found) == ["slice-0", "slice-1", "slice-2", "slice-3"]
    assert len(found.problems) == 1


def test_of_a_yaml_dump_that_is_cut_off_the_whole_items_are_read() -> None:
    text = yaml.safe_dump(dump())

    found = read_text(text[: text.index("slice-3")] + '"slice', "cut.yaml")

    assert names(found) == ["slice-0", "slice-1", "slice-2"]
    (problem,) = found.problems
    assert (problem.document, problem.path) == ("cut.yaml, document 1", "items[3]")


def test_a_broken_yaml_document_does_not_take_its_neighbours_along() -> None:
    text = yaml.safe_dump(slice_named("one")) + "---\na: [1\n---\n" + yaml.safe_dump(slice_named("two"))

    found = read_text(text, "three.yaml")

    assert names(found) == ["one", "two"]
    (problem,) = found.problems
    assert problem.document == "three.yaml, document 2"
    assert "is not YAML" in problem.message


@given(st.data())
def test_wherever_a_dump_is_cut_nothing_is_invented_and_the_cut_is_told(data: st.DataObject) -> None:
    write = data.draw(st.sampled_from([json.dumps, yaml.safe_dump]))
    text = write(dump(3))
    end = data.draw(st.integers(1, len(text) - 2))

    found = read_text(text[:end], "cut")

    whole = [document.body for document in collect([Value(dump(3))], "whole").documents]
    read = [document.body for document in found.documents]
    if write is json.dumps:
        assert found.problems
        assert read == whole[: len(read)]
    else:  # a YAML text may end between two fields of its last item and still be YAML
        assert all(body in whole for body in read[:-1])


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"devices": {"name": "gpu-0"}}, "spec.devices", "must be array, is object"),
        ({"devices": [{"attributes": {}}]}, "spec.devices[0]", "the field name is missing"),
        ({"pool": {"name": "p", "generation": 1}}, "spec.pool", "the field resourceSliceCount is missing"),
        (
            {"devices": [{"name": "a"}, {"name": "b", "attributes": {"x": {"int": 1}, "index": {"int": "7"}}}]},
            "spec.devices[1].attributes[index].int",
            "must be int, is str",
        ),
        (
            {"devices": [{"name": "a", "capacity": {"memory": {"value": "80 GB"}}}]},
            "spec.devices[0].capacity[memory].value",
            "is no quantity (such as 80Gi, 500m or 4)",
        ),
        (
            {
                "sharedCounters": [{"name": "c", "counters": {"m": {"value": "1"}, "n": {"value": "x"}}}],
                "devices": None,
            },
            "spec.sharedCounters[0].counters[n].value",
            "is no quantity (such as 80Gi, 500m or 4)",
        ),
    ],
)
def test_a_field_of_the_wrong_type_is_named_and_the_other_documents_stay(
    change: dict[str, Any], path: str, message: str
) -> None:
    good = slice_named("good", pool={"name": "other", "generation": 1, "resourceSliceCount": 1})

    found = read_text(json.dumps([slice_named("bad", **change), good]), "two.json")

    assert names(found) == ["good"]
    (problem,) = found.problems
    assert problem.document == "ResourceSlice bad (two.json, items[0])"
    assert (problem.path, problem.message) == (path, message)


def test_the_pool_of_a_slice_that_was_left_out_is_known_as_damaged() -> None:
    found = read_text(json.dumps(slice_named("bad", devices=7)), "bad.json")

    assert found.damaged_pools == {("gpu.example.com", "node-a")}


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"apiVersion": "resource.k8s.io/v1"}, "kind: is missing"),
        ({"kind": "ResourceSlice"}, "apiVersion: is missing"),
        ("text", "is no object but text"),
        (7, "is no object but a number"),
        ({**slice_named("old"), "apiVersion": "resource.k8s.io/v1alpha3"}, "v1alpha3 ResourceSlice is not understood"),
        ({**slice_named("new"), "apiVersion": "resource.k8s.io/v2"}, "kubectl get resourceslices.v1.resource.k8s.io"),
    ],
)
def test_what_is_no_object_or_of_an_unknown_version_is_told(value: Any, part: str) -> None:
    found = read_text(json.dumps([value, slice_named("good")]), "mixed.json")

    assert names(found) == ["good"]
    (problem,) = found.problems
    assert part in str(problem)


def test_kinds_that_nobody_looks_at_are_listed_once() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    foreign = {"apiVersion": "example.com/v1", "kind": "Pod", "metadata": {"name": "p"}}

    found = read_text(json.dumps([service, service, foreign]), "services.json")

    assert found.ignored == ("v1 Service", "example.com/v1 Pod")
    assert found.documents == ()
    assert found.problems == ()


@pytest.mark.parametrize("text", ["", "\n \t\n", "\ufeff"])
def test_an_empty_file_is_told(text: str) -> None:
    assert [problem.message for problem in read_text(text, "empty").problems] == ["is empty"]


def test_files_and_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(slice_named("b")))
    (tmp_path / "a.json").write_text(json.dumps(slice_named("a")))
    (tmp_path / "deep" / "c.yml").write_text(yaml.safe_dump(slice_named("c")))
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / "latin.json").write_bytes(b'{"kind": "\xe9"}')

    found = load([tmp_path, tmp_path / "missing.yaml", tmp_path / "deep"])

    assert names(found) == ["a", "b", "c", "c"]
    messages = [str(problem) for problem in found.problems]
    assert "cannot be read: 'utf-8' codec" in messages[0]
    assert messages[1] == f"{tmp_path / 'missing.yaml'}: cannot be read: No such file or directory"


def test_a_folder_without_documents_is_told(tmp_path: Path) -> None:
    assert "holds no file with a name in .json, .yaml, .yml" in str(load([tmp_path]).problems[0])


def test_times_stay_text_as_kubernetes_takes_them() -> None:
    text = "apiVersion: v1\nkind: Node\nmetadata: {name: n, creationTimestamp: 2026-11-30T12:00:00Z}\n"

    (node,) = read_text(text, "node.yaml").documents

    assert node.body["metadata"]["creationTimestamp"] == "2026-11-30T12:00:00Z"


def test_progress_is_told_while_many_documents_are_read() -> None:
    told: list[tuple[str, int]] = []

    read_text(json.dumps([slice_named(f"s{n}") for n in range(600)]), "big.json", progress=lambda *a: told.append(a))

    assert told == [("reading big.json", 0), ("reading big.json", 256), ("reading big.json", 512)]


def test_two_collections_add_up() -> None:
    first, second = read_text(json.dumps(slice_named("a")), "a"), read_text(json.dumps(slice_named("b")), "b")
    assert names(first + second) == ["a", "b"]
    assert [document.name for document in (first + second).slices] == ["a", "b"]


class TestOlderVersions:
    def test_a_slice_of_v1beta1_loses_its_nesting(self) -> None:
        new = slice_named("s")
        old = copy.deepcopy(new)
        old["apiVersion"] = "resource.k8s.io/v1beta1"
        old["spec"]["devices"] = [{"name": d.pop("name"), "basic": d} for d in old["spec"]["devices"]]

        assert read_text(json.dumps(old), "old").documents[0].body == new

    @pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
    def test_a_request_of_v1beta1_becomes_exactly(self, kind: str) -> None:
        request = {"name": "gpus", "deviceClassName": "gpu", "count": 2, "allocationMode": "ExactCount"}
        ranked = {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "gpu"}]}
        spec: Any = {"devices": {"requests": [request, ranked]}}
        old = {
            "apiVersion": "resource.k8s.io/v1beta1",
            "kind": kind,
            "metadata": {"name": "c"},
            "spec": spec if kind == "ResourceClaim" else {"spec": spec},
        }

        body = read_text(json.dumps(old), "old").documents[0].body

        inner = body["spec"] if kind == "ResourceClaim" else body["spec"]["spec"]
        assert inner["devices"]["requests"] == [
            {
                "name": "gpus",
                "exactly": {"deviceClassName": "gpu", "count": 2, "allocationMode": "ExactCount"},
            },
            ranked,
        ]

    @pytest.mark.parametrize("version", ["v1alpha3", "v1beta2"])
    def test_a_taint_rule_is_read_in_each_version_that_has_it(self, version: str) -> None:
        rule = {
            "apiVersion": f"resource.k8s.io/{version}",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "r"},
            "spec": {"taint": {"key": "example.com/sick", "effect": "NoSchedule"}},
        }

        (document,) = read_text(json.dumps(rule), "rule").documents

        assert document.body == {**rule, "apiVersion": "resource.k8s.io/v1"}

    def test_a_damaged_document_of_an_older_version_is_named_like_a_new_one(self) -> None:
        old = {**slice_named("s", devices=[7]), "apiVersion": "resource.k8s.io/v1beta1"}

        (problem,) = read_text(json.dumps(old), "old").problems

        assert problem.path == "spec.devices[0]"
