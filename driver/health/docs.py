"""Makes docs/health.md: the rules in words, the tables from the code."""

from __future__ import annotations

from driver.health.findings import CAUSES, MAX_RETIRED_PAGES
from driver.health.verdicts import TAINTS
from driver.health.xids import DIFFERENCES, XIDS, Severity

_HEAD = """\
# The health of GPUs

This page is made from `driver/health` by `python -m hack.docs`; change `driver/health/docs.py` or the tables there.

The agent probes every GPU of NVIDIA's driver each `healthSeconds` (10), and takes every event that NVML reports by
itself (XIDs, poison, ECC storms). From both it judges each device: a whole GPU, and each partition of one. A fault of
the whole GPU is every partition's; one of a GPU instance is its partition's and the whole GPU's, and one of an
instance that nobody knows counts for all.

Events are heard without a break while NVML is open. It must be let go of for a moment when a GPU is plugged in or comes
back, when MIG mode is switched, and when a GPU is handed to a virtual machine; and it is away while the driver is. NVML
keeps no events for those who were not there. So the GPUs are probed soon after: what persists (a row or a page that
waits for a reset, a recovery action, a lost GPU) counts as ever, and the journal has a `gap` with cause `events`, which
says how long it was and what the GPUs' counters have risen by.

## Who is told

| where | what |
|---|---|
| the scheduler | taints on the device in its ResourceSlice; the device itself stays, so that nothing a claim holds \
loses its counters |
| the pod | `status.containerStatuses[].allocatedResourcesStatus` (Kubernetes 1.36 on; `DRAResourceHealth` v1 and \
v1alpha1), from real probes only: while a probe hangs the word grows old, and becomes Unknown after three periods, \
at least 30 s |
| the claim | condition `Healthy` in `status.devices`, and an Event `DeviceUnhealthy` or `DeviceRecovered` |
| metrics | `gpudra_devices_health`, `gpudra_device_unhealthy`, `gpudra_claim_device_unhealthy`, \
`gpudra_gpu_events_total` |
| the journal | `device.health`, `device.taint`, `xid`; see [journal.md](journal.md) |

Taints are of effect `NoSchedule`. With `evict` set to `fatal` or `device` they are `NoExecute` from that severity on,
which ends the pods that use the device; what a controller makes in their place runs on another device, or waits and
says so. A claim that is to keep its device all the same tolerates the taint in its request with `effect: NoExecute`
written out: Kubernetes (1.37) ends pods in spite of a toleration that names no effect.

## Severities

| severity | meaning | verdict | taint |
|---|---|---|---|
| `application` | a program's fault, or only a program is hit | healthy, noted | none |
| `degraded` | it works, but not as well as it should | healthy, noted | only with `degradedTaints` |
| `device` | no new work until it has proven itself | unhealthy | yes |
| `fatal` | does not come back without a reset or a reboot | unhealthy | yes |

The worst finding decides. A benign XID after a fatal one changes nothing.

## When it passes

* What each probe can see (lost, hung, hot, a link down) has passed when it stayed away for `healthRecoverySeconds`
  (120). One that comes and goes is one spell: one taint, not many. Links, PCIe, heat and power are believed at the
  second probe in a row.
* What the board itself remembers (rows that are remapped, pages that are retired) has passed when probes say so. One
  that says nothing of it changes nothing (NVML tells of no rows while there are MIG instances), unless the GPU or the
  driver went away and came back in between.
* An event of severity `device` has passed when the GPU was well at each probe for that long.
* An event of severity `fatal` has passed likewise, but only after something that ends it: the GPU or the driver went
  away and came back, or the driver says that no recovery action is needed (R570 on).
* A reboot ends all events. A restart of the agent ends nothing: findings are kept in `health.json` in its folder, and
  are in the first slice that the next agent writes.

What should decide nothing can be named: XIDs in `ignoreXids`, causes in `ignoreCauses`, GPUs in `ignoreDevices`.

A GPU that has left the bus stays in the slices with the taint `gpu.nvidia.com/gpu-lost` as long as a claim holds it,
and for ten minutes in any case.

To reset a GPU, nothing may hold it open, the agent included: delete the agent's pod on that node first, or use the
driver's own way of draining (`nvidia-smi drain`).
"""

