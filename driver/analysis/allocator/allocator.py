"""The allocator: documents in, an outcome for each node out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from . import claims as claim_documents
from . import taints
from .capacity import CapacityError, fits
from .claims import RESULTS_MAX, Allocated, Claim, Request, allocated
from .constraints import Tracker, tracker
from .features import Rules
from .fields import Document
from .funnel import Counting, Funnel
from .model import Device, Slice
from .nodes import Node, SelectorError, node
from .pools import Inventory, Pool
from .results import Result, allocation, new_share
from .search import AttemptError, Search, Wish, lookup_in
from .selection import Selection, SelectionError, UnknownError


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool as the node saw it: ``state`` is complete, incomplete or invalid; ``why`` says what is invalid."""

    driver: str
    pool: str
    state: str
    devices: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scheduler's allocator would answer for one node.

    ``allocations`` has one document for each claim, in their order, or is None. Where it is None, ``kind`` is empty for
    "no solution", ``node`` for an error that concerns this node alone, ``fatal`` for one that ends the whole attempt of
    the scheduler, ``timeout`` where the search was given up, ``panic`` for an input on which that release crashes, and
    ``unknown`` where this port cannot tell.
    """

    node: str
    allocations: tuple[Result, ...] | None
    kind: str = ""
    error: str = ""
    calls: int = 0
    """How often upstream's ``allocateOne`` would have been entered."""
    pools: tuple[PoolState, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the claims can be allocated on the node."""
        return self.allocations is not None


@dataclass(slots=True)
class _Run:
    node: Node
    claims: list[Claim]
    pools: list[Pool] = field(default_factory=list)
    search: Search | None = None


@dataclass(slots=True)
class _Checked:
    wishes: list[list[list[Wish]]] = field(default_factory=list)
    trackers: list[list[Tracker]] = field(default_factory=list)


class Allocator:
    """A port of k8s.io/dynamic-resource-allocation/structured for one cluster state.

    Args:
        rules: release, variant and feature gates (``features.rules``).
        classes, slices: documents of resource.k8s.io/v1.
        claims: all claims of the cluster; what they hold is not free.
        taint_rules: DeviceTaintRules, applied as the scheduler's tracker applies them.
        used: what is allocated, instead of ``claims``.
        share: makes the ids of shares.
        limit: steps after which an attempt ends without an answer; the scheduler has a time limit of ten seconds.

    Raises:
        DocumentError: a document cannot be read; the error names document and field.
    """

    def __init__(
        self,
        rules: Rules,
        classes: Iterable[Document],
        slices: Iterable[Document],
        claims: Iterable[Document] = (),
        taint_rules: Iterable[Document] = (),
        *,
        used: Allocated | None = None,
        share: Callable[[], str] = new_share,
        limit: int = 1_000_000,
    ) -> None:
        self.rules = rules
        self._unsupported: list[str] = []
        self._classes = {
            each.name: each for each in (claim_documents.device_class(value, self._unsupported) for value in classes)
        }
        compiled = [Slice(value, position, self._unsupported) for position, value in enumerate(slices)]
        taints.apply(taint_rules, compiled, rules, self._unsupported)
        self._inventory = Inventory(compiled, rules)
        self.held = allocated(claims, consumable=rules.consumable) if used is None else used
        self._share = share
        self._limit = limit

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Fields of classes, slices and rules read so far that this port does not know."""
        return tuple(dict.fromkeys(self._unsupported))

    def holding(self, claims: Iterable[Document]) -> Allocator:
        """The same cluster with these claims instead: what one has been told of slices and selectors the other knows.

        Raises:
            DocumentError: a document cannot be read.
        """
        other = copy.copy(self)
        other.held = allocated(claims, consumable=self.rules.consumable)
        return other

    def allocate(self, where: Document, claims: Sequence[Document]) -> Outcome:
        """Try to allocate the claims on a node.

        Raises:
            DocumentError: a document cannot be read.
        """
        return next(self.allocate_each([where], claims))

    def allocate_each(self, nodes: Iterable[Document], claims: Sequence[Document]) -> Iterator[Outcome]:
        """Try to allocate the same claims on each node, as if the others were not there.

        Raises:
            DocumentError: a document cannot be read.
        """
        unknown: list[str] = []
        wanted = [claim_documents.claim(value, unknown) for value in claims]
        for where in nodes:
            yield self._attempt(node(where), wanted, unknown)

    def funnels(self, where: Document, claims: Sequence[Document]) -> tuple[Funnel, ...]:
        """For each request and alternative of the claims, how many devices of the node pass each condition.

        Raises:
            DocumentError: a document cannot be read.
            SelectorError: a slice or device has a node selector that is not valid.
        """
        wanted = [claim_documents.claim(value, []) for value in claims]
        on = node(where)
        selection = Selection(self.rules, wanted, self._classes)
        counting = Counting(self.rules, on, self._inventory.pools(on), self.held, selection)
        return tuple(
            counting.count(claim, request, self._classes[request.class_name].selectors)
            for claim in wanted
            for _, _, requests in claim.requests
            for request in requests
            if request.class_name in self._classes
        )

    def _attempt(self, where: Node, wanted: list[Claim], unknown: list[str]) -> Outcome:
        run = _Run(where, wanted)
        found, kind, text = None, "", ""
        try:
            found = self._run(run)
            if found is None and self.rules.pools_span_slices and any(pool.invalid for pool in run.pools):
                kind, text = "node", "invalid resource pools were encountered"
        except AttemptError as error:
            kind, text = error.kind, str(error)
        except SelectionError as error:
            kind, text = "fatal", str(error)
        except UnknownError as error:
            kind, text = "unknown", str(error)
        calls = run.search.calls if run.search else 0
        fields = tuple(dict.fromkeys([*self._unsupported, *unknown]))
        return Outcome(where.name, found, kind, text, calls, tuple(map(_state, run.pools)), fields)

    def _run(self, run: _Run) -> tuple[Result, ...] | None:
        try:
            run.pools = self._inventory.pools(run.node)
        except SelectorError as error:
            raise AttemptError(f"gather pool information: {error}") from error
        selection = Selection(self.rules, run.claims, self._classes)
        checked = self._check(run.node, run.claims, run.pools, selection)
        selection.forget()
        run.search = Search(
            self.rules,
            run.node,
            run.pools,
            run.claims,
            checked.wishes,
            checked.trackers,
            self.held,
            selection,
            self._limit,
        )
        return self._results(run.search, run.claims, run.node) if run.search.run() else None

    def _results(self, search: Search, wanted: list[Claim], where: Node) -> tuple[Result, ...]:
        found = []
        for number, (claim, chosen) in enumerate(zip(wanted, search.results, strict=True)):
            selected = [
                options[search.selected.get((number, index), 0)] for index, (_, _, options) in enumerate(claim.requests)
            ]
            found.append(allocation(self.rules, claim, chosen, selected, self._classes, where, self._share))
        return tuple(found)

    def _check(self, where: Node, wanted: list[Claim], pools: list[Pool], selection: Selection) -> _Checked:
        checked = _Checked()
        for number, claim in enumerate(wanted):
            total = 0
            wishes: list[list[Wish]] = []
            for index, (name, alternatives, requests) in enumerate(claim.requests):
                self._gates(claim, name, alternatives, requests)
                found: list[Wish] = []
                for position, request in enumerate(requests):
                    # 1.34 looks an alternative up under the number of the one before.
                    slot = max(0, position - 1) if self.rules.release == 34 else position
                    found.append(self._wish(where, claim, request, (number, index, slot), pools, selection))
                least = min(each.count for each in found)
                if self.rules.release >= 37 and least > RESULTS_MAX - total:
                    raise AttemptError(
                        f"claim {claim.key}, request {name}: adding {least} devices exceeds the claim limit of "
                        f"{RESULTS_MAX}, with {total} already accounted for"
                    )
                total += least
                wishes.append(found)
            if total > RESULTS_MAX:
                raise AttemptError(
                    f"claim {claim.key}: number of requested devices {total} exceeds the claim limit of {RESULTS_MAX}"
                )
            checked.wishes.append(wishes)
            checked.trackers.append(self._trackers(claim, selection))
        return checked

    def _gates(self, claim: Claim, name: str, alternatives: bool, requests: list[Request]) -> None:
        features = self.rules.features
        if alternatives and not features.prioritized_list:
            raise AttemptError(
                f"claim {claim.key}, request {name}: has subrequests, but the DRAPrioritizedList feature is disabled"
            )
        if self.rules.selectors_see_sharing and not features.consumable_capacity:
            kind = "subrequest" if alternatives else "request"
            for request in requests:
                if request.has_capacity:
                    raise AttemptError(
                        f"claim {claim.key}, {kind} {request.name}: has capacity requests, but the "
                        "DRAConsumableCapacity feature is disabled"
                    )

    def _trackers(self, claim: Claim, selection: Selection) -> list[Tracker]:
        found = []
        for number, constraint in enumerate(claim.constraints):
            made = tracker(constraint, self.rules, lookup_in(selection))
            if made is None:
                raise AttemptError(
                    f"claim {claim.key}, constraint #{number}: empty constraint (unsupported constraint type?)"
                )
            found.append(made)
        return found

    def _wish(
        self,
        where: Node,
        claim: Claim,
        request: Request,
        key: tuple[int, int, int],
        pools: list[Pool],
        selection: Selection,
    ) -> Wish:
        label = f"claim {claim.key}, request {request.name}"
        if self.rules.release < 37:
            request.derived = {}
        if request.derived and not (self.rules.variant == "experimental" and self.rules.features.derived_attributes):
            raise AttemptError(f"{label}: cannot handle request with derived attributes, the feature is disabled")
        for number, expression in enumerate(request.selectors):
            if expression is None:
                raise AttemptError(f"{label}, selector #{number}: CEL expression empty (unsupported selector type?)")
        if request.has_admin and not self.rules.features.admin_access:
            raise AttemptError(f"{label}: admin access is requested, but the feature is disabled")
        if not request.class_name:
            raise AttemptError(f"{label}: missing device class name (unsupported request type?)")
        if request.class_name not in self._classes:
            raise AttemptError(
                f"{label}: could not retrieve device class {request.class_name}: "
                f'deviceclass.resource.k8s.io "{request.class_name}" not found'
            )
        if request.mode == "ExactCount":
            return Wish(request, request.count)
        if request.mode != "All":
            raise AttemptError(f"{label}: unsupported count mode {request.mode}")
        everything = self._everything(where, label, request, key, pools, selection)
        return Wish(request, len(everything), everything)

    def _everything(
        self,
        where: Node,
        label: str,
        request: Request,
        key: tuple[int, int, int],
        pools: list[Pool],
        selection: Selection,
    ) -> list[tuple[Pool, Device]]:
        found = []
        for pool in pools:
            if pool.incomplete:
                raise AttemptError(
                    f"{label}: asks for all devices, but resource pool {pool.label} is currently being updated"
                )
            if pool.invalid:
                raise AttemptError(
                    f"{label}: asks for all devices, but resource pool {pool.label} is currently invalid"
                )
            for each in pool.slices:
                for device in each.devices:
                    try:
                        selectable = selection.selectable(key, request, device, where)
                    except SelectorError as error:
                        raise AttemptError(f"failed to parse node selector: {error}") from error
                    if selectable and self._holds(label, request, device):
                        found.append((pool, device))
        return found

    def _holds(self, label: str, request: Request, device: Device) -> bool:
        """Whether the device has the capacity, as far as ``All`` looks at it."""
        if not self.rules.consumable:
            return True
        used = {} if self.rules.all_means_static else self.held.capacity.get(device.id, {})
        try:
            return fits(request.capacities, device.capacity, used, {}, self.rules)
        except CapacityError as error:
            raise AttemptError(f"{label}: checking capacity for device {device.name}: {error}") from error


def _state(pool: Pool) -> PoolState:
    state = "incomplete" if pool.incomplete else "invalid" if pool.invalid else "complete"
    count = sum(len(each.devices) for each in pool.slices)
    return PoolState(pool.id[0], pool.id[1], state, count, pool.invalid)
