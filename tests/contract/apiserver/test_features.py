"""What a server keeps of a slice is found out alike at the embedded server and at the real one."""

from __future__ import annotations

from typing import Any

from kubeletplugin.publisher.features import detect_features
from kubeletplugin.testing.gates import DEFAULT_GATES

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def test_the_gates_that_are_on_by_default_are_found(api: Any) -> None:
    features = detect_features(api.client, api.driver, api.node)
    assert features.gates == DEFAULT_GATES
    assert features.server.startswith("v1.37.")


def test_asking_stores_nothing(api: Any) -> None:
    detect_features(api.client, api.driver, api.node)
    assert api.client.get(SLICES, query=api.mine)["items"] == []
