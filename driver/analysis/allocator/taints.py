"""Taints: which keep a request from a device, and those that come from DeviceTaintRules instead of the slice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .claims import Request
from .features import Rules
from .fields import Document, Reader, document
from .model import Device, Slice, taint

_EFFECTS: Final = frozenset(("NoSchedule", "NoExecute"))
_SELECTOR: Final = frozenset(("driver", "pool", "device"))


def repels(device: Device, request: Request, rules: Rules) -> bool:
    """Whether a taint that counts is not tolerated by the request."""
    if not device.taints or not rules.features.device_taints:
        return False
    return any(
        (rules.every_taint_counts or taint.effect in _EFFECTS)
        and not any(each.tolerates(taint) for each in request.tolerations)
        for taint in device.taints
    )


def apply(given: Iterable[Document], slices: Sequence[Slice], rules: Rules, unsupported: list[str]) -> None:
    """Give each rule's taint to the devices that it selects, where the scheduler applies rules at all.

    Raises:
        DocumentError: a rule cannot be read.
    """
    for value in given if rules.features.device_taint_rules else ():
        _, _, whole = document(value, "DeviceTaintRule", unsupported)
        spec = whole.need("spec")
        spec.known(frozenset(("deviceSelector", "taint")))
        if not spec.has("deviceSelector") and not rules.bare_rule_taints_all:
            continue
        selector = spec.sub("deviceSelector") or Reader({}, spec.path, unsupported)
        selector.known(_SELECTOR)
        extra = taint(spec.need("taint"))
        device = selector.text("device") if selector.has("device") else None
        for each in slices:
            driver = each.driver if not selector.has("driver") else selector.text("driver")
            pool = each.pool if not selector.has("pool") else selector.text("pool")
            if (driver, pool) == (each.driver, each.pool):
                each.rules.append((device, extra))
