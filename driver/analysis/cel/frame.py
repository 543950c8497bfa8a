"""What one run of an expression works on: the device, the variables of folds, the cost so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .errors import CostError, EvaluationError

MISSING: Final = object()
"""In place of a value that is not there; null is a value."""


class Frame:
    """One run: the device, the variables of folds, and the cost so far."""

    __slots__ = ("cost", "device", "limit", "variables")

    def __init__(self, device: dict[str, object], limit: int) -> None:
        self.device = device
        self.limit = limit
        self.cost = 0
        self.variables: dict[str, object] = {}

    def spend(self, cost: int) -> None:
        """Add to the cost.

        Raises:
            CostError: the limit is exceeded.
        """
        self.cost += cost
        if self.cost > self.limit:
            raise CostError("operation cancelled: actual cost limit exceeded")


Step = Callable[[Frame], object]


class Failure:
    """An error as the value of an accumulator: a later element may still decide the result."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def guarded(step: Step, frame: Frame) -> object:
    """The value of a step, or its error as a value; only the cost limit is never held back."""
    try:
        return step(frame)
    except CostError:
        raise
    except EvaluationError as error:
        return Failure(error)
