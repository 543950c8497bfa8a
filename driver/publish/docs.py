"""Writes docs/attributes.md from the table of attributes: ``python -m driver.publish.docs > docs/attributes.md``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from driver.publish.attributes import ATTRIBUTES, Attribute, AttributeKind, AttributeType, Missing
from driver.publish.migattributes import FROM_GPU, MIG_ATTRIBUTES, MigAttribute

_HEAD = """\
# What a GPU is published with

This page is made from the tables in `driver/publish/attributes.py` and `driver/publish/migattributes.py` by
`python -m driver.publish.docs`; change the tables, not the page.

Every GPU that can be given out is a device of the node's pool, named by its PCI address (`gpu-0000-1b-00-0`). The
names without a domain belong to the driver's: in CEL they are `device.attributes["gpu.nvidia.com"].productName`, in
`matchAttribute` `gpu.nvidia.com/productName`.

All devices of a node carry the same keys, because a CEL expression that meets a missing key stops the scheduling of
its pod on every node. A value that one GPU cannot tell is therefore either replaced by one that says so, or its key
is left out on all devices of the node.
"""

_EXAMPLES = """\
## Selecting with them

A Hopper GPU with more than 70 GiB, of a driver that supports CUDA 12.4:

```yaml
selectors:
- cel:
    expression: |
      device.attributes["gpu.nvidia.com"].architecture == "Hopper" &&
      device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("70Gi")) &&
      device.attributes["gpu.nvidia.com"].cudaDriverVersion.compareTo(semver("12.4.0")) >= 0
```

Four GPUs that share a NUMA node and reach each other over NVLink:

```yaml
devices:
  requests:
  - name: gpus
    exactly: {deviceClassName: gpu.nvidia.com, count: 4}
  constraints:
  - {requests: [gpus], matchAttribute: resource.kubernetes.io/numaNode}
  - {requests: [gpus], matchAttribute: gpu.nvidia.com/nvlinkGroup}
```
"""

_MIG = f"""\
## MIG devices

A partition of a GPU (see [MIG](mig.md)) is named by its GPU, profile, profile id and first memory slice:
`gpu-0000-1b-00-0-mig-1g-10gb-19-0`. From its GPU it has {", ".join(f"`{row}`" for row in FROM_GPU)};
of its own:

"""

_KINDS = {
    AttributeKind.TYPE: "the same on every node of this kind",
    AttributeKind.SOFTWARE: "changes with the node's image or an administrator's setting",
    AttributeKind.EQUALITY: "tells which devices of a node belong together; only equality means something",
    AttributeKind.LAUNCH: "new on every node: selecting one binds a claim to one board",
    AttributeKind.FABRIC: "shared by several nodes, not known before a node has joined",
    AttributeKind.RUNTIME: "may change while the node runs",
}


def page() -> str:
    """The whole page, in Markdown."""
    attributes = [row for row in ATTRIBUTES if row.type is not AttributeType.CAPACITY]
    capacities = [row for row in ATTRIBUTES if row.type is AttributeType.CAPACITY]
    parts = [
        _HEAD,
        "## Attributes\n\n" + _table(attributes),
        "## Capacity\n\n" + _table(capacities),
        _MIG + _table(MIG_ATTRIBUTES),
        "## Kinds\n\nThe kind says what a value is worth on a node that does not exist yet, which is what an "
        "autoscaler imagines.\n\n" + "".join(f"* **{kind.value}**: {text}.\n" for kind, text in _KINDS.items()),
        _EXAMPLES,
    ]
    return "\n".join(parts)


def _table(rows: Sequence[Attribute | MigAttribute]) -> str:
    lines = ["| Name | Type | Kind | Meaning | Source | Where a GPU has no value |", "|---|---|---|---|---|---|"]
    for row in rows:
        kind = "quantity" if row.type is AttributeType.CAPACITY else row.type.value
        source = row.derivation.replace("|", "\\|")
        missing = _MIG_MISSING.get(row.id, "always has one") if isinstance(row, MigAttribute) else _missing(row)
        lines.append(f"| `{row.id}` | {kind} | {row.kind.value} | {row.doc} | {source} | {missing} |")
    return "\n".join(lines) + "\n"


_MIG_MISSING = {"uuid": "left out on all of the node, as soon as one is made on demand"}


def _missing(row: Attribute) -> str:
    if row.id in {"type", "uuid"}:
        return "always has one"
    return {
        Missing.EXPLICIT: "a value says so",
        Missing.DROP_KEY: "left out on all of the node",
        Missing.WITHHOLD: "the GPU is held back, unless none of the node has one",
    }[row.missing]


if __name__ == "__main__":
    sys.stdout.write(page())
