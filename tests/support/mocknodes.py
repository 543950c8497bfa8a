"""What the fixtures of the mock's tests are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from native.mock import MockNode

Node = Callable[[str], MockNode]
"""Profile name -> a node that nobody changes."""
Ask = Callable[..., Any]
"""(node, code, **environment) -> what the code left in ``answer``, run by a Python of its own."""
