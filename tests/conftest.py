"""What all tests share."""

from __future__ import annotations

import hypothesis

# How long an example takes says nothing on a machine that is busy with other things: only results count here.
hypothesis.settings.register_profile(
    "patient", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")
