"""Shares of one GPU: several claims on it, several in a claim, told to containers, never beside the whole GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver.prepare import ClaimError, Reason
from tests.support.cdispecs import given
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal
from tests.unit.prepare.prepare_node import DRIVER, claim, device, ref, result
from tests.unit.prepare.sharing_node import SHARES, SharingNode, share, slicing, uuid

WORD = "GPU_0000_1B_00_0"


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


def env(node: SharingNode, uid: str) -> list[dict[str, str]]:
    """Variables of each CDI device of a claim."""
    spec: dict[str, Any] = json.loads(node.spec_path(uid).read_text())
    return [dict(item.split("=", 1) for item in d["containerEdits"]["env"]) for d in given(spec)]


def test_claims_have_shares_of_one_gpu_at_the_same_time(node: SharingNode) -> None:
    preparer = node.start()
    (first,) = prepare(preparer, claim("u1", share(0, 1)))
    (second,) = prepare(preparer, claim("u2", share(0, 2)))
    assert (first.share_id, second.share_id) == (SHARES[1], SHARES[2])
    assert first.cdi_device_ids == (f"{DRIVER}/claim=u1_gpu_{device(0)}_{SHARES[1]}",)
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert [record.ref.uid for record in preparer.prepared()] == ["u2"]


def test_a_share_and_the_whole_gpu_do_not_go_together(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1)))
    error = refusal(preparer, claim("u2", result(0)))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "ns/claim-u1" in str(error)
    prepare(preparer, claim("u3", result(1)))
    assert refusal(preparer, claim("u4", share(1, 2))).reason is Reason.DEVICE_IN_USE


def test_a_share_that_somebody_has_is_not_given_twice_within_a_claim_but_two_are(node: SharingNode) -> None:
    both = prepare(node.start(), claim("u1", share(0, 1), share(0, 2)))
    assert len({one.cdi_device_ids for one in both}) == 2
    assert [one.share_id for one in both] == [SHARES[1], SHARES[2]]


def test_containers_are_told_what_is_theirs(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", share(0, 1, shares="1", memory="20Gi")))
    (told,) = env(node, "u1")
    assert told[f"GPUDRA_SHARES_{WORD}"] == "1/4"
    assert told[f"GPUDRA_MEMORY_LIMIT_{WORD}"] == str(20 * 2**30)


def test_shares_of_one_request_come_together_and_are_told_as_one(node: SharingNode) -> None:
    results = [share(0, 1, "a", shares="1", memory="10Gi"), share(0, 2, "a", shares="2", memory="5Gi")]
    prepare(node.start(), claim("u1", *results, share(0, 3, "b", shares="1", memory="1Gi")))
    first, second, third = env(node, "u1")
    assert first[f"GPUDRA_SHARES_{WORD}"] == second[f"GPUDRA_SHARES_{WORD}"] == "3/4"
    assert first[f"GPUDRA_MEMORY_LIMIT_{WORD}"] == str(15 * 2**30)
    assert third[f"GPUDRA_SHARES_{WORD}"] == "1/4"


@pytest.mark.bug("B102")
def test_claims_of_one_call_that_share_a_gpu_must_agree_too(node: SharingNode) -> None:
    """A pod with two claims has them prepared in one call."""
    preparer = node.start()
    documents = {
        "u1": claim("u1", share(0, 1), configs=[slicing("Long")]),
        "u2": claim("u2", share(0, 2), configs=[slicing("Short")]),
        "u3": claim("u3", share(0, 3), configs=[slicing("Long")]),
    }
    answers = preparer.prepare(documents)
    refused = [uid for uid, answer in answers.items() if isinstance(answer, ClaimError)]
    assert refused == ["u2"]
    assert "shared with claim ns/claim-u1" in str(answers["u2"])
    assert node.smi.slices[uuid(0)] == 3


def test_a_whole_gpu_is_told_no_limit(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0)))
    assert not [name for name in env(node, "u1")[0] if "LIMIT" in name or "SHARES" in name]


def test_what_was_given_stays_when_the_setting_changes(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", share(0, 1, shares="1")))
    before = node.spec_path("u1").read_text()
    node.shares = lambda _device, _inventory: 10
    node.reboot()
    node.start().recover()
    assert node.spec_path("u1").read_text() == before


def test_a_capacity_that_is_no_quantity_is_refused(node: SharingNode) -> None:
    error = refusal(node.start(), claim("u1", share(0, 1, memory="much")))
    assert (error.reason, error.permanent) == (Reason.INVALID_CLAIM, True)
    assert "consumedCapacity" in str(error)


def test_admin_access_sees_a_shared_gpu_and_disturbs_nobody(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1)))
    prepare(preparer, claim("u2", result(0, adminAccess=True)))
    prepare(preparer, claim("u3", share(0, 2)))
    assert preparer.unprepare([ref("u2")]) == {"u2": None}
    assert node.spec_path("u1").exists()
