"""What can go wrong with a CEL expression: before it runs, while it runs, and what this evaluator does not know."""

from __future__ import annotations


class CelError(Exception):
    """The base of all three."""


class CompileError(CelError):
    """The expression is not valid in the DRA environment.

    ``position`` is the offset of the first character concerned, counted in characters.
    """

    def __init__(self, message: str, expression: str = "", position: int = 0) -> None:
        self.message, self.expression, self.position = message, expression, position
        line = expression.count("\n", 0, position) + 1
        column = position - (expression.rfind("\n", 0, position) + 1) + 1
        super().__init__(f"{line}:{column}: {message}" if expression else message)


class UnsupportedError(CompileError):
    """Valid upstream, but not known here: the answer would be a guess, so there is none."""


class EvaluationError(CelError):
    """The expression failed on a device, for example with ``no such key``; upstream aborts scheduling then."""


class CostError(EvaluationError):
    """The expression did more work than Kubernetes allows one selector; nothing absorbs this error."""
