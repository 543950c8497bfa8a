"""What must hold of any lint run: order and names of things do not matter, and one fault does not hide another."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.lint import RULES, Options, Report, as_json, chosen, lint, sarif, text
from driver.cli.documents import validators
from tests.support import dradocs as dra

JSON = dict[str, Any]
OPTIONS = Options(validators=validators())
GROUP: dict[str, Any] = {"node.kubernetes.io__instance-type": "p5"}
OWN = "device.attributes['gpu.nvidia.com']"


def faults_of(node: str) -> list[JSON]:
    """Documents of one node of which nearly each has something wrong with it."""
    sick = dra.device("gpu-0", {"type": "gpu", "index": 0}, taints=[dra.taint()])
    shared = dra.device("gpu-1", {"index": "1"}, allowMultipleAllocations=True)
    sets = [dra.counter_set("set-0", memory="80Gi", place="1")]
    parts = [
        dra.device(f"mig-{n}", {"type": "mig"}, consumesCounters=dra.uses("set-0", memory="10Gi", place="1"))
        for n in range(2)
    ]
    unowned = dra.resource_slice(sick, shared, node=node, name=f"{node}-x")
    del unowned["metadata"]["ownerReferences"]
    return [
        unowned,
        dra.resource_slice(*parts, dra.device("gpu-2"), node=node, pool=f"{node}-parts", count=3, name=f"{node}-y"),
        dra.resource_slice(sharedCounters=sets, node=node, pool=f"{node}-parts", count=3, name=f"{node}-z"),
        dra.pod(f"train-{node}", claims=[("gpus", f"c-{node}")], node=node),
        dra.claim(f"c-{node}", dra.request(allocationMode="All"), results=[("channel", "wide")], owner="u", node=node),
    ]


CLUSTER_WIDE = [
    dra.device_class("gpu.nvidia.com", f"{OWN}.type == 'gpu'"),
    dra.device_class("broken", "device.driver ="),
    dra.device_class("mine", f"{OWN}.uuid == 'GPU-1'"),
    dra.resource_slice(dra.device("channel"), node=None, pool="wide", allNodes=True),
    dra.taint_rule("sick"),
    dra.claim_template("look", dra.request("a", "no-such-class", adminAccess=True)),
    dra.daemon_set("exporter", pod_spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "look"}]}),
]
NODES = [dra.node("node-a", **GROUP), dra.node("node-b", **GROUP)]
WHOLE = [*CLUSTER_WIDE, *NODES, *faults_of("node-a"), *faults_of("node-b")]
HEALTHY = [
    dra.node("node-z", **{"node.kubernetes.io__instance-type": "g6"}),
    dra.resource_slice(dra.device("gpu-0", {"type": "gpu", "index": 0}), node="node-z"),
]


def run(documents: list[JSON]) -> Report:
    return lint(dra.collection(*documents), OPTIONS)


def kinds(report: Report) -> Counter[tuple[str, str]]:
    """How often each rule found something, by severity."""
    return Counter((entry.rule.id, entry.severity.value) for entry in report.found)


def test_the_documents_have_faults_of_most_rules() -> None:
    found = {name for name, _ in kinds(run(WHOLE))}

    assert len(found) >= 17, sorted({rule.id for rule in RULES} - found)


@settings(max_examples=25)
@given(st.permutations(WHOLE))
def test_the_order_of_documents_does_not_matter(documents: list[JSON]) -> None:
    assert kinds(run(documents)) == kinds(run(WHOLE))


@settings(max_examples=25)
@given(st.lists(st.sampled_from(range(len(WHOLE))), unique=True, max_size=8))
def test_what_is_found_in_a_healthy_node_beside_them_is_nothing(left_out: list[int]) -> None:
    documents = [body for number, body in enumerate(WHOLE) if number not in left_out]

    assert kinds(run([*documents, *HEALTHY])) == kinds(run(documents))


@settings(max_examples=15)
@given(st.text("abcdefgh-", min_size=1, max_size=12), st.text("ijklmnop-", min_size=1, max_size=12))
def test_the_names_of_nodes_do_not_matter(one: str, other: str) -> None:
    renamed = json.loads(json.dumps(WHOLE).replace("node-a", f"n{one}").replace("node-b", f"n{other}"))

    # A22 reads the names of slices, which begin with that of the node here, and A26 what the server says to names.
    without = [rule for rule in RULES if rule.id not in ("A22", "A26")]
    before = lint(dra.collection(*WHOLE), OPTIONS, rules=without)
    assert kinds(lint(dra.collection(*renamed), OPTIONS, rules=without)) == kinds(before)


def test_each_rule_finds_alone_what_it_finds_among_the_others() -> None:
    together = run(WHOLE)

    for rule in RULES:
        alone = lint(dra.collection(*WHOLE), OPTIONS, rules=chosen([rule.id]))
        assert [entry.finding.message for entry in alone.found] == [
            entry.finding.message for entry in together.found if entry.rule.id == rule.id
        ]


def test_looking_changes_nothing() -> None:
    documents = copy.deepcopy(WHOLE)
    collection = dra.collection(*documents)

    first, second = (as_json(lint(collection, OPTIONS)) for _ in range(2))

    assert first == second
    assert [document.body for document in collection.documents] == documents


def test_all_forms_of_a_report_hold_the_same_findings() -> None:
    report = run(WHOLE)

    log = sarif(report, version="1")["runs"][0]
    assert len(log["results"]) == len(as_json(report)["findings"]) == len(report.found)
    assert [result["ruleId"] for result in log["results"]] == [entry.rule.id for entry in report.found]
    lines = list(text(report, explain=False))
    assert sum(line.startswith(("error ", "warning ", "note ")) for line in lines) == len(report.found)
    prints = [result["partialFingerprints"]["object/v1"] for result in log["results"] if "locations" in result]
    places = {(result["ruleId"], mark) for result, mark in zip(log["results"], prints, strict=True)}
    assert len(places) >= len(prints) * 9 // 10  # nearly all can be told apart between two runs


@settings(max_examples=25)
@given(st.lists(st.sampled_from(range(len(WHOLE))), unique=True, min_size=1, max_size=6))
def test_a_document_that_is_cut_hides_no_fault_of_the_others_but_what_needs_it(cut: list[int]) -> None:
    """A cut slice, say, silences what speaks of its pool, and nothing else begins to be found but what misses it."""
    damaged = copy.deepcopy(WHOLE)
    for number in cut:
        damaged[number]["metadata"] = "cut"
    report = lint(collect([Value(body) for body in damaged], "cut"), OPTIONS)

    assert len(report.problems) == len(cut)
    intact = [body for number, body in enumerate(WHOLE) if number not in cut]
    # An intact collection without them may call pools incomplete; with them known as damaged none is.
    silent = {"A04", "A13", "A23", "A25", "A10", "A11", "A12", "A15", "A22", "A30"}
    other = {key: count for key, count in kinds(run(intact)).items() if key[0] not in silent}
    assert {key: count for key, count in kinds(report).items() if key[0] not in silent} == other
