"""Calls that tests of prepare make: one claim, its answer or refusal, the file it leaves."""

from __future__ import annotations

import json
from typing import Any

from driver.prepare import ClaimError, PreparedDevice, Preparer
from tests.unit.prepare.prepare_node import (
    FakeNode,
)


def prepare_one(preparer: Preparer, document: dict[str, Any]) -> tuple[PreparedDevice, ...]:
    uid = document["metadata"]["uid"]
    answer = preparer.prepare({uid: document})[uid]
    assert not isinstance(answer, ClaimError), answer
    return answer


def refusal(preparer: Preparer, document: dict[str, Any]) -> ClaimError:
    uid = document["metadata"]["uid"]
    answer = preparer.prepare({uid: document})[uid]
    assert isinstance(answer, ClaimError)
    return answer


def spec_of(node: FakeNode, uid: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(node.spec_path(uid).read_text())
    return content
