"""Reads the objects that the analysis looks at from a live cluster: list only, kind by kind, whatever is permitted."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from driver.analysis.document_text import Problem, Value
from driver.analysis.documents import Collection, Progress, collect, quiet

log = logging.getLogger(__name__)

PAGE = 500
"""Objects a request."""
TIMEOUT_SECONDS = 60
_HOPELESS = (0, 401)
"""No answer at all, or to nobody: the next kind would get the same."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind and where it is served, the preferred version first."""

    name: str
    plural: str
    groups: tuple[str, ...]
    """``api/v1`` or ``apis/<group>/<version>``."""
    required: bool = False
    """That the cluster does not serve it is worth a word."""


def _dra(name: str, plural: str, *versions: str, required: bool = True) -> Kind:
    return Kind(name, plural, tuple(f"apis/resource.k8s.io/{version}" for version in versions), required)


KINDS = (
    _dra("ResourceSlice", "resourceslices", "v1", "v1beta2", "v1beta1"),
    _dra("DeviceClass", "deviceclasses", "v1", "v1beta2", "v1beta1"),
    _dra("ResourceClaim", "resourceclaims", "v1", "v1beta2", "v1beta1"),
    _dra("ResourceClaimTemplate", "resourceclaimtemplates", "v1", "v1beta2", "v1beta1"),
    _dra("DeviceTaintRule", "devicetaintrules", "v1", "v1beta2", "v1alpha3", required=False),
    Kind("Node", "nodes", ("api/v1",), True),
    Kind("Pod", "pods", ("api/v1",), True),
    Kind("DaemonSet", "daemonsets", ("apis/apps/v1",), True),
    Kind("PodGroup", "podgroups", ("apis/scheduling.k8s.io/v1beta1", "apis/scheduling.k8s.io/v1alpha2")),
    Kind("ProvisioningRequest", "provisioningrequests", ("apis/autoscaling.x-k8s.io/v1",)),
)


class Refused(Exception):  # noqa: N818 - an answer of the server, not a fault of ours
    """The server does not give it; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Server(Protocol):
    """What is asked: GET alone."""

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """The decoded answer.

        Raises:
            Refused: any status but 200.
        """


def connect(kubeconfig: str | None, context: str | None) -> Server:
    """The cluster of a kubeconfig, or the one that this pod runs in.

    Raises:
        UsageError: the client is not installed, or there is no usable configuration.
    """
    from driver.cli.main import UsageError

    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise UsageError(
            "the kubernetes client is not installed: install gpudra[cli], or pipe kubectl's JSON"
        ) from error
    try:
        api = _api_client(client, config, kubeconfig, context)
    except (ConfigException, OSError) as error:
        raise UsageError(f"no cluster to ask: {error}; name one with --kubeconfig and --context") from error
    return _KubernetesServer(api)


def _api_client(client: Any, config: Any, kubeconfig: str | None, context: str | None) -> Any:
    if kubeconfig is None and context is None:
        try:
            config.load_incluster_config()
        except config.ConfigException as error:
            log.debug("this is no pod of a cluster (%s): the kubeconfig says which one is meant", error)
        else:
            return client.ApiClient()
    return config.new_client_from_config(config_file=kubeconfig, context=context)


class _KubernetesServer:
    """Over the official client, whose models are left aside: they forbid fields that they do not know."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """The decoded answer."""
        from kubernetes.client import rest
        from kubernetes.client.exceptions import ApiException

        client: Any = rest  # the errors of urllib3 come through it where no answer comes
        call = self._api.param_serialize(
            "GET",
            f"/{path}",
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*call, _request_timeout=TIMEOUT_SECONDS)
            data, status = response.read(), int(response.status)
        except ApiException as error:
            raise Refused(int(error.status or 0), str(error.reason)) from error
        except client.urllib3.exceptions.HTTPError as error:
            raise Refused(0, str(error)) from error
        try:
            answer: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise Refused(status, "the answer is no JSON: is this a Kubernetes API server?") from error
        if status != 200:
            raise Refused(status, str(answer.get("message", "")))
        return answer


def read_cluster(server: Server, kinds: Sequence[Kind] = KINDS, *, progress: Progress = quiet) -> Collection:
    """Everything of these kinds. What may not be listed becomes a problem, and the rest is there."""
    found = Collection()
    for number, kind in enumerate(kinds):
        try:
            values = list(_objects(server, kind, progress))
        except Refused as error:
            if error.status in _HOPELESS:
                left = frozenset(kind.name for kind in kinds[number:])
                found += Collection(problems=(Problem("cluster", "", _words(error), "cluster"),), absent=left)
                break
            if error.status != 404 or kind.required:
                problem = Problem(kind.plural, "", f"cannot be listed: {_words(error)}", "cluster")
                found += Collection(problems=(problem,), absent=frozenset({kind.name}))
            continue
        found += collect(values, "cluster", progress=progress)
    return replace(found, ignored=())


def _words(error: Refused) -> str:
    return f"{error} (status {error.status})" if error.status else f"no answer: {error}"


def _objects(server: Server, kind: Kind, progress: Progress) -> Iterator[Value]:
    for number, group in enumerate(kind.groups):
        try:
            yield from _pages(server, group, kind, progress)
        except Refused as error:
            if error.status != 404 or number + 1 == len(kind.groups):
                raise
        else:
            return


def _pages(server: Server, group: str, kind: Kind, progress: Progress) -> Iterator[Value]:
    query, done = {"limit": str(PAGE)}, 0
    while True:
        answer = server.get(f"{group}/{kind.plural}", query)
        version = group.partition("/")[2]
        for item in answer.get("items") or ():
            yield Value({"apiVersion": version, "kind": kind.name, **item})
        done += len(answer.get("items") or ())
        progress(f"listing {kind.plural}", done)
        token = (answer.get("metadata") or {}).get("continue")
        if not token:
            return
        query = {"limit": str(PAGE), "continue": token}
