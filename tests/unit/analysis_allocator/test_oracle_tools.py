"""The tools beside the oracle that need no oracle: shrinking, comparing, naming, generating."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.analysis.allocator import Features
from hack.oracle import build, client, compare, grammar, scenes, selectors
from hack.oracle.build import OracleError, Release


def test_shrinking_keeps_only_what_the_difference_needs() -> None:
    whole = scenes.scene("0.37.2", 3)

    def has_a_claim_with_a_request(scene: scenes.Document) -> bool:
        return any(each["spec"]["devices"]["requests"] for each in scene["Claims"])

    small = compare.shrink("0.37.2", whole, has_a_claim_with_a_request)
    assert len(small["Claims"]) == 1
    assert len(small["Claims"][0]["spec"]["devices"]["requests"]) == 1
    assert (small["Slices"], small["Nodes"]) == ([], [])


def test_shares_are_compared_without_their_ids_and_steps_only_where_upstream_counts_them() -> None:
    one = {"results": [{"devices": {"results": [{"device": "a", "shareID": "x"}]}}], "calls": 4}
    other = {"results": [{"devices": {"results": [{"device": "a", "shareID": "y"}]}}], "calls": 4}
    assert compare.agree(one, other)
    assert compare.agree(one, other | {"calls": 0})
    assert not compare.agree(one, other | {"calls": 5})
    assert not compare.agree(one, other | {"kind": "fatal"})


def test_features_have_upstreams_names() -> None:
    wanted = Features(
        admin_access=True, device_binding_and_status=True, device_taint_rules=True, list_type_attributes=True
    )
    assert compare.features(["AdminAccess", "DeviceBindingAndStatus", "ListTypeAttributes"]) == wanted


@pytest.mark.parametrize("version", build.VERSIONS)
def test_every_file_of_the_oracle_is_there_for_every_release(version: str) -> None:
    release = Release(version)
    assert all((build.SOURCES / name).is_file() for name in release.sources)
    assert "stable" in release.unsorted


def test_an_oracle_that_is_not_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OracleError, match=r"python -m hack\.oracle build --version 0\.37\.2"):
        client.ask("0.37.2", [])


def test_without_go_the_build_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OracleError, match="Go is not installed"):
        build.build("0.37.2")


def test_an_oracle_that_stops_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "oracle"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(OracleError, match="out of luck"):
        client.talk(broken, [{}], 10.0)


def test_an_oracle_that_answers_too_little_is_noticed(tmp_path: Path) -> None:
    lazy = tmp_path / "oracle"
    lazy.write_text("#!/bin/sh\ncat >/dev/null\necho '{}'\n")
    lazy.chmod(0o755)
    with pytest.raises(OracleError, match="answered 1 of 2"):
        client.talk(lazy, [{}, {}], 10.0)


def test_random_selectors_are_of_every_kind() -> None:
    kinds = {next(iter(selectors.verdict("0.37.2", grammar.expression(seed), listed=False))) for seed in range(60)}
    assert {"matches", "error", "compile"} <= kinds
    assert grammar.expression(9) == grammar.expression(9)


@pytest.mark.parametrize("version", build.VERSIONS)
def test_scenes_hold_what_can_go_wrong(version: str) -> None:
    found = [scenes.scene(version, seed) for seed in range(150)]
    specs = [each["spec"] for scene in found for each in scene["Slices"]]
    devices = [device for spec in specs for device in spec.get("devices", ())]
    assert any("sharedCounters" in spec for spec in specs)
    assert any("perDeviceNodeSelection" in spec for spec in specs)
    assert {"allowMultipleAllocations", "taints", "consumesCounters", "bindingConditions"} <= {
        key for each in devices for key in each
    }
    assert any(scene["Allocated"] for scene in found)
