"""Kubernetes' own structured allocator as an oracle for ``driver.analysis``: build it, ask it, compare with it."""
