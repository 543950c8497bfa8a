"""Steps whose code is loaded when the first claim needs it: most nodes share nothing, and an agent starts quickly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from driver.model import NodeInventory, Problem
from driver.prepare.cdi import ContainerEdits
from driver.prepare.config import DeviceConfig
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.steps import Lock, Step, StepDefaults, Work

_Step = TypeVar("_Step", bound=Step)


class LazyStep(StepDefaults, Generic[_Step]):
    """Stands for a step that has nothing to do with most claims.

    Args:
        make: loads and makes it; called once.
        concerns: whether a device, with the configuration that applies to it (None: not known any more), is the step's
            business.
        left: whether something may be left of claims that are gone.
        name, subject, do_points, undo_points, kinds, strategies: the step's own.
    """

    def __init__(
        self,
        make: Callable[[], _Step],
        concerns: Callable[[DeviceRecord, DeviceConfig | None], bool],
        *,
        name: str,
        subject: str,
        do_points: tuple[str, ...],
        undo_points: tuple[str, ...],
        kinds: frozenset[str] = frozenset(),
        strategies: frozenset[str] = frozenset(),
        left: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make = make
        self._concerns = concerns
        self._left = left
        self.name = name
        self.subject = subject
        self.do_points = do_points
        self.undo_points = undo_points
        self.kinds = kinds
        self.strategies = strategies
        self._lock = threading.Lock()
        self._made: _Step | None = None

    @property
    def made(self) -> _Step | None:
        """The step; None as long as nobody needed it."""
        return self._made

    def step(self) -> _Step:
        """The step, loaded now if it was not before."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def concerns(self, record: ClaimRecord, configs: Mapping[str, DeviceConfig] | None = None) -> bool:
        """Whether a claim is its business."""
        known = configs or {}
        return any(self._concerns(device, known.get(device.cdi_device)) for device in record.devices)

    def check(self, work: Work) -> None:
        """As the step."""
        if self.concerns(work.record, work.configs):
            self.step().check(work)

    def do(self, work: Work) -> None:
        """As the step."""
        if self.concerns(work.record):
            self.step().do(work)

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """As the step."""
        if self.concerns(record):
            self.step().undo(record, others)

    def is_done(self, work: Work) -> bool:
        """As the step."""
        return not self.concerns(work.record) or self.step().is_done(work)

    def is_undone(self, record: ClaimRecord) -> bool:
        """As the step."""
        return not self.concerns(record) or self.step().is_undone(record)

    def serves(self, record: ClaimRecord) -> bool:
        """As the step."""
        return not self.concerns(record) or self.step().serves(record)

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """As the step."""
        return self.step().sweep(records, inventory, lock) if self._left() else ()

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """As the step."""
        return self.step().edits(record, inventory) if self.concerns(record) else {}
