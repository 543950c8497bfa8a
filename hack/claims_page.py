"""Makes docs/claims.md: the claim state machine in words, its tables from the plan that the agent runs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from driver.journal import Kind
from driver.making import make_preparer
from driver.offering import Offering
from driver.prepare.records import Phase
from driver.prepare.sharing.lazy import LazyStep
from driver.prepare.steps import Plan, Step
from driver.reconcile.loop import GRACE_SECONDS, SETTLE_SECONDS
from driver.settings import Settings

NONE = "none"
AT_START, AGAIN, SWEPT = "none, at a start", "the same, made right", "none, by reconciliation"


class Transition(NamedTuple):
    """One way in which a claim's record changes. A test makes each of them happen and reads the journal."""

    before: str
    after: str
    when: str
    journal: tuple[tuple[Kind, str], ...]
    """The records that tell of it, in their order: kind and what is in it."""


TRANSITIONS = (
    Transition(
        NONE,
        Phase.PREPARING,
        "Prepare has checked everything and is about to change something",
        ((Kind.PREPARE, "step began"),),
    ),
    Transition(
        Phase.PREPARING,
        Phase.PREPARED,
        "every step is done and verified",
        ((Kind.PREPARE, "phase Prepared, with devices and seconds"),),
    ),
    Transition(
        Phase.PREPARING, NONE, "a step failed and all of them were undone", ((Kind.ERROR, "with the kubelet's answer"),)
    ),
    Transition(
        Phase.PREPARING,
        Phase.PREPARING,
        "a step failed and could not be undone: the kubelet's next call, or the next start, undoes it",
        ((Kind.ERROR, ""), (Kind.PREPARE, "phase Preparing")),
    ),
    Transition(
        Phase.PREPARED,
        Phase.UNPREPARING,
        "Unprepare is about to change something",
        ((Kind.UNPREPARE, "step began"),),
    ),
    Transition(
        Phase.UNPREPARING,
        NONE,
        "every step is undone and verified",
        ((Kind.UNPREPARE, "without a phase, before Prepared"),),
    ),
    Transition(
        Phase.UNPREPARING,
        Phase.UNPREPARING,
        "a step could not be undone: the kubelet's next call, or the next start, goes on",
        ((Kind.ERROR, ""), (Kind.UNPREPARE, "phase Unpreparing")),
    ),
    Transition(
        Phase.PREPARING,
        AT_START,
        "the agent died in Prepare: what was done is undone",
        ((Kind.RECOVER, "undone"),),
    ),
    Transition(
        Phase.UNPREPARING,
        AT_START,
        "the agent died in Unprepare: the rest is undone",
        ((Kind.RECOVER, "undone"), (Kind.UNPREPARE, "without a phase")),
    ),
    Transition(
        Phase.PREPARED,
        AGAIN,
        "behind a reading: its CDI file, or what a reboot or a reset took, is made again",
        ((Kind.RECOVER, "remade"),),
    ),
    Transition(
        Phase.PREPARED,
        SWEPT,
        "the API server has no such claim any more and the kubelet did not come",
        ((Kind.SWEEP, "with the reason"), (Kind.UNPREPARE, "without a phase")),
    ),
)
"""All of them."""

_HEAD = """\
# How a claim is prepared and undone

This page is made by `python -m hack.docs` from the plan of steps that the agent runs (`driver/prepare`); a test fails
when it is stale.

Every claim that the kubelet asks to prepare has a record in the checkpoint, and the record a phase. A phase is on the
disk before the work that it announces. So whatever happens, the record says what may have been done, and the way back
needs nothing else: neither the claim nor the API server.

| phase | what holds | after a crash |
|---|---|---|
| none | nothing of the claim is on this node | nothing to do; a CDI file of it that is left is removed |
| `Preparing` | steps may have been done | all steps are undone; the kubelet's next Prepare begins anew |
| `Prepared` | all steps are done; a repeated Prepare gets the same answer without a side effect \
| every step is verified, and done again where it is not in place |
| `Unpreparing` | steps may have been undone | the rest is undone |

## Transitions

Each is told by the [journal](journal.md), by the records named here.

| from | to | when | journal |
|---|---|---|---|
"""

_STEPS = """
## Steps

They are done in this order and undone in the opposite one. Before the first of them everything is checked; each is
verified behind `do` and behind `undo`, by a look at the thing itself where that can be looked at. Each may be run again
over its own result. A step that has nothing to do with a claim's devices does nothing.

| step | what it is about | before anything is changed | do | verified by | undo | verified by |
|---|---|---|---|---|---|---|
"""

_POINTS = """
Points at which a crash finds different things done (the crash tests end the process at each of them):

* Prepare: {prepare}
* Unprepare: {unprepare}
"""

