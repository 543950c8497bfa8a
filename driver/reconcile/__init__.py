"""Claims that no longer exist are found out and unprepared, where the kubelet did not come back for them."""

from __future__ import annotations

from driver.reconcile.loop import Reconciler, Swept
from driver.reconcile.verdict import UnknownError, why_gone

__all__ = ["Reconciler", "Swept", "UnknownError", "why_gone"]
