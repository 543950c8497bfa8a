"""Paths of the API, and calls whose error is what a test looks at."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kubeletplugin.client import ApiError

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SLICE_DETAILS = {"group": "resource.k8s.io", "kind": "resourceslices"}


def error_of(call: Any, *args: Any, **kwargs: Any) -> ApiError:
    """The error that the call ends with."""
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    return caught.value


def path(document: dict[str, Any]) -> str:
    """Where a slice is."""
    return f"{SLICES}/{document['metadata']['name']}"
