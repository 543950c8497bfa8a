"""What tests of the autoscalers do in a cluster: pods that want GPUs, where they were placed, what the lint says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.lint import lint
from hack.cluster.api import Api
from hack.cluster.scene import Namespace, claim_spec

JSON: TypeAlias = dict[str, Any]

CLASS_NAME: Final = "any-gpu"
CLASS: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS_NAME},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}
TOLERATED: Final = [{"key": "kwok-provider", "operator": "Exists"}]
"""The taint of nodes that Cluster Autoscaler's provider makes."""


def ensure_class(api: Api) -> None:
    """The class of every GPU is there."""
    status, document = api.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", CLASS)
    assert status in (201, 409), document


def pod(namespace: Namespace, name: str, *, template: bool = False, selector: JSON | None = None, **claim: Any) -> None:
    """A pod that wants GPUs of the class ``any-gpu``; the options are those of ``claim_spec``.

    Args:
        namespace: where it lives.
        name: of the pod and its claim (or template).
        template: its claim is made from a template, and so is its own.
        selector: labels of the nodes that will do.
    """
    pod_with(namespace, name, claim_spec(device_class=CLASS_NAME, **claim), template=template, selector=selector)


def pod_with(
    namespace: Namespace, name: str, spec: JSON, *, template: bool = False, selector: JSON | None = None
) -> None:
    """A pod with a claim of this spec.

    There is no kubelet: a pod that was placed never runs, and without grace it is gone as soon as it is deleted.
    """
    if template:
        body: JSON = {"metadata": {"name": name}, "spec": {"spec": spec}}
        namespace.api.create("resourceclaimtemplates", namespace.name, body)
    else:
        namespace.api.create("resourceclaims", namespace.name, {"metadata": {"name": name}, "spec": spec})
    source = {"resourceClaimTemplateName" if template else "resourceClaimName": name}
    pod_spec: JSON = {
        "terminationGracePeriodSeconds": 0,
        "tolerations": TOLERATED,
        "resourceClaims": [{"name": "gpu", **source}],
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        **({"nodeSelector": selector} if selector else {}),
    }
    namespace.api.create("pods", namespace.name, {"metadata": {"name": name}, "spec": pod_spec})


def answered(namespace: Namespace, names: Sequence[str], answers: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Wait until an event about each of these pods holds one of the texts; pod -> what that text stands for.

    Raises:
        AssertionError: the time is over; the text holds the events that there were.
    """
    found: dict[str, Any] = {}

    def all_are(events: dict[str, JSON]) -> bool:
        for event in events.values():
            about, message = event["involvedObject"]["name"], event.get("message", "")
            for text, meaning in answers.items():
                if about in names and text in message:
                    found.setdefault(about, meaning)
        return len(found) == len(names)

    namespace.api.wait_all("events", namespace.name, all_are, f"an answer for each of {sorted(names)}", timeout)
    return found


def placed(namespace: Namespace, name: str, timeout: float = 60) -> str:
    """Wait until the scheduler has chosen a node; its name."""
    found = namespace.wait_pod(name, lambda body: bool(body and body["spec"].get("nodeName")), "placed", timeout)
    assert found is not None
    return str(found["spec"]["nodeName"])


def findings(*documents: JSON) -> set[str]:
    """The ids of the lint's rules that find something in documents of a cluster."""
    return {entry.rule.id for entry in lint(collect([Value(body) for body in documents], "cluster")).found}


def claims(namespace: Namespace) -> list[JSON]:
    """The claims of a namespace as complete documents."""
    found = namespace.api.items("resourceclaims", namespace.name)
    return [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body} for body in found]
