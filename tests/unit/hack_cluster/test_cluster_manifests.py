"""Manifests for other images on the test cluster: what is changed of them, and what the image has for them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hack.cluster.daemonset import IMAGE, for_this_cluster
from hack.cluster.images import TEST_IMAGE, busybox_layer
from hack.cluster.layout import Layout
from hack.cluster.manifests import documents, on_test_image
from native.mock import MockNode

DATA = Path(__file__).parents[2] / "cluster" / "data" / "quickstart"


@pytest.mark.parametrize("file", sorted(DATA.glob("*.yaml")), ids=lambda file: file.name)
def test_the_image_and_the_patience_are_all_that_is_changed(file: Path) -> None:
    for document in documents(file):
        changed = on_test_image(document)
        pod = changed["spec"]["template"]["spec"] if document["kind"] == "Deployment" else changed.get("spec", {})
        same = document["spec"]["template"]["spec"] if document["kind"] == "Deployment" else document.get("spec", {})
        for container, original in zip(pod.get("containers", ()), same.get("containers", ()), strict=True):
            assert container["image"] == TEST_IMAGE
            assert container | {"image": original["image"]} == original | {"imagePullPolicy": "Never"}
            container.clear()
            container |= original
        pod.pop("terminationGracePeriodSeconds", None)
        assert changed == document


def test_the_image_has_what_those_manifests_run() -> None:
    with tarfile.open(fileobj=io.BytesIO(busybox_layer())) as layer:
        for name in ("bin/bash", "tmp/sample"):
            member = layer.getmember(name)
            content = layer.extractfile(member)
            assert content is not None
            assert content.read().startswith(b"#!/bin/sh\n")
            assert member.mode == 0o755


def test_a_daemonset_is_moved_to_the_mock_node_with_its_own_paths(tmp_path: Path) -> None:
    mock = MockNode.create(tmp_path / "mock", "t4")
    layout = Layout(tmp_path / "cluster")
    container = {"name": "agent", "image": IMAGE, "env": [{"name": "GPUDRA_DEV_ROOT", "value": "/dev"}]}
    volumes = [
        {"name": "cdi", "hostPath": {"path": "/var/run/cdi"}},
        {"name": "driver-root", "hostPath": {"path": "/"}},
    ]
    document = {"spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}}
    pod = for_this_cluster(document, layout, mock, "localhost/x:1")["spec"]["template"]["spec"]
    (moved,) = pod["containers"]
    assert (moved["image"], moved["imagePullPolicy"]) == ("localhost/x:1", "Never")
    assert [entry["value"] for entry in moved["env"] if entry["name"] == "GPUDRA_DEV_ROOT"] == ["/driver-root/dev"]
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"]]
    assert paths == [str(layout.cdi), str(mock.root), f"{mock.root}/run/gpudra-mock"]
    assert container["image"] == IMAGE, "the document that was given is another one"
