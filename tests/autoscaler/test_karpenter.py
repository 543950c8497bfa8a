"""Karpenter buys the instance type whose shape has the devices, and its kwok provider alone knows of none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver.analysis.autoscaler import refusals
from driver.analysis.shape import instantiate, read
from driver.analysis.shape import karpenter as shape_for_karpenter
from hack.autoscaler import running
from hack.autoscaler.fakenodes import FakeNodes, gpudra
from hack.autoscaler.programs import karpenter_module
from hack.autoscaler.running import INSTANCE_TYPE, PATIENCE, Running
from hack.autoscaler.scene import answered, placed, pod, pod_with
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace
from tests.support.shapeclaims import ADMINISTRATORS, KINDS, corpus, decided

pytestmark = pytest.mark.timeout(300)  # an autoscaler may take its minute, twice in some tests

JSON = dict[str, Any]
Start = Callable[..., AbstractContextManager[Running]]
NUMA = "resource.kubernetes.io/numaNode"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
PRICES = {"good": 40.0, "bad": 10.0}
"""The cheaper one is bought wherever it will do."""
ENDLESS = frozenset(
    {"3 GPUs of a root", "5 GPUs of a NUMA node", "8 GPUs of a NUMA node", "9 GPUs", "9 GPUs of a NUMA node"}
)
"""That these cannot be met on eight GPUs with partitions, Karpenter's search does not find out in five seconds. With
several of them its simulation ends after twenty seconds without an answer for any pod, and begins anew."""
EVENTS_AT_ONCE = 6
"""Karpenter tells of ten nominated pods at once and of five a second after that; the others it leaves out."""


@pytest.fixture(scope="session")
def templates() -> dict[str, JSON]:
    """Instance type -> its devices in Karpenter's form."""
    profiles = {"good": "dgx-h100", "bad": "gb200"}
    export = partial(gpudra, "shape", "export", "--format", "karpenter", "--mock-profile")
    return {name: json.loads(export(profile)) for name, profile in profiles.items()}


@pytest.fixture
def karpenter(layout: Layout, nodes: FakeNodes, api: Api, tmp_path: Path) -> Iterator[Start]:
    """Starts Karpenter; what it bought is gone afterwards."""
    running.install_karpenter(layout, karpenter_module())
    yield partial(
        running.karpenter, Path(os.environ["GPUDRA_KARPENTER"]), layout, PRICES, log=tmp_path / "karpenter.log"
    )
    for body in bought(api):
        where = f"{NODE_CLAIMS}/{body['metadata']['name']}"
        api.call("PUT", where, {**body, "metadata": {**body["metadata"], "finalizers": []}})
        api.request("DELETE", where)
    nodes.remove_all()


def bought(api: Api) -> list[JSON]:
    """The NodeClaims that there are."""
    return list(api.call("GET", NODE_CLAIMS)["items"])


