"""The autoscalers as processes: what they are started with, how long one listens to them, that they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hack.autoscaler import running
from hack.autoscaler.running import GROUP_LABEL, EndedError, Running
from hack.cluster.layout import Layout

JSON = dict[str, Any]
WRITES = f"""#!{sys.executable}
import json, os, sys, time
names = ("KUBECONFIG", "KWOK_PROVIDER_MODE", "POD_NAMESPACE", "IGNORE_DRA_REQUESTS", "SHAPES_FILE")
print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in names}}]), flush=True)
if os.environ.get("ENDS"):
    sys.exit("it is over")
time.sleep(600)
"""


class ConfigMaps:
    """What of the API is used."""

    def __init__(self) -> None:
        self.there: dict[str, JSON] = {"kwok-provider-config": {"old": True}}

    def delete(self, resource: str, namespace: str, name: str) -> None:
        assert (resource, namespace) == ("configmaps", "kube-system")
        self.there.pop(name, None)

    def create(self, resource: str, namespace: str, body: JSON) -> None:
        assert (resource, namespace) == ("configmaps", "kube-system")
        assert body["metadata"]["name"] not in self.there
        self.there[body["metadata"]["name"]] = body


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ENDS", raising=False)
    monkeypatch.delenv("SHAPES_FILE", raising=False)
    path = tmp_path / "program"
    path.write_text(WRITES)
    path.chmod(0o755)
    return path


@contextmanager
def started(binary: Path, tmp_path: Path, api: ConfigMaps) -> Iterator[tuple[Running, list[Any]]]:
    log = tmp_path / "log"
    layout = Layout(tmp_path)
    with running.cluster_autoscaler(binary, layout, api, ["good", "bad"], log) as found:  # type: ignore[arg-type]  # what of it is used
        yield found, json.loads(found.said("KUBECONFIG"))


def test_cluster_autoscaler_is_told_of_the_cluster_and_never_scales_down(binary: Path, tmp_path: Path) -> None:
    with started(binary, tmp_path, ConfigMaps()) as (_, (arguments, environment)):
        kubeconfig = str(Layout(tmp_path).kubeconfig())
        assert "--cloud-provider=kwok" in arguments
        assert f"--kubeconfig={kubeconfig}" in arguments
        assert "--scale-down-enabled=false" in arguments
        assert environment["KUBECONFIG"] == kubeconfig
        assert environment["KWOK_PROVIDER_MODE"] == "local"


def test_its_provider_has_a_template_for_each_group(binary: Path, tmp_path: Path) -> None:
    api = ConfigMaps()
    with started(binary, tmp_path, api):
        pass

    config = json.loads(api.there["kwok-provider-config"]["data"]["config"])
    assert config["nodegroups"] == {"fromNodeLabelKey": GROUP_LABEL}
    templates = json.loads(api.there[config["configmap"]["name"]]["data"]["templates"])
    assert [node["metadata"]["labels"][GROUP_LABEL] for node in templates["items"]] == ["good", "bad"]


def test_it_ends_with_the_block(binary: Path, tmp_path: Path) -> None:
    with started(binary, tmp_path, ConfigMaps()) as (found, _):
        assert found.process.poll() is None

    assert found.process.returncode is not None


def test_one_listens_no_longer_than_was_said(binary: Path, tmp_path: Path) -> None:
    with (
        started(binary, tmp_path, ConfigMaps()) as (found, _),
        pytest.raises(AssertionError, match="'no such words' in"),
    ):
        found.said("no such words", timeout=0.3)


def test_a_program_that_ends_is_not_waited_for(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDS", "1")

    with started(binary, tmp_path, ConfigMaps()) as (found, _), pytest.raises(EndedError, match="it is over"):
        found.said("no such words", timeout=60)


@pytest.mark.parametrize(
    ("shapes", "ignore", "told"), [({"good": {"attributeBindings": []}}, False, "false"), (None, True, "true")]
)
def test_karpenter_sells_what_it_was_given(
    shapes: dict[str, JSON] | None, ignore: bool, told: str, binary: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    with running.karpenter(binary, Layout(tmp_path), {"good": 2.5}, shapes, log, ignore_claims=ignore) as found:
        _, environment = json.loads(found.said("KUBECONFIG"))

    assert environment["IGNORE_DRA_REQUESTS"] == told
    (sold,) = json.loads((tmp_path / "instance-types.json").read_text())
    assert (sold["name"], sold["offerings"][0]["Price"]) == ("good", 2.5)
    if shapes is None:
        assert environment["SHAPES_FILE"] is None
    else:
        assert json.loads(Path(environment["SHAPES_FILE"]).read_text()) == shapes