_TAIL = """
## At a start

Before the plugin registers, unfinished work is undone as far as that needs no NVML. It registers then, so that the
kubelet can unprepare; no claim is answered from its record before this boot's hardware was compared with it. With the
first reading of the node every `Prepared` record is verified: after a reboot partitions are made again at their places,
sharing is set up and CDI files are written; what cannot be had again keeps its hardware withheld until the claim is
unprepared. The same is done behind every reading (each `rescanSeconds`), so that what somebody removes or changes under
a running agent comes back: the kubelet starts containers of a prepared claim anew without a call to the driver. Where
containers get metadata, its files and the CDI files that mount them are compared with the record too, already before
the registration; none of this needs the API server. What belongs to nobody is removed: CDI files of ours, partitions
that a record says we made, MPS folders. What is not ours is left alone.

## The checkpoint

`checkpoint.json` in the state folder has four lines of JSON. Each is the whole state; the one with the highest sequence
counts, and the next change is written over the oldest, in place. To read it:

    jq -s 'max_by(.data.sequence).data.claims' checkpoint.json

A change waits for the disk once, and only for its own blocks: a Prepare before anything is done, an Unprepare before
it is answered. (A new file that is renamed makes the disk commit its journal, and with it whatever else is being
written on the node.) Every line has a checksum over its data as it stands there, and its number a checksum of its
own. A line that a killed process left half written is told from a damaged one, because its beginning is written last.
Where the newest line is damaged, the whole file is kept as `checkpoint.json.damaged-N`, the line before serves, and
its claims are in doubt until the kubelet or their files bear them out; after a reboot they are not, for nothing of
the lost change is in use. A file that is lost altogether is made up for from the CDI folder: the file of each claim
holds its record, in the CDI device `<claim UID>_record`, which no container gets. Its devices are withheld, and nothing
beside them, and there is no doubt any more as soon as the hardware is found to be as the record says. Of a file that an
earlier version wrote only GPUs are known: they are withheld as a whole until the kubelet asks for the claim or ends it.

## When a claim is gone and the kubelet does not come

A claim can end without an Unprepare: it was deleted while the node was off, its finalizer was taken away by force, its
namespace is gone, the kubelet lost its state. Only the UID is identity: another claim of the same name means that the
recorded one is gone. A claim whose allocation no longer names a device of this node is gone from here, too.

* Each claim that has been prepared for {settle:g} s is watched at the API server, by name and namespace, while it is
  prepared. Its end is known within a second or so. There is one stream for each claim, because nothing selects the
  claims of a node: every claim of the cluster would be sent to every node. The API server hands an event only to the
  watchers of that name, so a stream costs it a connection and a bookmark a minute; `claimWatches` (16) bounds them. A
  stream lasts 20 to 40 minutes: on 5,000 nodes with eight claims each that is about 45 requests a second for all.
* Every `reconcileSeconds` (300) each claim is asked about, from the API server's memory (`resourceVersion=0`). This is
  what counts where a watch is broken, refused or beyond the bound. Streams that fail are tried one at a time, at
  growing distances.
* A claim that was found gone is left to the kubelet for {grace:g} s (never longer than `reconcileSeconds`). Then the
  API server is asked once more, and not from memory. If it still has no such claim, the claim is unprepared right
  behind that answer. A device that still computes, and for this claim alone, is kept until it rests: its container has
  not ended.
* No answer, an error, a proxy's page and a missing right are not "gone".

Told by: `claim.sweep` in the journal, an Event `ClaimSwept` (or `ClaimNotSwept`) on the claim, and
`gpudra_claims_swept_total`.
"""


def plan() -> Plan:
    """The plan of an agent that has everything turned on."""
    settings = Settings(node_name="node", mig="dynamic", passthrough_devices="*")
    offering = Offering(settings, lambda: None, lambda: None)
    return make_preparer(settings, "pool", None, lambda: None, lambda: None, offering).plan


def page() -> str:
    """docs/claims.md.

    Raises:
        ValueError: a step does not say what it does.
    """
    made = plan()
    lines = [_HEAD.rstrip("\n")]
    lines += [f"| {one.before} | {one.after} | {one.when} | {_told(one.journal)} |" for one in TRANSITIONS]
    lines += [_STEPS.rstrip("\n"), *(_row(step) for step in made.steps)]
    text = _POINTS.format(prepare=_names(made.prepare_points), unprepare=_names(made.unprepare_points))
    return "\n".join(lines) + "\n" + text + _TAIL.format(settle=SETTLE_SECONDS, grace=GRACE_SECONDS)


def _row(step: Step) -> str:
    real = step.step() if isinstance(step, LazyStep) else step
    cells = [f"`{step.name}`", step.subject]
    cells += [_said(real, name) for name in ("check", "do", "is_done", "undo", "is_undone")]
    return "| " + " | ".join(cells) + " |"


def _said(step: Step, method: str) -> str:
    """The first paragraph of what a step's method says of itself."""
    text = inspect.getdoc(getattr(type(step), method))
    if not text:
        raise ValueError(f"{type(step).__name__}.{method} has no docstring")
    first = text.split("\n\n", 1)[0].replace("\n", " ").rstrip(".")
    return (first[0].lower() + first[1:]).replace("``", "`").replace("|", "\\|")


def _told(records: Sequence[tuple[Kind, str]]) -> str:
    return ", then ".join(f"`{kind}`" + (f" ({words})" if words else "") for kind, words in records)


def _names(points: list[str]) -> str:
    return ", ".join(f"`{point}`" for point in points)
