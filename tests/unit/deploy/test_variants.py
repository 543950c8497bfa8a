"""The variants of the DaemonSet: partial documents that are merged into it by the names of what they change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver.cli.main import build_parser
from driver.inventory.filters import parse_selectors, parse_shares
from driver.settings import ENVIRONMENT_PREFIX, FIELDS, load

DEPLOY = Path(__file__).parents[3] / "deploy"
VARIANTS = sorted((DEPLOY / "variants").glob("*.yaml"))


def pod(file: Path) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(file.read_text())["spec"]["template"]["spec"]
    return spec


def environment(file: Path) -> dict[str, str]:
    (container,) = pod(file)["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


@pytest.mark.parametrize("file", VARIANTS, ids=lambda file: file.stem)
def test_a_variant_names_the_daemonset_and_its_container(file: Path) -> None:
    variant, whole = yaml.safe_load(file.read_text()), yaml.safe_load((DEPLOY / "daemonset.yaml").read_text())
    assert {key: variant[key] for key in ("apiVersion", "kind")} == {key: whole[key] for key in ("apiVersion", "kind")}
    assert variant["metadata"].items() <= whole["metadata"].items()
    (changed,), (agent,) = pod(file)["containers"], pod(DEPLOY / "daemonset.yaml")["containers"]
    assert changed["name"] == agent["name"]


@pytest.mark.parametrize("file", VARIANTS, ids=lambda file: file.stem)
def test_its_variables_are_settings_that_the_agent_takes(file: Path) -> None:
    known = {ENVIRONMENT_PREFIX + name.upper() for name in FIELDS}
    assert environment(file).keys() <= known
    settings = load({"node_name": "n"}, environment(file))
    for name in environment(file):
        field = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        assert str(getattr(settings, field)) == environment(file)[name]


@pytest.mark.parametrize("file", VARIANTS, ids=lambda file: file.stem)
def test_what_it_mounts_is_a_volume_of_its_own_or_of_the_daemonset(file: Path) -> None:
    volumes = {
        volume["name"] for source in (file, DEPLOY / "daemonset.yaml") for volume in pod(source).get("volumes", ())
    }
    (container,) = pod(file)["containers"]
    assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


@pytest.mark.parametrize("name", ["variants/mps.yaml", "variants/mps-pod.yaml", "mps-daemons.yaml"])
def test_the_folder_of_mps_daemons_is_the_host_s_and_the_setting_s(name: str) -> None:
    file = DEPLOY / name
    (container,) = pod(file)["containers"]
    (path,) = (volume["hostPath"]["path"] for volume in pod(file)["volumes"] if volume["name"] == "mps")
    (mounted,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "mps")
    assert path == mounted == environment(file)["GPUDRA_MPS_DIR"] == FIELDS["mps_dir"].default
    assert pod(file).get("hostPID", False) is (name != "variants/mps-pod.yaml")


def test_the_pod_of_the_daemons_goes_where_the_agent_goes_and_asks_for_no_rights() -> None:
    agent, keeper = pod(DEPLOY / "daemonset.yaml"), pod(DEPLOY / "mps-daemons.yaml")
    for field in ("affinity", "tolerations", "priorityClassName"):
        assert keeper[field] == agent[field]
    assert keeper["automountServiceAccountToken"] is False
    (image,) = {container["image"] for container in (*agent["containers"], *keeper["containers"])}
    assert image
    (container,) = keeper["containers"]
    parser = build_parser([container["args"][0]])
    known = {ENVIRONMENT_PREFIX + name.upper() for name in vars(parser.parse_args(container["args"]))}
    assert {entry["name"] for entry in container["env"]} <= known


def test_selectors_in_variants_can_be_read() -> None:
    assert parse_selectors(environment(DEPLOY / "variants" / "vfio.yaml")["GPUDRA_PASSTHROUGH_DEVICES"])
    assert [count for _, count in parse_shares(environment(DEPLOY / "variants" / "shares.yaml")["GPUDRA_SHARES"])] == [
        4
    ]


def test_the_readme_lists_every_variant_and_no_other() -> None:
    text = (DEPLOY / "README.md").read_text()
    assert set(re.findall(r"\| `variants/([a-z-]+\.yaml)` \|", text)) == {file.name for file in VARIANTS}


def test_the_class_with_an_extended_resource_is_the_class_without_it_but_for_that() -> None:
    classes = {c["metadata"]["name"]: c for c in yaml.safe_load_all((DEPLOY / "deviceclasses.yaml").read_text())}
    extended = yaml.safe_load((DEPLOY / "extended-resource.yaml").read_text())
    assert extended["spec"].pop("extendedResourceName") == "nvidia.com/gpu"
    assert extended == classes["gpu.nvidia.com"]
