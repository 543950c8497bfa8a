"""A report as text for people, as JSON, and as SARIF 2.1.0 for what shows findings beside code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from driver.analysis.documents import Document
from driver.analysis.lint.model import Rule, Severity
from driver.analysis.lint.run import Found, Report

JSON: TypeAlias = dict[str, Any]

SARIF_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_UNREADABLE: Final = "unreadable"


def text(report: Report, *, explain: bool = True, limit: int | None = None) -> Iterator[str]:
    """Lines; each finding with its rule, and with ``explain`` once per rule why it matters and what to do.

    Args:
        report: what came out.
        explain: whether reasons and remedies are wanted.
        limit: how many findings of one rule are printed; a fault of a driver is there once for each of its nodes.
    """
    for problem in report.problems:
        yield f"unreadable: {problem}"
    told: set[str] = set()
    counts: Counter[str] = Counter()
    for entry in report.found:
        finding, rule = entry.finding, entry.rule
        counts[rule.id] += 1
        if limit is not None and counts[rule.id] > limit:
            continue
        where = ": ".join(part for part in (_label(finding.document), finding.path) if part)
        yield f"{entry.severity.value} {rule.id} {rule.name}: {finding.message}"
        if where:
            yield f"    at {where}"
        if explain and rule.id not in told:
            told.add(rule.id)
            yield f"    why: {rule.why}"
            yield f"    remedy: {rule.remedy}"
            yield f"    see: {rule.link}"
    for name, count in counts.items():
        if limit is not None and count > limit:
            yield f"{name}: {count - limit} more like these"
    yield summary(report)


def summary(report: Report) -> str:
    """One line: how many documents, and how many findings of which severity."""
    counts = Counter(entry.severity for entry in report.found)
    parts = [_count(counts[severity], severity.value) for severity in reversed(list(Severity)) if counts[severity]]
    if report.problems:
        parts.append(f"{len(report.problems)} unreadable")
    verdict = ", ".join(parts) or "nothing found"
    return f"{_count(report.documents, 'document')}, {_count(len(report.rules), 'rule')}: {verdict}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _label(document: Document | None) -> str:
    return "" if document is None else document.label


def as_json(report: Report) -> JSON:
    """Findings, unreadable documents, and the rules that ran."""
    return {
        "documents": report.documents,
        "findings": [_finding(entry) for entry in report.found],
        "problems": [
            {"document": problem.document, "path": problem.path, "message": problem.message}
            for problem in report.problems
        ],
        "rules": [rule.id for rule in report.rules],
    }


def _finding(entry: Found) -> JSON:
    finding, rule = entry.finding, entry.rule
    document = finding.document
    return {
        "id": rule.id,
        "name": rule.name,
        "severity": entry.severity.value,
        "affects": list(rule.affects),
        "message": finding.message,
        "object": None if document is None else {"kind": document.kind, "name": document.name},
        "origin": None if document is None else document.origin,
        "line": None if document is None else document.line,
        "path": finding.path,
        "evidence": list(finding.evidence),
        "remedy": rule.remedy,
        "link": rule.link,
    }


def sarif(report: Report, *, version: str) -> JSON:
    """A SARIF log with one run.

    Args:
        report: what to write.
        version: of this program.
    """
    ids = [rule.id for rule in report.rules]
    results = [_result(entry, ids.index(entry.rule.id)) for entry in report.found]
    notifications = [
        {
            "level": "error",
            "descriptor": {"id": _UNREADABLE},
            "message": {"text": str(problem)},
            "locations": [_location(problem.origin or problem.document, problem.line, problem.document, problem.path)],
        }
        for problem in report.problems
    ]
    driver = {
        "name": "gpudra lint",
        "version": version,
        "rules": [_rule(rule) for rule in report.rules],
        "notifications": [{"id": _UNREADABLE, "shortDescription": {"text": "A document could not be read."}}],
    }
    invocation = {"executionSuccessful": not report.problems, "toolExecutionNotifications": notifications}
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> JSON:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.remedy, "markdown": f"{rule.remedy}\n\n[Source]({rule.link})"},
        "helpUri": rule.link,
        "defaultConfiguration": {"level": rule.severity.value},
        "properties": {"tags": list(rule.affects)},
    }


def _result(entry: Found, index: int) -> JSON:
    finding = entry.finding
    result: JSON = {
        "ruleId": entry.rule.id,
        "ruleIndex": index,
        "level": entry.severity.value,
        "message": {"text": finding.message},
    }
    document = finding.document
    if document is not None:
        label = f"{document.kind}/{document.name}"
        result["locations"] = [_location(document.origin, document.line, label, finding.path)]
        # Of a file only the document's line is known, so the object and the path tell one finding from another.
        result["partialFingerprints"] = {"object/v1": f"{label}#{finding.path}"}
    if finding.evidence:
        result["properties"] = {"evidence": list(finding.evidence)}
    return result


def _location(origin: str, line: int, label: str, path: str) -> JSON:
    logical = {"fullyQualifiedName": f"{label}#{path}" if path else label, "kind": "object"}
    uri = quote(PurePath(origin).as_posix(), safe="/:")
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": max(line, 1)}},
        "logicalLocations": [logical],
    }
