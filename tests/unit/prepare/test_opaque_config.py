"""Opaque configuration: what users write is decoded strictly and refused in words that tell them what to write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare.claims import read_claim
from driver.prepare.config import (
    GpuConfig,
    Interval,
    IommuBackend,
    MigDeviceConfig,
    MpsConfig,
    Sharing,
    Strategy,
    VfioDeviceConfig,
    decode,
    decode_text,
)
from driver.prepare.document import DocumentError
from driver.prepare.effective import effective_configs
from driver.prepare.errors import ClaimError, Reason
from tests.unit.prepare.prepare_node import DRIVER, POOL, claim, config, gpu_config, result
from tests.unit.prepare.test_claims import JSON


def parameters(kind: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def complaint(value: Any) -> str:
    with pytest.raises(DocumentError) as caught:
        decode(value)
    return str(caught.value)


def test_a_gpu_config_without_sharing_asks_for_nothing() -> None:
    assert decode(gpu_config()) == GpuConfig(None)
    assert decode(gpu_config(sharing={})) == GpuConfig(Sharing())


def test_time_slicing_is_read_and_its_interval_defaults() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    assert decode(gpu_config(sharing=sharing)) == GpuConfig(Sharing(Strategy.TIME_SLICING, Interval.LONG))
    # upstream panicked on an empty timeSlicingConfig
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {}}
    assert decode(gpu_config(sharing=sharing)) == GpuConfig(Sharing(Strategy.TIME_SLICING, Interval.DEFAULT))


def test_mps_is_read_with_its_limits() -> None:
    mps = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-0a1b": "2Gi"},
        "multiUser": True,
    }
    decoded = decode(gpu_config(sharing={"strategy": "MPS", "mpsConfig": mps}))
    expected = MpsConfig(50, "10Gi", (("0", "1Gi"), ("GPU-0a1b", "2Gi")), True)
    assert decoded == GpuConfig(Sharing(Strategy.MPS, None, expected))


def test_mig_and_vfio_kinds_are_read() -> None:
    assert decode(parameters("MigDeviceConfig")) == MigDeviceConfig(None)
    assert decode(parameters("VfioDeviceConfig")) == VfioDeviceConfig()
    iommu = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
    assert decode(parameters("VfioDeviceConfig", iommu=iommu)) == VfioDeviceConfig(IommuBackend.PREFER_IOMMUFD, True)


@pytest.mark.bug("B53")
@pytest.mark.parametrize(
    ("value", "path", "hint"),
    [
        (gpu_config(sharng={}), "parameters.sharng", '"sharing"'),
        (gpu_config(Sharing={}), "parameters.Sharing", '"sharing"'),
        (
            gpu_config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Long"}}),
            "parameters.sharing.timeSlicingConfig.intervall",
            '"interval"',
        ),
        (gpu_config(sharing={"strategy": "timeslicing"}), "parameters.sharing.strategy", '"TimeSlicing"'),
        (gpu_config(sharing={"strategy": "Sometimes"}), "parameters.sharing.strategy", "MPS, TimeSlicing"),
        (gpu_config(sharing=[]), "parameters.sharing", "must be an object, is a list"),
        (
            gpu_config(sharing={"timeSlicingConfig": {}}),
            "parameters.sharing.timeSlicingConfig",
            'unless sharing.strategy is "TimeSlicing"',
        ),
        (gpu_config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}), "parameters.sharing.mpsConfig", '"MPS"'),
        (parameters("GpuConfigg"), "parameters.kind", '"GpuConfig"'),
        (parameters("Potato"), "parameters.kind", "GpuConfig, MigDeviceConfig, VfioDeviceConfig"),
        (parameters("ComputeDomainChannelConfig"), "parameters.kind", "compute-domain.nvidia.com"),
        ({"kind": "GpuConfig"}, "parameters.apiVersion", "is missing"),
        ({"apiVersion": "v1", "kind": "GpuConfig"}, "parameters.apiVersion", "resource.nvidia.com/v1beta1"),
        (parameters("VfioDeviceConfig", iommu={"backendPolicy": "Legacy"}), "backendPolicy", "LegacyOnly"),
        (parameters("VfioDeviceConfig", iommu={"enableAPIDevice": 1}), "enableAPIDevice", "true or false"),
        (
            parameters("MigDeviceConfig", sharing={"timeSlicingConfig": {}}),
            "timeSlicingConfig",
            "no field of this kind",
        ),
        ([], "parameters", "must be an object"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_a_remedy(value: Any, path: str, hint: str) -> None:
    message = complaint(value)
    assert path in message
    assert hint in message


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    "mps",
    [
        {"defaultPerDevicePinnedMemoryLimit": {"0; touch /pwn": "1Gi"}},
        {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi\nX=1"}},
        {"defaultPinnedDeviceMemoryLimit": "$(id)"},
        {"defaultPinnedDeviceMemoryLimit": "1" * 4000},
        {"defaultActiveThreadPercentage": 101},
        {"defaultActiveThreadPercentage": True},
        {"defaultActiveThreadPercentage": float("nan")},
        {"multiUser": "yes"},
    ],
)
def test_limits_that_could_reach_a_shell_or_a_variable_are_refused(mps: dict[str, Any]) -> None:
    message = complaint(gpu_config(sharing={"strategy": "MPS", "mpsConfig": mps}))
    assert "parameters.sharing.mpsConfig" in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.bug("B53")
def test_stored_data_is_decoded_leniently() -> None:
    value = gpu_config(futureField=1, sharing={"strategy": "MPS", "later": 2})
    assert decode(value, strict=False) == GpuConfig(Sharing(Strategy.MPS))


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"kind": "GpuConfig", "kind": "MigDeviceConfig"}', "twice"),
        ("[" * 5000, "deep"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "out of range"),
        ("{", "not JSON"),
        ('{"a": "' + "x" * 10240 + '"}', "10240 are allowed"),
        (b"\xff{}", "not UTF-8"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_text_that_readers_would_read_differently_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        decode_text(text)


def test_brackets_inside_of_strings_are_no_nesting() -> None:
    value = gpu_config() | {"kind": "[" * 100 + '\\"{'}
    with pytest.raises(DocumentError, match=r"parameters\.kind"):
        decode_text(json.dumps(value))


@given(JSON)
def test_any_value_is_decoded_or_refused_with_its_path(value: Any) -> None:
    assert complaint(value).startswith("parameters")


@given(st.dictionaries(st.text(max_size=12), JSON, max_size=4), st.sampled_from(["GpuConfig", "VfioDeviceConfig"]))
def test_any_fields_of_a_known_kind_are_decoded_or_refused(fields: dict[str, Any], kind: str) -> None:
    value = fields | parameters(kind)
    unknown = set(fields) - {"apiVersion", "kind", "sharing", "iommu"}
    try:
        decode(value)
    except DocumentError as error:
        assert error.path.startswith("parameters")  # noqa: PT017 - either outcome is right
    else:
        assert not unknown


@given(st.text(max_size=200))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        decode_text(text)


def effective(*entries: dict[str, Any], request: str = "gpu") -> GpuConfig:
    document = claim("u1", result(0, request), configs=entries)
    allocation = read_claim(document, uid="u1", driver_name=DRIVER, pool_name=POOL)
    return effective_configs(allocation)[allocation.results[0]]


def refused(*entries: dict[str, Any], request: str = "gpu") -> ClaimError:
    with pytest.raises(ClaimError) as caught:
        effective(*entries, request=request)
    return caught.value


def test_the_last_configuration_wins_and_the_claim_beats_the_class() -> None:
    by_class = config(gpu_config(sharing={}), "FromClass")
    by_claim = config(gpu_config())
    assert effective() == GpuConfig(None)
    assert effective(by_class) == GpuConfig(Sharing())
    assert effective(by_claim, by_class) == GpuConfig(None)


def test_a_configuration_for_all_requests_of_another_kind_is_skipped() -> None:
    assert effective(config(parameters("MigDeviceConfig")), config(parameters("VfioDeviceConfig"))) == GpuConfig(None)


def test_a_configuration_of_the_wrong_kind_that_names_the_request_is_an_error() -> None:
    error = refused(config(parameters("MigDeviceConfig"), requests=["gpu"]), request="gpu/big")
    assert error.permanent
    assert error.reason is Reason.INVALID_CONFIG
    assert "status.allocation.devices.config[0].opaque.parameters.kind" in str(error)
    assert "GpuConfig" in str(error)


def test_a_configuration_that_the_scheduler_widened_to_all_requests_is_still_for_the_named_one() -> None:
    """Kubernetes 1.37 clears an allocated configuration's requests where they are all requests of the claim."""
    document = claim("u1", result(0, "gpu"), configs=[config(parameters("MigDeviceConfig"))])
    opaque = {"driver": DRIVER, "parameters": parameters("MigDeviceConfig")}
    for written, is_error in (({"requests": ["gpu"], "opaque": opaque}, True), ({"opaque": opaque}, False)):
        document["spec"] = {"devices": {"config": [written]}}
        allocation = read_claim(document, uid="u1", driver_name=DRIVER, pool_name=POOL)
        if is_error:
            with pytest.raises(ClaimError, match="MigDeviceConfig"):
                effective_configs(allocation)
        else:
            assert effective_configs(allocation)[allocation.results[0]] == GpuConfig(None)


