"""The manifests of deploy/: what must agree between them agrees, and nothing asks for more than it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver.settings import DRIVER_NAME, ENVIRONMENT_PREFIX, FIELDS

DEPLOY = Path(__file__).parents[3] / "deploy"
ACCOUNT = ("gpudra-system", "gpudra-agent")


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def kind(name: str, wanted: str) -> dict[str, Any]:
    (found,) = [document for document in load(name) if document["kind"] == wanted]
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = kind("daemonset.yaml", "DaemonSet")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


@pytest.mark.bug("B126")
def test_role_binding_policy_and_daemonset_name_the_same_service_account(pod: dict[str, Any]) -> None:
    account = kind("rbac.yaml", "ServiceAccount")["metadata"]
    assert (account["namespace"], account["name"]) == ACCOUNT
    for binding in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = kind("rbac.yaml", binding)["subjects"]
        assert (subject["namespace"], subject["name"]) == ACCOUNT
    (condition,) = kind("admission-policy.yaml", "ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{ACCOUNT[0]}:{ACCOUNT[1]}'" in condition["expression"]
    assert (kind("daemonset.yaml", "DaemonSet")["metadata"]["namespace"], pod["serviceAccountName"]) == ACCOUNT
    assert kind("namespace.yaml", "Namespace")["metadata"]["name"] == ACCOUNT[0]


@pytest.mark.bug("B128")
def test_the_agent_s_rights_are_these_and_no_others() -> None:
    assert kind("rbac.yaml", "ClusterRole")["rules"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "resourceNames": ["gpu.nvidia.com"],
            "verbs": ["associated-node:patch"],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    role = kind("rbac.yaml", "Role")
    assert role["metadata"]["namespace"] == "default"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]


@pytest.mark.bug("B125")
def test_the_policy_is_bound_denies_and_judges_every_version() -> None:
    policy = kind("admission-policy.yaml", "ValidatingAdmissionPolicy")
    binding = kind("admission-policy.yaml", "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    matched = policy["spec"]["matchConstraints"]
    assert matched["matchPolicy"] == "Equivalent"
    (rule,) = matched["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE", "DELETE"]


def test_the_classes_are_those_of_nvidia_s_driver_and_select_by_type() -> None:
    classes = {document["metadata"]["name"]: document["spec"] for document in load("deviceclasses.yaml")}
    assert classes.keys() == {"gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"}
    for name, spec in classes.items():
        (selector,) = spec["selectors"]
        wanted = name.removesuffix(".nvidia.com").split(".")[0]
        assert selector["cel"]["expression"] == (
            f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == '{wanted}'"
        )
        assert "extendedResourceName" not in spec


def test_every_variable_of_the_agent_is_a_setting_that_exists(container: dict[str, Any]) -> None:
    known = {ENVIRONMENT_PREFIX + name.upper() for name in FIELDS}
    assert {entry["name"] for entry in container["env"]} <= known


def test_what_the_kubelet_and_the_runtime_read_has_the_same_path_inside_and_outside(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    outside = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    inside = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert inside.keys() == outside.keys()
    defaults = {name: FIELDS[name].default for name in ("plugins_dir", "registry_dir", "cdi_dir")}
    told = {entry["name"]: entry.get("value") for entry in container["env"]}
    for volume, setting in (("plugins", "plugins_dir"), ("registry", "registry_dir"), ("cdi", "cdi_dir")):
        assert inside[volume] == outside[volume] == told[ENVIRONMENT_PREFIX + setting.upper()] == defaults[setting]


def test_the_driver_s_files_and_sysfs_are_read_only_and_the_root_file_system_too(container: dict[str, Any]) -> None:
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["driver-root"]["readOnly"] is True
    assert mounts["sys"]["readOnly"] is True
    assert mounts["driver-root"]["mountPropagation"] == "HostToContainer"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_agent_shares_no_namespace_of_the_host_and_survives_pressure(pod: dict[str, Any]) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_the_probes_ask_the_health_port_for_services_by_name(container: dict[str, Any]) -> None:
    port = {entry["name"]: entry["containerPort"] for entry in container["ports"]}["health"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["GPUDRA_HEALTH_PORT"] == str(port)
    asked = {probe: container[probe]["grpc"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe: grpc["service"] for probe, grpc in asked.items()} == {
        "startupProbe": "liveness",
        "livenessProbe": "liveness",
        "readinessProbe": "readiness",
    }
    assert {grpc["port"] for grpc in asked.values()} == {port}


def test_the_readme_speaks_of_files_and_variables_that_exist() -> None:
    text = (DEPLOY / "README.md").read_text()
    for name in re.findall(r"`([a-z-]+\.yaml)`", text):
        assert (DEPLOY / name).is_file(), name
    known = {ENVIRONMENT_PREFIX + name.upper() for name in FIELDS}
    assert set(re.findall(r"GPUDRA_[A-Z_]+", text)) <= known


@pytest.mark.parametrize("folder", sorted(path.name for path in (DEPLOY / "demos").iterdir() if path.is_dir()))
def test_a_demo_is_listed_has_a_readme_and_references_only_what_it_holds(folder: str) -> None:
    demo = DEPLOY / "demos" / folder
    assert f"]({folder})" in (DEPLOY / "demos" / "README.md").read_text()
    assert f"deploy/demos/{folder}/" in (demo / "README.md").read_text()
    documents = [document for file in demo.glob("*.yaml") for document in yaml.safe_load_all(file.read_text())]
    held = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        for claim in document["spec"].get("resourceClaims", []):
            named = ("ResourceClaim", claim.get("resourceClaimName"))
            made = ("ResourceClaimTemplate", claim.get("resourceClaimTemplateName"))
            assert {named, made} & held
