"""What containers can read about their devices (KEP-5304)."""

from __future__ import annotations

from typing import Any

import pytest

from hack.cluster.layout import Layout
from hack.cluster.scene import Container, Namespace
from kubeletplugin.devicemetadata import CONTAINER_DIR, KNOWN_VERSIONS, decode_stream
from tests.kubelet.scene_driver import WAIT, Driver, claim_of, request

END = "exec sleep 2147483647"


def printing(driver: Driver, where: str) -> str:
    """A script that prints a metadata file as one line."""
    return f"tr '\\n' ' ' < {CONTAINER_DIR}/{where}/{driver.name}-metadata.json; echo"


def read(namespace: Namespace, container: str, line: int = 0) -> dict[str, Any]:
    """The metadata that a container printed in this line."""
    return decode_stream(namespace.log_lines("p", container, lines=line + 1)[line])


@pytest.mark.parametrize("versions", [KNOWN_VERSIONS, KNOWN_VERSIONS[:1]], ids=["both versions", "the newest alone"])
def test_metadata_of_a_claim_is_in_its_container_and_in_no_other(
    driver: Driver, namespace: Namespace, versions: tuple[str, ...]
) -> None:
    driver.started(metadata_versions=versions)
    claim = namespace.claim("one", device_class=driver.name)
    containers = [
        Container("with", f"{printing(driver, 'resourceclaims/one/gpu')}; {END}"),
        Container("without", f"ls {CONTAINER_DIR} 2>/dev/null || echo nothing; {END}", claims=()),
    ]
    namespace.pod("p", claim="one", containers=containers)
    namespace.running("p", WAIT)
    document = read(namespace, "with")
    identity = {"name": "one", "namespace": namespace.name, "uid": claim["metadata"]["uid"], "generation": 1}
    (device,) = namespace.allocated("one")
    described = {
        "driver": driver.name,
        "pool": driver.driver.pool,
        "name": device,
        "attributes": {"device": {"string": device}, "pool": {"string": driver.driver.pool}},
    }
    assert document["apiVersion"] == KNOWN_VERSIONS[0]
    assert document["metadata"] == identity
    assert document["requests"] == [{"name": "gpu", "devices": [described]}]
    assert namespace.log_lines("p", "without", lines=1) == ["nothing"]


def test_a_container_of_one_request_has_the_metadata_of_that_request_alone(
    driver: Driver, namespace: Namespace
) -> None:
    driver.started()
    claim_of(namespace, "two", [request("req0", driver.name), request("req1", driver.name)])
    both = f"{printing(driver, 'resourceclaims/two/req0')}; {printing(driver, 'resourceclaims/two/req1')}; {END}"
    one = f"{printing(driver, 'resourceclaims/two/req1')}; ls {CONTAINER_DIR}/resourceclaims/two; {END}"
    containers = [Container("all", both, claims=("gpu",)), Container("req1-only", one, claims=("gpu/req1",))]
    namespace.pod("p", claim="two", containers=containers)
    namespace.running("p", WAIT)
    assert [read(namespace, "all", line)["requests"][0]["name"] for line in (0, 1)] == ["req0", "req1"]
    assert read(namespace, "req1-only")["requests"] == read(namespace, "all", 1)["requests"]
    assert namespace.log_lines("p", "req1-only", lines=2)[1] == "req1"


def test_metadata_of_a_claim_from_a_template_goes_by_the_pods_name_for_it(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.template("nics", device_class=driver.name)
    script = f"{printing(driver, 'resourceclaimtemplates/gpu/gpu')}; {END}"
    namespace.pod("p", template="nics", containers=[Container("main", script)])
    namespace.running("p", WAIT)
    document = read(namespace, "main")
    assert document["podClaimName"] == "gpu"
    assert [one["name"] for one in document["requests"][0]["devices"]] == namespace.allocated(namespace.claim_of("p"))


def test_nothing_is_left_after_the_pod(driver: Driver, cluster: Layout, namespace: Namespace) -> None:
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    namespace.delete_pod("p")
    assert list(cluster.cdi.glob(f"{driver.name}*")) == []
    assert list((cluster.plugins / driver.name / "dra-device-metadata").iterdir()) == []