def initialized(body: JSON) -> tuple[str, str]:
    """Status and reason of the condition Initialized."""
    found = [entry for entry in body.get("status", {}).get("conditions", []) if entry["type"] == "Initialized"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def test_the_instance_type_whose_shape_fits_is_bought_and_the_pod_is_placed_there(
    namespace: Namespace, nodes: FakeNodes, api: Api, karpenter: Start, templates: JSON, shapes: dict[str, str]
) -> None:
    pod(namespace, "train", count=4, match=NUMA)

    with karpenter(templates):
        namespace.wait_event("train", "should schedule on", PATIENCE)
        (claim,) = bought(api)
        types = [entry["values"] for entry in claim["spec"]["requirements"] if entry["key"] == INSTANCE_TYPE]
        assert types == [["good"]]
        assert claim["metadata"]["annotations"]["karpenter.sh/requested-dra-drivers"] == "gpu.nvidia.com"
        name = claim["metadata"]["name"]
        waits = wait_claim(api, name, lambda body: initialized(body)[1] == "DRADriverPoolsNotPublished")
        (new,) = nodes.names()
        assert waits["status"]["nodeName"] == new

        nodes.publish(new, shapes["good"])  # the new node's agent speaks

        assert placed(namespace, "train") == new
        wait_claim(api, name, lambda body: initialized(body)[0] == "True")
        assert len(bought(api)) == 1


def test_where_both_shapes_fit_the_cheaper_one_is_bought(
    namespace: Namespace, api: Api, karpenter: Start, templates: JSON
) -> None:
    pod(namespace, "small", count=2, match=NUMA)

    with karpenter(templates):
        namespace.wait_event("small", "should schedule on", PATIENCE)

        (claim,) = bought(api)
        (types,) = [entry["values"] for entry in claim["spec"]["requirements"] if entry["key"] == INSTANCE_TYPE]
        assert "bad" in types


def test_a_claim_that_no_shape_can_meet_buys_nothing(
    namespace: Namespace, api: Api, karpenter: Start, templates: JSON
) -> None:
    pod(namespace, "too-much", count=5, match=NUMA)

    with karpenter(templates):
        namespace.wait_event("too-much", "Failed to schedule pod", PATIENCE)

        assert not bought(api)


@pytest.mark.parametrize(("profile", "mig"), [("dgx-h100", "static"), ("h200", "dynamic")])
def test_for_every_kind_of_claim_a_node_is_bought_where_the_port_says_that_it_will_serve(
    namespace: Namespace, karpenter: Start, profile: str, mig: str
) -> None:
    shape = read(json.loads(gpudra("shape", "export", "--mock-profile", profile, "--mig", mig)), KINDS)
    expected = decided(instantiate(shape, "imaginary"), "imaginary")
    left_out = ADMINISTRATORS | (ENDLESS if mig == "dynamic" else set())
    titles = [title for title in corpus() if title not in left_out]
    answers = {"should schedule on": True, "Failed to schedule pod": False}
    found: dict[str, bool] = {}

    with karpenter({"good": shape_for_karpenter(shape).content}):
        for first in range(0, len(titles), EVENTS_AT_ONCE):
            names = {f"claim-{first + n}": title for n, title in enumerate(titles[first : first + EVENTS_AT_ONCE])}
            for name, title in names.items():
                pod_with(namespace, name, corpus()[title]["spec"])
            answer = answered(namespace, list(names), answers, PATIENCE)
            found |= {names[name]: bought for name, bought in answer.items()}
            for name in names:
                namespace.api.delete("pods", namespace.name, name)

    refused = {title for title in titles if any("refuses" in text for _, text in refusals(corpus()[title]["spec"]))}
    assert found == {title: expected[title] and title not in refused for title in titles}
    assert refused == {"two of different roots"}


def test_the_provider_as_it_is_released_knows_of_no_devices(namespace: Namespace, api: Api, karpenter: Start) -> None:
    pod(namespace, "train", count=1)

    with karpenter(None):
        namespace.wait_event("train", "Failed to schedule pod", PATIENCE)

        assert not bought(api)


def test_by_default_pods_with_claims_are_passed_over(
    namespace: Namespace, api: Api, karpenter: Start, templates: JSON
) -> None:
    pod(namespace, "train", count=1)

    with karpenter(templates, ignore_claims=True):
        namespace.wait_event("train", "Dynamic Resource Allocation requirements that are not yet supported", PATIENCE)

        assert not bought(api)


def wait_claim(api: Api, name: str, until: Callable[[JSON], bool]) -> JSON:
    """Watch a NodeClaim until something holds for it."""
    for line in api.lines(NODE_CLAIMS, PATIENCE, watch="1", timeoutSeconds="90", fieldSelector=f"metadata.name={name}"):
        body: JSON = json.loads(line)["object"]
        if until(body):
            return body
    raise AssertionError(f"NodeClaim {name}: {api.call('GET', f'{NODE_CLAIMS}/{name}').get('status')}")
