"""What a server keeps of a slice is found out alike at the embedded server and at the real one."""

from __future__ import annotations

from typing import Any

from kubeletplugin.publisher.features import detect_features
from kubeletplugin.testing.gates import DEFAULT_GATES
from tests.contract.apiserver.api_calls import SLICES


def test_the_gates_that_are_on_by_default_are_found(api: Any) -> None:
    features = detect_features(api.client, api.driver, api.node)
    minor = int(features.server.split(".")[1])
    assert features.server.startswith("v1.")
    assert features.gates == (DEFAULT_GATES if minor >= 36 else frozenset()), f"Kubernetes 1.{minor}"


def test_asking_stores_nothing(api: Any) -> None:
    detect_features(api.client, api.driver, api.node)
    assert api.client.get(SLICES, query=api.mine)["items"] == []
