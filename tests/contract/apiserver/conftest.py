"""One API server after the other behind the same fixture: the embedded one, and kube-apiserver where it runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.client import ApiError, KubeClient
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from tests.contract.apiserver.api_calls import SLICES


class Api:
    """A client and names of its own for each test, so that tests on a shared server do not meet."""

    def __init__(self, client: KubeClient, ca: Path | None = None) -> None:
        self.client = client
        self._ca = ca
        self.tag = f"t{uuid.uuid4().hex[:8]}"
        self.driver = f"{self.tag}.example.com"
        self.node = f"node-{self.tag}"

    def slice(self, name: str | None = None, **spec: Any) -> dict[str, Any]:
        """A valid slice; ``spec`` replaces fields, None removes them."""
        body: dict[str, Any] = {
            "driver": self.driver,
            "nodeName": self.node,
            "pool": {"name": f"{self.node}/gpus", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "X"}}}],
        }
        body |= spec
        body = {key: value for key, value in body.items() if value is not None}
        metadata = {"name": name or f"{self.tag}-slice"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": body}

    def claim(self, name: str = "claim") -> dict[str, Any]:
        """A claim of one device."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
        return {"metadata": {"name": f"{self.tag}-{name}"}, "spec": {"devices": {"requests": [request]}}}

    def allocation(self) -> dict[str, Any]:
        """An allocation for ``claim``."""
        result = {"request": "gpu", "driver": self.driver, "pool": f"{self.node}/gpus", "device": "gpu-0"}
        return {"devices": {"results": [result]}}

    def stranger(self) -> KubeClient:
        """A client with a token that nobody knows."""
        return KubeClient(self.client.server, token="wrong", ca=self._ca, insecure_skip_verify=self._ca is None)

    @property
    def mine(self) -> dict[str, str]:
        """The query that selects this test's slices."""
        return {"fieldSelector": f"spec.driver={self.driver}"}

    def refused(self, document: dict[str, Any]) -> ApiError:
        """The error of creating a slice."""
        with pytest.raises(ApiError) as caught:
            self.client.create(SLICES, document, query={"dryRun": "All"})
        return caught.value


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.cluster)])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "embedded":
        with EmbeddedApiServer(token="known") as server:
            yield Api(server.client())
        return
    address = os.environ.get("GPUDRA_TEST_APISERVER")
    if not address:
        pytest.skip("GPUDRA_TEST_APISERVER names no API server (make test-cluster starts one)")
    authority = os.environ.get("GPUDRA_TEST_CA")
    with KubeClient(
        address,
        token=os.environ.get("GPUDRA_TEST_TOKEN"),
        ca=Path(authority) if authority else None,
        insecure_skip_verify=not authority,
        rate=1000.0,
        burst=1000,
    ) as client:
        _skip_where_it_was_another_rule(request, int(client.get("/version")["minor"].rstrip("+")))
        api = Api(client, Path(authority) if authority else None)
        yield api
        client.delete(SLICES, query=api.mine)


def _skip_where_it_was_another_rule(request: pytest.FixtureRequest, minor: int) -> None:
    """The embedded server stands for the newest Kubernetes. A module's ``SINCE`` says what is as it is since when.

    Keys are names of tests, as they are or with their parameters, or ``*`` for all: (minor version, reason).
    """
    since = getattr(request.module, "SINCE", {})
    name = request.node.name.replace("[real-", "[")
    first, reason = since.get(name) or since.get(request.node.originalname) or since.get("*") or (0, "")
    if minor < first:
        pytest.skip(f"Kubernetes 1.{minor}, and since 1.{first} only: {reason}")
