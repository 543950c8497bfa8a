"""Every manifest that users are given, as it is, judged by the real API server with strict field validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hack.cluster import access
from hack.cluster.daemonset import merged
from hack.cluster.layout import Layout

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIANTS = sorted((DEPLOY / "variants").glob("*.yaml"))
FILES = sorted(str(file.relative_to(DEPLOY)) for file in DEPLOY.rglob("*.yaml") if file not in VARIANTS)


@pytest.mark.parametrize("file", FILES)
def test_the_server_accepts_every_field(cluster: Layout, file: str) -> None:
    said = access.kubectl(cluster, "apply", "--dry-run=server", "--validate=strict", "-f", str(DEPLOY / file))
    assert "(server dry run)" in said


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda file: file.stem)
def test_the_server_accepts_every_variant_of_the_daemonset(cluster: Layout, variant: Path) -> None:
    document = merged(cluster, variant)
    said = access.kubectl(cluster, "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=document)
    assert "(server dry run)" in said


def test_variants_go_together(cluster: Layout) -> None:
    together = [variant for variant in VARIANTS if variant.stem != "mps-pod"]  # it is there instead of mps
    plain = yaml.safe_load((DEPLOY / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    pod = yaml.safe_load(merged(cluster, *together))["spec"]["template"]["spec"]
    (before,), (container,) = plain["containers"], pod["containers"]
    assert pod["hostPID"] is True
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert {entry["name"] for entry in container["env"]} - {entry["name"] for entry in before["env"]} == {
        "GPUDRA_MIG", "GPUDRA_MPS_DIR", "GPUDRA_PASSTHROUGH_DEVICES", "GPUDRA_SHARES",
    }  # fmt: skip
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/host-sys"].get("readOnly", False) is False
    assert mounts.keys() - {mount["mountPath"] for mount in before["volumeMounts"]} == {"/run/gpudra/mps"}
    assert {volume["name"] for volume in pod["volumes"]} >= {mount["name"] for mount in mounts.values()}


def test_the_compiled_policy_has_no_type_errors(cluster: Layout) -> None:
    name = "validatingadmissionpolicy/gpudra-agent-slices"
    access.kubectl(cluster, "wait", "--for=jsonpath={.status.observedGeneration}=1", name, "--timeout=30s")
    warnings = access.kubectl(cluster, "get", name, "-o", "jsonpath={.status.typeChecking.expressionWarnings}")
    assert warnings == ""
