"""Every manifest that users are given, as it is, judged by the real API server with strict field validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.cluster import access
from hack.cluster.layout import Layout

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(str(file.relative_to(DEPLOY)) for file in DEPLOY.rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES)
def test_the_server_accepts_every_field(cluster: Layout, file: str) -> None:
    said = access.kubectl(cluster, "apply", "--dry-run=server", "--validate=strict", "-f", str(DEPLOY / file))
    assert "(server dry run)" in said


def test_the_compiled_policy_has_no_type_errors(cluster: Layout) -> None:
    name = "validatingadmissionpolicy/gpudra-agent-slices"
    access.kubectl(cluster, "wait", "--for=jsonpath={.status.observedGeneration}=1", name, "--timeout=30s")
    warnings = access.kubectl(cluster, "get", name, "-o", "jsonpath={.status.typeChecking.expressionWarnings}")
    assert warnings == ""
