"""Rules about classes and claims: what they ask for that a device does not have, or that no new node can have."""

from __future__ import annotations

from collections.abc import Iterator

from driver.analysis import quantity
from driver.analysis.autoscaler import refusals
from driver.analysis.documents import Document
from driver.analysis.lint.expressions import Evaluator, Selector, fault, reads, selectors
from driver.analysis.lint.model import JSON, Context, Finding, Severity, counted, device_paths, requests, shown
from driver.analysis.shape.kinds import FABRIC, LAUNCH

_PROGRESS_EVERY = 500


def keys_are_there(context: Context) -> Iterator[Finding]:
    """A06."""
    evaluator = Evaluator(context.options.release)
    for document, chain in _chains(context):
        failures: dict[tuple[int, str], list[str]] = {}
        expressions = tuple(selector.expression for _, selector in chain)
        for number, view in enumerate(context.pools.values()):
            if number % _PROGRESS_EVERY == 0:
                context.options.progress(f"selectors of {document.kind} {document.name}", number)
            for _, _, device in device_paths(view):
                failure = evaluator.failure(expressions, view.driver, device)
                if failure is not None:
                    failures.setdefault(failure, []).append(f"{view.driver}/{view.name}/{device['name']}")
        for (index, message), devices in failures.items():
            holder, selector = chain[index]
            yield Finding(
                f"the selector fails on {counted(len(devices), 'device')} ({message}), for example {shown(devices, 2)}",
                holder,
                selector.path,
                tuple(devices[:10]),
            )


def _chains(context: Context) -> Iterator[tuple[Document, list[tuple[Document, Selector]]]]:
    """(document, selectors in the order in which the scheduler runs them): classes alone, then each request."""
    of_class = {
        name: [(document, selector) for selector in selectors(document.body.get("spec") or {}, "spec")]
        for name, document in context.classes.items()
    }
    for name, chain in of_class.items():
        if chain:
            yield context.classes[name], chain
    for document, path, spec in context.claim_specs:
        for below, request in requests(spec):
            own = [(document, selector) for selector in selectors(request, f"{path}.{below}")]
            if own:  # without selectors of its own it says what its class says
                yield document, [*of_class.get(request["deviceClassName"], ()), *own]


def compiles(context: Context) -> Iterator[Finding]:
    """A29."""
    for document, selector in _all_selectors(context):
        message = fault(selector.expression, context.options.release)
        if message is not None:
            yield Finding(f"the selector does not compile: {message}", document, selector.path)


def _all_selectors(context: Context) -> Iterator[tuple[Document, Selector]]:
    for document in context.collection.classes:
        for selector in selectors(document.body.get("spec") or {}, "spec"):
            yield document, selector
    for document, path, spec in context.claim_specs:
        for below, request in requests(spec):
            for selector in selectors(request, f"{path}.{below}"):
                yield document, selector


_ONLY_HERE = {
    LAUNCH: "is new on every node, so no node that an autoscaler adds can match",
    FABRIC: "is shared by several nodes and unknown before a node has joined; an autoscaler takes the sample's value",
}


def no_launch_attributes(context: Context) -> Iterator[Finding]:
    """A09."""
    for document, selector in _all_selectors(context):
        for name in sorted(reads(selector.expression)):
            domain, _, identifier = name.partition("/")
            reason = _ONLY_HERE.get(context.options.kinds.kind(name, domain))
            if reason is not None and identifier:
                yield Finding(f"the selector reads {name}, which {reason}", document, selector.path)
    for document, path, spec in context.claim_specs:
        for index, constraint in enumerate((spec.get("devices") or {}).get("constraints") or ()):
            for field in ("matchAttribute", "distinctAttribute"):
                name = constraint.get(field)
                if not name:
                    continue
                where = f"{path}.devices.constraints[{index}].{field}"
                kind = context.options.kinds.kind(name, "")
                if kind == FABRIC:
                    text = f"the constraint compares {name}, which {_ONLY_HERE[FABRIC]}"
                    yield Finding(text, document, where)
                elif kind == LAUNCH and field == "matchAttribute" and context.shared.get(name) is False:
                    text = f"the constraint compares {name}, which no two devices of a node share: it is never met"
                    yield Finding(text, document, where)