@pytest.mark.bug("B53")
def test_a_mistake_in_a_configuration_that_is_overridden_is_still_a_mistake() -> None:
    error = refused(config(gpu_config(sharin={}), "FromClass"), config(gpu_config()))
    assert error.permanent
    assert error.reason is Reason.INVALID_CONFIG
    assert "config[0].opaque.parameters.sharin" in str(error)


@pytest.mark.bug("B97")
@pytest.mark.parametrize("strategy", ["TimeSlicing", "MPS"])
def test_sharing_that_is_not_served_is_refused_for_good_and_by_field(strategy: str) -> None:
    error = refused(config(gpu_config(sharing={"strategy": strategy})))
    assert error.permanent
    assert error.reason is Reason.UNSUPPORTED_CONFIG
    assert "opaque.parameters.sharing.strategy" in str(error)
    assert strategy in str(error)


def test_sharing_for_another_request_does_not_matter_here() -> None:
    assert effective(config(gpu_config(sharing={"strategy": "MPS"}), requests=["other"])) == GpuConfig(None)


def test_admin_access_takes_no_sharing_and_a_configuration_for_all_passes_it_over() -> None:
    sharing = gpu_config(sharing={"strategy": "MPS"})

    def of(*entries: dict[str, Any], both: bool = False) -> Any:
        results = [result(0, "watch", adminAccess=True), *([result(1, "work")] if both else [])]
        document = claim("u1", *results, configs=entries)
        allocation = read_claim(document, uid="u1", driver_name=DRIVER, pool_name=POOL)
        return effective_configs(allocation, {"MPS"})[allocation.results[0]]

    assert of(config(sharing, "FromClass")) == GpuConfig(None)
    assert of(config(sharing), both=True) == GpuConfig(None)
    assert of(config(gpu_config())) == GpuConfig(None)
    for entries, both in (([config(sharing)], False), ([config(sharing, requests=["watch"])], True)):
        with pytest.raises(ClaimError, match="request watch has adminAccess") as caught:
            of(*entries, both=both)
        assert caught.value.permanent
