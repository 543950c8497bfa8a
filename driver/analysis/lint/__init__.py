"""Lint: what in slices, classes, claims and pods will mislead the scheduler or an autoscaler, told beforehand."""

from __future__ import annotations

from driver.analysis.lint.model import Finding, Options, Rule, Severity, Validator
from driver.analysis.lint.output import as_json, sarif, text
from driver.analysis.lint.run import Report, UnknownRuleError, chosen, lint
from driver.analysis.lint.table import RULES

__all__ = [
    "RULES",
    "Finding",
    "Options",
    "Report",
    "Rule",
    "Severity",
    "UnknownRuleError",
    "Validator",
    "as_json",
    "chosen",
    "lint",
    "sarif",
    "text",
]
