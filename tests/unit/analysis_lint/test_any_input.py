"""Whatever the documents hold, each is either read or named, and the rules run to their end."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.analysis.documents import read_text
from driver.analysis.lint import RULES, Options, as_json, lint, sarif, text
from driver.cli.documents import validators
from tests.support import dradocs as dra

JSON = dict[str, Any]
LABELS = {"node.kubernetes.io__instance-type": "p5"}
GPU = dra.device("gpu-0", {"type": "gpu", "n": 1}, capacity={"memory": {"value": "80Gi"}}, taints=[dra.taint()])
MIG = dra.device("mig-0", {"type": "mig"}, consumesCounters=dra.uses("set-0", memory="10Gi"))
BASE: list[JSON] = [
    dra.node("node-a", **LABELS),
    dra.node("node-b", **LABELS),
    dra.resource_slice(GPU, dra.device("gpu-1", {"type": "gpu"}, allowMultipleAllocations=True), node="node-b"),
    dra.resource_slice(sharedCounters=[dra.counter_set("set-0", memory="80Gi")], count=2, name="00000-a"),
    dra.resource_slice(MIG, GPU, count=2, name="00001-a", partitionTypeAttribute="gpu.nvidia.com/type"),
    dra.device_class("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    dra.claim(
        "c", dra.request(count=2), constraints=[{"matchAttribute": "a/b"}], results=[("mig-0", "x")], owner="train-uid"
    ),
    dra.claim_template("t", dra.request(adminAccess=True)),
    dra.pod("train", claims=[("gpus", "c")], node="node-a"),
    dra.daemon_set("d", pod_spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}),
    dra.taint_rule("r"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    found = [where] if where else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += places(inner, (*where, key))
    return found


PLACES = places(BASE)


def change(documents: Any, way: tuple[Any, ...], new: Any, *, remove: bool) -> None:
    """Replace or remove the value there, unless an earlier change has taken the way away."""
    holder = documents
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for step in way[:-1]:
            holder = holder[step]
        if remove and isinstance(holder, dict):
            holder.pop(way[-1], None)
        elif isinstance(holder, dict | list):
            holder[way[-1]] = new


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING, st.booleans()), min_size=1, max_size=3))
def test_any_change_of_any_field_is_read_or_named(changes: list[tuple[tuple[Any, ...], Any, bool]]) -> None:
    documents: Any = copy.deepcopy(BASE)
    for way, new, remove in changes:
        change(documents, way, new, remove=remove)

    report = lint(read_text(json.dumps(documents), "changed.json"), Options(validators=validators()))

    assert report.rules == RULES
    assert all(problem.message for problem in report.problems)
    assert list(text(report))
    json.dumps([as_json(report), sarif(report, version="0")])
