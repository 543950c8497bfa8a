"""The rules of resource.k8s.io/v1 as the API server applies them: what it would refuse, in its own words.

Source: pkg/apis/resource/validation of Kubernetes 1.37 and the declarative rules of k8s.io/api/resource/v1.
"""

from __future__ import annotations

from kubeletplugin.validation.claims import validate_claim, validate_claim_status
from kubeletplugin.validation.devicemetadata import validate_device_metadata
from kubeletplugin.validation.fields import FieldError, Kind
from kubeletplugin.validation.metadata import validate_metadata, validate_metadata_update
from kubeletplugin.validation.slices import validate_slice

__all__ = [
    "FieldError",
    "Kind",
    "validate_claim",
    "validate_claim_status",
    "validate_device_metadata",
    "validate_metadata",
    "validate_metadata_update",
    "validate_slice",
]