def classes_are_there(context: Context) -> Iterator[Finding]:
    """A30: only where classes were given at all."""
    if not context.classes or "DeviceClass" in context.collection.absent:
        return
    broken = {problem.document.split(" (")[0] for problem in context.collection.problems}
    for document, path, spec in context.claim_specs:
        for below, request in requests(spec):
            name = request["deviceClassName"]
            if name not in context.classes and f"DeviceClass {name}" not in broken:
                yield Finding(f"there is no DeviceClass {name}", document, f"{path}.{below}.deviceClassName")


def all_of_a_whole(context: Context) -> Iterator[Finding]:
    """A23."""
    unfit = [f"{view.driver}/{view.name}" for view in context.sound_pools.values() if not view.complete]
    if not unfit:
        return
    for document, path, spec in context.claim_specs:
        for below, request in requests(spec):
            if request.get("allocationMode") == "All":
                text = f"it asks for all devices while not all pools are complete ({shown(unfit)})"
                yield Finding(text, document, f"{path}.{below}.allocationMode", tuple(unfit[:10]))


def understood_by_autoscalers(context: Context) -> Iterator[Finding]:
    """A21."""
    for document, path, spec in context.claim_specs:
        for where, text in refusals(spec):
            yield Finding(text, document, path + where.removeprefix("spec"))
    if context.collection.claim_templates:
        for document in context.collection.of("ProvisioningRequest"):
            text = (
                "Cluster Autoscaler makes pods of its own for it, without the claims that a template would give them: "
                "pods with claim templates are never provisioned for"
            )
            yield Finding(text, document, "spec", severity=Severity.WARNING)


def allocated_devices_exist(context: Context) -> Iterator[Finding]:
    """A13."""
    for key, devices in context.allocated.items():
        view = context.sound_pools.get(key)
        if view is None or not view.complete:
            continue
        published = {device["name"] for device in view.devices}
        for name, claims in devices.items():
            if name not in published:
                text = f"device {name} of pool {key[1]} is allocated to it and no longer published"
                yield Finding(text, claims[0], "status.allocation.devices.results")
        yield from _overdrawn(context, key, devices)


def _overdrawn(context: Context, key: tuple[str, str], devices: dict[str, list[Document]]) -> Iterator[Finding]:
    view = context.sound_pools[key]
    drawn: dict[tuple[str, str], int] = {}
    for device in view.devices:
        for use in device.get("consumesCounters") or () if device["name"] in devices else ():
            for name, counter in use["counters"].items():
                entry = use["counterSet"], name
                drawn[entry] = drawn.get(entry, 0) + quantity.read(counter["value"]).nanos
    for body in view.slices:
        for index, counter_set in enumerate(body["spec"].get("sharedCounters") or ()):
            over = [
                name
                for name, counter in counter_set["counters"].items()
                if drawn.get((counter_set["name"], name), 0) > quantity.read(counter["value"]).nanos
            ]
            if over:
                holders = sorted({claim.name for claims in devices.values() for claim in claims})
                text = (
                    f"more is allocated than counter set {counter_set['name']} has of {shown(over)}: {shown(holders)}"
                )
                yield Finding(text, context.document(body), f"spec.sharedCounters[{index}]", tuple(holders[:10]))


def claim_of(context: Context, pod: JSON, entry: JSON) -> tuple[Document | None, Document | None]:
    """(claim, template) behind an entry of a pod's ``spec.resourceClaims``, where they were given."""
    namespace = pod["metadata"].get("namespace") or "default"
    template = context_template(context, namespace, entry.get("resourceClaimTemplateName"))
    name = entry.get("resourceClaimName")
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    given = next((status.get("resourceClaimName") for status in statuses if status["name"] == entry["name"]), None)
    return context.claims_by_name.get(f"{namespace}/{name or given}"), template


def context_template(context: Context, namespace: str, name: str | None) -> Document | None:
    """The claim template of this name; one without a namespace counts as of any."""
    wanted = {f"{namespace}/{name}", name}
    return next((document for document in context.collection.claim_templates if document.name in wanted), None)
