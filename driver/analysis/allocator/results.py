"""The allocation as a document: devices, configuration of classes and claims, node selector."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .claims import Claim, DeviceClass, Request
from .features import Rules
from .nodes import Node
from .search import AttemptError, Chosen

Result = dict[str, Any]


def new_share() -> str:
    """The id of a new share of a device."""
    return str(uuid.uuid4())


def allocation(
    rules: Rules,
    claim: Claim,
    chosen: list[Chosen],
    selected: list[Request],
    classes: Mapping[str, DeviceClass],
    where: Node,
    share: Callable[[], str] = new_share,
) -> Result:
    """The ``status.allocation`` of one claim; ``selected`` holds its requests, alternatives decided.

    Raises:
        AttemptError: a device with a node selector of more than one term.
    """
    devices: Result = {}
    if chosen:
        devices["results"] = [_device(rules, each, share) for each in chosen]
    config = _class_config(selected, classes) + _claim_config(rules, claim, selected)
    if rules.release >= 37:
        for each in config:
            if each.get("requests") and _concerns_all(each["requests"], selected):
                del each["requests"]
    if config:
        devices["config"] = config
    found: Result = {"devices": devices}
    selector = _node_selector(rules, chosen, where, claim)
    if selector is not None:
        found["nodeSelector"] = selector
    return found


def _device(rules: Rules, chosen: Chosen, share: Callable[[], str]) -> Result:
    driver, pool, device = chosen.device.id
    found: Result = {"request": chosen.request.full_name, "driver": driver, "pool": pool, "device": device}
    if chosen.request.admin:
        found["adminAccess"] = True
    if chosen.request.toleration_documents and rules.release >= 36:
        found["tolerations"] = [dict(each) for each in chosen.request.toleration_documents]
    if rules.binding and rules.variant != "stable":
        if chosen.device.binding:
            found["bindingConditions"] = list(chosen.device.binding)
        if chosen.device.binding_failures:
            found["bindingFailureConditions"] = list(chosen.device.binding_failures)
    if chosen.share:
        found["shareID"] = share()
    if chosen.capacity:
        found["consumedCapacity"] = {name: str(amount) for name, amount in chosen.capacity.items()}
    if rules.release >= 37 and rules.variant == "experimental" and chosen.device.slice.skip_operations:
        found["skipNodeOperations"] = list(chosen.device.slice.skip_operations)
    return found


def _class_config(selected: list[Request], classes: Mapping[str, DeviceClass]) -> list[Result]:
    found: list[Result] = []
    seen: dict[str, tuple[int, int]] = {}
    for request in selected:
        class_ = classes[request.class_name]
        if class_.name in seen:
            for each in found[slice(*seen[class_.name])]:
                each["requests"].append(request.full_name)
            continue
        begin = len(found)
        found += [{"source": "FromClass", "requests": [request.full_name], **each} for each in class_.config]
        seen[class_.name] = begin, len(found)
    return found


def _claim_config(rules: Rules, claim: Claim, selected: list[Request]) -> list[Result]:
    found: list[Result] = []
    for each in claim.config:
        names = each.get("requests") or []
        entry = {"source": "FromClaim", **each}
        if not names:
            entry.pop("requests", None)
            found.append(entry)
            continue
        for request in selected:
            by_parent = (request.parent or request.name) in names
            if not by_parent and not (request.parent and request.full_name in names):
                continue
            found.append(dict(entry))
            if rules.release >= 37:
                break
            # Before 1.37 a configuration is repeated for every request that it names.
    return found


def _concerns_all(names: list[str], selected: list[Request]) -> bool:
    return all(
        (request.parent or request.name) in names or (request.parent and request.full_name in names)
        for request in selected
    )


def _node_selector(rules: Rules, chosen: list[Chosen], where: Node, claim: Claim) -> Result | None:
    term: dict[str, list[Result]] = {}
    for each in chosen:
        device, owner = each.device, each.device.slice
        name = device.node_name if owner.per_device else owner.node_name
        selector = device.node_selector if owner.per_device else owner.node_selector
        if name or (device.binds and rules.variant != "stable" and _binds(rules)):
            field = {"key": "metadata.name", "operator": "In", "values": [where.name]}
            return {"nodeSelectorTerms": [{"matchFields": [field]}]}
        if selector is None or selector.count == 0:
            continue
        if selector.count > 1:
            raise AttemptError(
                f"create NodeSelector for claim {claim.name}: unsupported ResourceSlice.NodeSelector "
                f"with {selector.count} terms"
            )
        for kind in ("matchFields", "matchExpressions"):
            for requirement in selector.document["nodeSelectorTerms"][0].get(kind) or ():
                if not any(_same(requirement, other) for other in term.get(kind, ())):
                    term.setdefault(kind, []).append(dict(requirement))
    return {"nodeSelectorTerms": [term]} if term else None


def _binds(rules: Rules) -> bool:
    return rules.release >= 36 or rules.variant == "experimental"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if (one.get("key"), one.get("operator")) != (other.get("key"), other.get("operator")):
        return False
    return set(one.get("values") or ()) == set(other.get("values") or ())
