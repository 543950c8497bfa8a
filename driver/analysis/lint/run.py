"""Runs rules over documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driver.analysis.document_text import Problem
from driver.analysis.documents import Collection
from driver.analysis.lint.model import Context, Finding, Options, Rule, Severity
from driver.analysis.lint.table import RULES


class UnknownRuleError(ValueError):
    """There is no such rule; the message lists those that there are."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding and the rule that made it."""

    rule: Rule
    finding: Finding

    @property
    def severity(self) -> Severity:
        """The finding's own, else the rule's."""
        return self.finding.severity or self.rule.severity


@dataclass(frozen=True, slots=True)
class Report:
    """What came out."""

    found: tuple[Found, ...]
    """In the order of the rules' ids, within a rule in that of the documents."""
    problems: tuple[Problem, ...]
    """Documents that could not be read, and so were not looked at."""
    rules: tuple[Rule, ...]
    """Those that ran."""
    documents: int

    def failed(self, threshold: Severity | None) -> bool:
        """Whether there is a finding of this severity or a worse one; None: findings do not matter."""
        return threshold is not None and any(entry.severity.rank >= threshold.rank for entry in self.found)


def chosen(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules whose id or name was selected (all, where none was) and not ignored; ``A1`` stands for A10 to A19.

    Raises:
        UnknownRuleError: something was named that is no rule.
    """
    for name in (*select, *ignore):
        if not any(_named(rule, name) for rule in RULES):
            known = ", ".join(rule.id for rule in RULES)
            raise UnknownRuleError(f"there is no rule {name}; there are {known}, each with a name (--list)")
    return tuple(
        rule
        for rule in RULES
        if (not select or any(_named(rule, name) for name in select)) and not any(_named(rule, name) for name in ignore)
    )


def _named(rule: Rule, name: str) -> bool:
    return rule.name == name.lower() or rule.id.startswith(name.upper())


def lint(collection: Collection, options: Options | None = None, *, rules: Iterable[Rule] = RULES) -> Report:
    """Look at documents with rules.

    Args:
        collection: what was read; its problems become part of the report.
        options: what the rules are told beside the documents.
        rules: which of them run.
    """
    context = Context(collection, options or Options())
    ran = tuple(rules)
    found: list[Found] = []
    for number, rule in enumerate(ran):
        context.options.progress(f"rule {rule.id}", number)
        found += [Found(rule, finding) for finding in rule.check(context)]
    return Report(tuple(found), collection.problems, ran, len(collection.documents))
