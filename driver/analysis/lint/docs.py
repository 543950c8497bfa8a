"""docs/lint.md, made from the table of rules."""

from __future__ import annotations

from driver.analysis.autoscaler import CLUSTER_AUTOSCALER, IGNORED, KARPENTER
from driver.analysis.lint.model import Severity
from driver.analysis.lint.table import RULES

_HEAD = """\
# Lint: what will mislead a scheduler or an autoscaler

<!-- Made by `python -m hack.docs` from the table in driver/analysis/lint/table.py. -->

Kubernetes decides by what drivers publish: the scheduler by the slices that are there, an autoscaler by those that it
imagines for a node it might add. Some things that the API server accepts make these decisions wrong, and nothing says
so: the pod stays pending, or nodes come that cannot help. `gpudra lint` looks for them.

```sh
gpudra lint deploy/ claims.yaml               # files and folders: YAML, JSON, lists
kubectl get resourceslices,deviceclasses,resourceclaims -A -o json | gpudra lint -
gpudra lint --cluster                         # what a cluster has now (get and list suffice)
gpudra lint --node                            # what the agent would publish on this machine
gpudra lint --mock-profile dgx-h100           # or on one that is not here
gpudra lint --cluster -o sarif > lint.sarif   # for what shows findings beside code
```

Exit code 0: nothing of the severity that `--fail-on` names (`warning` by default); 1: something of it; 2: documents
could not be read, or the question could not be asked. A document that cannot be read is named with the field that is
wrong, and the others are looked at all the same. `--select` and `--ignore` take ids (`A06`), beginnings of ids (`A1`)
and names (`node-local`); `--list` shows them. The text shows the first 20 findings of a rule (`--all` all of them) with
its reason and remedy (`--brief` without); the other forms hold everything.

Severities: **error**: pods stay pending or an autoscaler stops; **warning**: an autoscaler decides wrongly; **note**:
good to know, nothing is wrong with the document.

## Rules

"""

_KINDS = """\
## What a value is worth on another node

A06 and A09 run the selectors as the scheduler does. A09 needs to know which attributes are new on each node: for this
driver its table of attributes says so (docs/attributes.md), for others the standard names of Kubernetes and those in
common use, and else the name is judged (`uuid`, `serial`, `mac` and the like are taken for new on each node, `rack`,
`clique`, `fabric` for shared between nodes).
"""


def page() -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD + "| id | name | severity | what must hold | for |", "|---|---|---|---|---|"]
    lines += [
        f"| [{rule.id}](#{rule.id.lower()}-{rule.name}) | `{rule.name}` | {rule.severity.value} | {rule.title} | "
        f"{', '.join(rule.affects)} |"
        for rule in RULES
    ]
    for rule in RULES:
        lines += [
            "",
            f"### {rule.id} {rule.name}",
            "",
            f"**{rule.title}** ({_severity(rule.severity)})",
            "",
            f"Why: {rule.why}",
            "",
            f"Remedy: {rule.remedy}",
            "",
            f"Source: <{rule.link}>",
        ]
    lines += ["", _KINDS, "## What autoscalers do not look at", ""]
    for program in (CLUSTER_AUTOSCALER, KARPENTER):
        lines += [f"{program}:", "", "| field or object | where its code shows it |", "|---|---|"]
        lines += [f"| `{field}` | `{source}` |" for field, source in IGNORED[program]]
        lines.append("")
    return "\n".join(lines)


def _severity(severity: Severity) -> str:
    return severity.value
