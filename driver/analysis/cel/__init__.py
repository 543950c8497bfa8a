"""The Common Expression Language as Kubernetes' DRA uses it: parsed, typed, and run under upstream's cost limit."""

from .errors import CelError, CompileError, CostError, EvaluationError, UnsupportedError
from .program import Program, attribute_value, compile_derived, compile_selector, device_value

__all__ = [
    "CelError",
    "CompileError",
    "CostError",
    "EvaluationError",
    "Program",
    "UnsupportedError",
    "attribute_value",
    "compile_derived",
    "compile_selector",
    "device_value",
]
