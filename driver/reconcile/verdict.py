"""Whether a claim is still a claim of this node, from what the API server says of it.

Only the UID is identity: another claim of the same name is another claim. What cannot be found out (no answer, no
right, a claim without a name, a proxy's page) is not gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from driver.prepare import ClaimRef
from kubeletplugin.api import ClaimRef as ApiRef
from kubeletplugin.api import PrepareError
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.claims import check_ref, claim_path
from kubeletplugin.credentials import CredentialsError

TIMEOUT = 10.0
CACHED: Mapping[str, str] = {"resourceVersion": "0"}
"""Asks for an answer from the API server's memory: it may be a moment old, and costs etcd nothing."""


class UnknownError(Exception):
    """It cannot be found out whether a claim exists; the message says why."""


class Reader(Protocol):
    """What is needed of the API server for one answer; ``KubeClient`` has it."""

    def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """The object at the path."""


def why_gone(reader: Reader, ref: ClaimRef, driver_name: str, pool_name: str, *, cached: bool = False) -> str | None:
    """Why a claim is no claim of this node any more: ``deleted``, ``replaced`` or ``deallocated``; None: it is one.

    Args:
        cached: an answer from the server's memory will do.

    Raises:
        UnknownError: that cannot be found out now.
    """
    try:
        path = path_of(ref)
        document = reader.get(path, query=CACHED if cached else None, timeout=TIMEOUT)
    except ApiError as error:
        # A proxy, or a server without this API, says 404 as well.
        about = error.details.get("kind"), error.details.get("name")
        if error.status == 404 and error.reason == "NotFound" and about == ("resourceclaims", ref.name):
            return "deleted"
        raise UnknownError(str(error)) from error
    except (ApiUnreachableError, CredentialsError) as error:
        raise UnknownError(str(error)) from error
    return judged(document, ref, driver_name, pool_name)


def path_of(ref: ClaimRef) -> str:
    """The claim's path.

    Raises:
        UnknownError: none can be made: a record that was made up from a CDI file may have no name.
    """
    api_ref = ApiRef(ref.namespace, ref.name, ref.uid)
    try:
        check_ref(api_ref)
    except PrepareError as error:
        raise UnknownError(str(error)) from error
    return claim_path(api_ref)


def judged(document: Mapping[str, Any] | None, ref: ClaimRef, driver_name: str, pool_name: str) -> str | None:
    """As ``why_gone``, of what the API server has under the claim's name; None for nothing.

    Raises:
        UnknownError: it is no claim.
    """
    if document is None:
        return "deleted"
    uid = _at(document, "metadata", "uid")
    if document.get("kind", "ResourceClaim") != "ResourceClaim" or not isinstance(uid, str):
        raise UnknownError("the answer is no ResourceClaim")
    if uid != ref.uid:
        return "replaced"
    results = _at(document, "status", "allocation", "devices", "results")
    here = [
        one
        for one in (results if isinstance(results, list) else ())
        if isinstance(one, dict) and one.get("driver") == driver_name and one.get("pool") == pool_name
    ]
    return None if here else "deallocated"


def _at(document: Mapping[str, Any], *keys: str) -> object:
    value: object = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
