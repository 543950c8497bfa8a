"""After everything else: the API server's record of what the agent asked for, beside what its role allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hack.cluster.layout import Layout

RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
AGENT = "gpudra"
"""How the agent's User-Agent begins; the tests themselves use its tokens under another name."""


def requested(layout: Layout) -> dict[tuple[str, str], set[int]]:
    """(resource, verb) -> status codes, of every request that an agent made since the cluster started."""
    asked: dict[tuple[str, str], set[int]] = {}
    for line in layout.audit_log.read_text().splitlines():
        event = json.loads(line)
        if event["userAgent"].startswith(AGENT) and "objectRef" in event:
            target = event["objectRef"]
            what = ("/".join(filter(None, (target["resource"], target.get("subresource")))), event["verb"])
            asked.setdefault(what, set()).add(event.get("responseStatus", {}).get("code", 0))
    return asked


def granted() -> set[tuple[str, str]]:
    documents = list(yaml.safe_load_all(RBAC.read_text()))
    rules = [rule for document in documents for rule in document.get("rules", [])]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.bug("B128")
def test_the_agent_asked_for_nothing_that_its_role_does_not_allow(cluster: Layout) -> None:
    asked = requested(cluster)
    assert asked, "no agent has run on this cluster yet"
    on_purpose = {("configmaps", "create"): {201, 403}}  # with and without deploy/shape-publishing.yaml
    for what, codes in on_purpose.items():
        assert asked.pop(what, set()) <= codes
    assert asked.keys() <= granted()
    assert {what: codes for what, codes in asked.items() if codes & {401, 403}} == {}
