"""A claim from the kubelet's words to an object that may be acted upon: names checked, fetched, identity checked.

The kubelet names a claim by namespace, name and UID; only the UID is identity (a deleted claim's name may be in use
again). The API server's object is what counts for content, so it is fetched for each Prepare and checked before a
driver sees it.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from kubeletplugin.api import JSON, Claim, ClaimRef, PrepareError
from kubeletplugin.client import ApiError, ApiUnreachableError
from kubeletplugin.credentials import CredentialsError

_UID = re.compile(r"\A[0-9A-Za-z][0-9A-Za-z-]{0,62}\Z")
_LABEL = re.compile(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"\A(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


class ClaimReader(Protocol):
    """The one thing that is needed of the API server here; ``KubeClient`` has it."""

    def get(self, path: str, *, timeout: float | None = None) -> JSON:
        """The object at the path.

        Raises:
            ApiError: the API server answered with an error.
            ApiUnreachableError: no answer within ``timeout`` seconds.
            CredentialsError: the token or a certificate file is unusable.
        """


def check_ref(ref: ClaimRef) -> None:
    """Refuses what could not come from an API server, before a path or a file name is made of it.

    Raises:
        PrepareError: the UID, namespace or name is malformed.
    """
    for word, pattern, value in (
        ("UID", _UID, ref.uid),
        ("namespace", _LABEL, ref.namespace),
        ("name", _SUBDOMAIN, ref.name),
    ):
        if not pattern.match(value):
            raise PrepareError(f"claim {word} {value[:80]!r} is malformed", reason="MalformedRequest", permanent=True)


def claim_path(ref: ClaimRef) -> str:
    """The claim's path on the API server."""
    return f"/apis/resource.k8s.io/v1/namespaces/{ref.namespace}/resourceclaims/{ref.name}"


def fetch_claim(reader: ClaimReader, ref: ClaimRef, timeout: float) -> Claim:
    """Gets the claim and makes sure that it is the one that is meant, allocated and still wanted.

    Raises:
        PrepareError: it is not, or the API server did not say within ``timeout`` seconds.
    """
    try:
        document = reader.get(claim_path(ref), timeout=timeout)
    except ApiError as error:
        if error.status == 404:
            raise PrepareError(f"claim {ref} does not exist any more", reason="ClaimNotFound") from error
        raise PrepareError(
            f"claim {ref} cannot be read: the API server answered {error.status} {error}"
            + ("; the plugin's ClusterRole needs get on resourceclaims" if error.status == 403 else ""),
            reason="ClaimUnreadable",
        ) from error
    except (ApiUnreachableError, CredentialsError) as error:
        raise PrepareError(f"claim {ref} cannot be read: {error}", reason="ApiServerUnreachable") from error
    check_claim(ref, document)
    return Claim(ref, document)


def check_claim(ref: ClaimRef, document: JSON) -> None:
    """The rules for a claim that may be prepared.

    A claim that is being deleted stays usable as long as a pod has it reserved: the API server keeps it for that pod.

    Raises:
        PrepareError: the claim was replaced, is not allocated, or no pod has it.
    """
    metadata = _section(document, "metadata")
    status = _section(document, "status")
    if metadata.get("uid") != ref.uid:
        raise PrepareError(
            f"claim {ref} was replaced: the API server has another claim of this name, uid {metadata.get('uid')}",
            reason="ClaimReplaced",
        )
    if not status.get("reservedFor"):
        gone = "is being deleted and" if metadata.get("deletionTimestamp") else "is"
        raise PrepareError(f"claim {ref} {gone} reserved for no pod", reason="ClaimNotReserved")
    if not isinstance(status.get("allocation"), dict):
        raise PrepareError(f"claim {ref} is not allocated", reason="ClaimNotAllocated")
    results = _section(status["allocation"], "devices").get("results")
    if not isinstance(results, list) or not results:
        raise PrepareError(f"claim {ref} has an allocation without devices", reason="ClaimNotAllocated")


def _section(document: JSON, key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
