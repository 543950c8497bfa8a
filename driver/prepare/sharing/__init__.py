"""Ways to share a device: time slices, MPS, shares of one GPU by several claims, passthrough; one module each.

Each is a step of a claim (``driver.prepare.steps.Step``) that keeps what it must know in the claim's record and undoes
from there. What claims on one GPU must agree on is judged in ``rules``. Nothing is imported here: a node that shares
nothing loads nothing of it (``lazy``).
"""

from __future__ import annotations

from typing import Final

DEBTS_FILE: Final = "debts.json"
"""In the state folder; it is there as long as a GPU is to be set back (``debts``)."""
