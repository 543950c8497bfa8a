"""What is wrong with a claim or a class is all told at once, and what is not this driver's is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare.manifests import Fault, check_manifest, is_checked
from tests.unit.prepare.prepare_node import DRIVER, gpu_config
from tests.unit.prepare.test_claims import JSON


def request(name: str = "gpu", device_class: str = "gpu.nvidia.com", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def entry(parameters: Any, *names: str, driver: str = DRIVER) -> dict[str, Any]:
    made: dict[str, Any] = {"opaque": {"driver": driver, "parameters": parameters}}
    return {"requests": list(names), **made} if names else made


def claim(*configs: Any, requests: Any = None) -> dict[str, Any]:
    devices = {"requests": [request()] if requests is None else requests, "config": list(configs)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}


def faults(document: Any) -> dict[str, str]:
    return {fault.path.removeprefix("spec.devices."): fault.problem for fault in check_manifest(document, DRIVER)}


def mps(**fields: Any) -> dict[str, Any]:
    return gpu_config(sharing={"strategy": "MPS", "mpsConfig": fields})


def mig() -> dict[str, Any]:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}


def test_a_sound_claim_has_no_fault() -> None:
    assert check_manifest(claim(entry(gpu_config(), "gpu"), entry(mps(defaultActiveThreadPercentage=50))), DRIVER) == ()


@pytest.mark.bug("B53")
def test_all_faults_of_a_configuration_are_told_at_once() -> None:
    wrong = mps(defaultActiveThreadPercentage=101, defaultPinnedDeviceMemoryLimit="1Ki", multiUsr=True) | {"x": 1}
    wrong["sharing"]["stratgy"] = "MPS"
    prefix = "config[0].opaque.parameters"
    assert faults(claim(entry(wrong))) == {
        f"{prefix}.sharing.mpsConfig.defaultActiveThreadPercentage": "must be from 0 to 100, is 101",
        f"{prefix}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit": "must be 1Mi or more, is '1Ki'",
        f"{prefix}.sharing.mpsConfig.multiUsr": 'is no field of this kind; did you mean "multiUser"?',
        f"{prefix}.sharing.stratgy": 'is no field of this kind; did you mean "strategy"?',
        f"{prefix}.x": "is no field of this kind; known here: apiVersion, kind, sharing",
    }


def test_faults_of_several_entries_are_told() -> None:
    found = faults(claim(entry({}), {"opaque": {"driver": DRIVER}}, entry(gpu_config(a=1))))
    assert list(found) == [
        "config[0].opaque.parameters.apiVersion",
        "config[1].opaque.parameters",
        "config[2].opaque.parameters.a",
    ]


def test_a_template_is_checked_one_level_deeper_and_a_class_one_level_higher() -> None:
    inner = claim(entry({}))["spec"]
    template = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "ResourceClaimTemplate", "spec": {"spec": inner}}
    (fault,) = check_manifest(template, DRIVER)
    assert fault.path == "spec.spec.devices.config[0].opaque.parameters.apiVersion"
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "spec": {"config": [entry({})]}}
    (fault,) = check_manifest(device_class, DRIVER)
    assert fault == Fault("spec.config[0].opaque.parameters.apiVersion", "is missing")
    assert str(fault) == "spec.config[0].opaque.parameters.apiVersion: is missing"


@pytest.mark.bug("B52")
def test_other_drivers_configurations_and_other_kinds_are_left_alone() -> None:
    assert faults(claim(entry({"kind": "Anything"}, driver="nic.example.com"))) == {}
    assert faults(claim(entry({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "X"}, driver=""))) != {}
    assert not is_checked({"apiVersion": "v1", "kind": "ResourceClaim"})
    assert check_manifest({"apiVersion": "v1", "kind": "ResourceClaim", "spec": 1}, DRIVER) == ()


def test_a_configuration_of_ours_under_another_drivers_name_is_a_fault() -> None:
    found = faults(claim(entry(gpu_config(), driver="gpu.nvidia.co")))
    assert "nobody would read them" in found["config[0].opaque.driver"]
    domain = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": "x"}
    assert faults(claim(entry(domain, driver="compute-domain.nvidia.com"))) == {}


def test_a_request_that_is_not_there_is_a_fault() -> None:
    found = faults(claim(entry(gpu_config(), "gqu")))
    assert found == {"config[0].requests[0]": "is 'gqu', which is no request here; did you mean \"gpu\"?"}


def test_a_configuration_that_fits_no_named_request_is_a_fault() -> None:
    requests = [request(), request("part", "mig.nvidia.com"), request("own", "team.example.com")]
    found = faults(claim(entry(mig(), "gpu", "part", "own"), requests=requests))
    assert found == {
        "config[0].opaque.parameters.kind": "is MigDeviceConfig, but request gpu is for class gpu.nvidia.com: use "
        "GpuConfig"
    }
    assert faults(claim(entry(mig()), requests=requests)) == {}


def test_alternatives_of_a_request_are_found_by_both_names() -> None:
    alternatives = [{"name": "big", "deviceClassName": "gpu.nvidia.com"}, {"name": "small", "deviceClassName": "x"}]
    requests = [{"name": "gpu", "firstAvailable": alternatives}]
    assert faults(claim(entry(gpu_config(), "gpu"), entry(gpu_config(), "gpu/big"), requests=requests)) == {}
    assert list(faults(claim(entry(gpu_config(), "big"), requests=requests))) == ["config[0].requests[0]"]


def test_requests_of_the_first_beta_are_read_too() -> None:
    requests = [{"name": "gpu", "deviceClassName": "mig.nvidia.com"}]
    assert "config[0].opaque.parameters.kind" in faults(claim(entry(gpu_config(), "gpu"), requests=requests))


@pytest.mark.parametrize("names", [(), ("gpu",)])
def test_admin_access_takes_no_sharing(names: tuple[str, ...]) -> None:
    requests = [request(adminAccess=True)]
    found = faults(claim(entry(mps(), *names), requests=requests))
    assert "adminAccess" in found["config[0].opaque.parameters.sharing"]
    assert faults(claim(entry(gpu_config(), *names), requests=requests)) == {}


def test_a_configuration_for_all_requests_may_pass_over_one_with_admin_access() -> None:
    requests = [request(), request("watch", adminAccess=True)]
    assert faults(claim(entry(mps()), requests=requests)) == {}


@pytest.mark.bug("B103")
def test_an_index_that_no_device_will_have_is_a_fault() -> None:
    limits = mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi", "1": "1Gi", "2": "1Gi", "*": "1Gi"})
    found = faults(claim(entry(limits, "gpu"), requests=[request(count=2)]))
    assert found == {
        "config[0].opaque.parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit['2']": "is index 2, but the "
        "configuration is for 2 device(s): indices start at 0"
    }
    assert faults(claim(entry(limits, "gpu"), requests=[request(allocationMode="All")])) == {}


@given(st.dictionaries(st.sampled_from(["spec", "metadata", "status"]), JSON, max_size=2), JSON, JSON, JSON)
def test_any_document_is_judged_without_an_exception(
    rest: Mapping[str, Any], requests: Any, config: Any, e: Any
) -> None:
    base = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    check_manifest({**rest, **base}, DRIVER)
    devices = {"requests": requests, "config": [config, {"opaque": e}, {"requests": requests, "opaque": e}]}
    check_manifest({**base, "spec": {"devices": devices}}, DRIVER)
