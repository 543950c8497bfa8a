"""Writes the reference pages that come from tables in the code: ``python -m hack.docs``.

A test fails when a page is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from driver import settings
from driver.analysis.lint.docs import page as lint_page
from driver.cli import agent
from driver.health.docs import page as health_page
from driver.metrics import TABLE
from driver.settings import FIELDS, flag
from hack.claims_page import page as claims_page

FOLDER = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Made by `python -m hack.docs` from the table in {source}. -->"


def metrics_page() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        NOTE.format(source="driver/metrics.py"),
        "",
        "The agent serves these at `/metrics` (`--metrics-port`, 8080 by default) in the Prometheus text format,",
        "beside `process_*` of its own process.",
        "",
        "| metric | type | labels | what it says |",
        "|---|---|---|---|",
    ]
    for metric in TABLE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings of the agent",
        "",
        NOTE.format(source="driver/cli/agent.py"),
        "",
        "Each can be given as a flag, as an environment variable or as a field of the JSON file named by `--config`.",
        "A flag wins over a variable, a variable over the file.",
    ]
    for title, fields in agent.GROUPS.items():
        lines += [
            "",
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| flag | variable | field | meaning |",
            "|---|---|---|---|",
        ]
        for name, text in fields.items():
            variable = settings.ENVIRONMENT_PREFIX + name.upper()
            lines.append(f"| `{flag(name)}` | `{variable}` | `{FIELDS[name].encode_name}` | {text} |")
    return "\n".join(lines) + "\n"


PAGES = {
    "claims.md": claims_page,
    "health.md": health_page,
    "lint.md": lint_page,
    "metrics.md": metrics_page,
    "settings.md": settings_page,
}


def main() -> int:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