_CAUSES = {
    "lost": ("fatal", "NVML says that the GPU is lost, or does not find it"),
    "hang": ("fatal", "an NVML call about it does not come back"),
    "unreadable": ("device", "NVML answers with another error, or without a UUID"),
    "xid": ("see below", "an XID"),
    "ecc": (
        "device, or degraded where the driver tells recovery actions",
        "uncorrectable ECC errors; storms of others",
    ),
    "row-remap-pending": ("degraded", "a memory row waits for a reset to be remapped"),
    "row-remap-failure": ("fatal", "a memory row could not be remapped"),
    "page-retirement-pending": (
        "degraded, or device behind an uncorrectable error",
        "a memory page waits for a reset to be retired (before Ampere); behind an uncorrectable error no program can \
begin",
    ),
    "pages-retired": (
        "device",
        f"{MAX_RETIRED_PAGES} memory pages or more are retired (before Ampere): the board is to be replaced",
    ),
    "repair-pending": ("degraded", "a repair of a memory channel or a TPC waits for a reset"),
    "recovery-action": ("fatal or device", "the driver asks for a reset, a reboot or a drain"),
    "poison": ("fatal or application", "poisoned data was used"),
    "unavailable": ("fatal", "NVML reports the GPU as unavailable"),
    "unmonitored": ("degraded", "its events cannot be watched although it supports them"),
    "nvlink-down": ("device", "an NVLink that was up in this boot is down"),
    "pcie-degraded": ("degraded", "the PCIe link is narrower or slower than before in this boot"),
    "thermal-slowdown": ("degraded", "the hardware holds the clocks down because of heat"),
    "power-brake": ("degraded", "the hardware holds the clocks down because of the power supply"),
}

_XIDS = """\
## XIDs

An XID that is not in this table counts as `device`. Names and actions follow NVIDIA's
[XID catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) for Ampere and newer GPUs, in our
words. The severity follows from its immediate action: RESTART_APP is `application`, IGNORE is `application` or, where
hardware wears out, `degraded`, RESET_GPU, RESTART_BM and RESTART_VM are `fatal`, all others are `device`: NVML passes
the number on, but not the details that the catalogue's workflows ask for. A driver that knows better says so by its
recovery action (R570 on), which the probe reads and which ends a `fatal` XID, too. A test compares the table with the
catalogue row by row.
"""

_DIFFERENCES = """\
## Where this differs from NVIDIA's catalogue on purpose

`ignoreXids` makes any of them decide nothing.
"""


def page() -> str:
    """docs/health.md.

    Raises:
        KeyError: a cause is not described.
    """
    lines = [_HEAD, "## Taints", "", "| key | when |", "|---|---|"]
    lines += [f"| `{key}` | {text} |" for key, text in TAINTS.items()]
    lines += ["| `gpu.nvidia.com/driver-unavailable` | NVIDIA's driver does not answer; on every device |", ""]
    lines += ["## Causes", "", "| cause | severity | what it is |", "|---|---|---|"]
    lines += [f"| `{cause}` | {_CAUSES[cause][0]} | {_CAUSES[cause][1]} |" for cause in CAUSES]
    lines += ["", _XIDS]
    lines += ["| XID | severity | what it says | what to do |", "|---|---|---|---|"]
    lines += [
        f"| {code} | {Severity(xid.severity).name.lower()} | {xid.name} | {xid.action} |" for code, xid in XIDS.items()
    ]
    lines += ["", _DIFFERENCES, "| XIDs | why |", "|---|---|"]
    lines += [f"| {', '.join(map(str, one.codes))} | {one.why} |" for one in DIFFERENCES]
    return "\n".join(lines) + "\n"
