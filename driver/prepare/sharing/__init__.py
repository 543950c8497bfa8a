"""Ways to share a device: time slices, MPS, shares of one GPU by several claims; one module each.

Each is a step of a claim (``driver.prepare.steps.Step``) that keeps what it must know in the claim's record and undoes
from there. What claims on one GPU must agree on is judged in ``rules``.
"""

from __future__ import annotations

from driver.prepare.sharing.daemons import DaemonSettings, MpsDaemons
from driver.prepare.sharing.mps import MpsStep
from driver.prepare.sharing.passthrough import VfioStep
from driver.prepare.sharing.rules import SharingRulesStep
from driver.prepare.sharing.shares import ShareStep
from driver.prepare.sharing.timeslicing import TimeSliceStep

__all__ = ["DaemonSettings", "MpsDaemons", "MpsStep", "ShareStep", "SharingRulesStep", "TimeSliceStep", "VfioStep"]
