"""The API server of a test cluster, as plain documents: requests whatever their status, and waiting by watching.

The generated models of the ``kubernetes`` client refuse what they do not know, and tests send such things on purpose;
so this speaks JSON over urllib3, with the identity of one of the cluster's kubeconfigs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import urllib3

from .layout import Layout

JSON = dict[str, Any]
Condition = Callable[[JSON | None], bool]
DEFAULT_TIMEOUT = 60.0

_GROUPS = {
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
    "resourceslices": "/apis/resource.k8s.io/v1",
    "deviceclasses": "/apis/resource.k8s.io/v1",
    "devicetaintrules": "/apis/resource.k8s.io/v1",
    "daemonsets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
}
"""Resources that are not of the core group."""


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, document: JSON) -> None:
        super().__init__(f"{status} {document.get('reason', '')}: {document.get('message', '')}")
        self.status = status
        self.document = document


def path(resource: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
    """``path("pods", "default", "web", "log")`` is ``/api/v1/namespaces/default/pods/web/log``."""
    parts = [_GROUPS.get(resource, "/api/v1")]
    parts += ["namespaces", namespace] if namespace else []
    return "/".join([*parts, *(part for part in (resource, name, subresource) if part)])


class Api:
    """One user's connection."""

    def __init__(self, layout: Layout, user: str = "admin") -> None:
        self._server = layout.load().server
        self._pool = urllib3.PoolManager(
            ca_certs=str(layout.ca),
            retries=False,
            headers={"Authorization": f"Bearer {layout.token(user).read_text()}"},
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def request(self, method: str, where: str, body: object = None, **query: str) -> tuple[int, JSON]:
        """Any request; the answer is given back whatever its status."""
        content = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        response = self._pool.request(
            method,
            self._server + where + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers={**self._pool.headers, "Content-Type": content},
            timeout=urllib3.Timeout(30),
        )
        return response.status, json.loads(response.data)

    def call(self, method: str, where: str, body: object = None, **query: str) -> JSON:
        """A request that must succeed.

        Raises:
            ApiError: it did not.
        """
        status, document = self.request(method, where, body, **query)
        if status >= 400:
            raise ApiError(status, document)
        return document

    def get(self, resource: str, namespace: str | None, name: str) -> JSON:
        return self.call("GET", path(resource, namespace, name))

    def items(self, resource: str, namespace: str | None = None, **query: str) -> list[JSON]:
        return list(self.call("GET", path(resource, namespace), **query)["items"])

    def create(self, resource: str, namespace: str | None, document: JSON) -> JSON:
        return self.call("POST", path(resource, namespace), document)

    def patch(self, resource: str, namespace: str | None, name: str, document: JSON) -> JSON:
        return self.call("PATCH", path(resource, namespace, name), document)

    def delete(self, resource: str, namespace: str | None, name: str) -> None:
        """Delete an object; one that is gone already is fine."""
        status, document = self.request("DELETE", path(resource, namespace, name))
        if status >= 400 and status != 404:
            raise ApiError(status, document)

    def lines(self, where: str, timeout: float, **query: str) -> Iterator[bytes]:
        """The lines of an answer that goes on for a while (a watch, a followed log), until it ends or time is over.

        Raises:
            ApiError: the request was refused.
        """
        response = self._pool.request(
            "GET", self._server + where, fields=query, preload_content=False,
            timeout=urllib3.Timeout(connect=10, read=timeout),
        )  # fmt: skip
        try:
            if response.status >= 400:
                raise ApiError(response.status, json.loads(response.data))
            rest = b""
            for chunk in response.stream(amt=None):
                *complete, rest = (rest + chunk).split(b"\n")
                yield from complete
        except urllib3.exceptions.ReadTimeoutError:
            return
        finally:
            response.close()

    def wait(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        until: Condition,
        what: str,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> JSON | None:
        """Watch one object until ``until`` holds for it (None: it does not exist); return it as it was then.

        Raises:
            AssertionError: the time is over; the text holds the object as it was last seen.
        """
        found = self.wait_all(
            resource, namespace, lambda objects: until(objects.get(name)), what, timeout, f"metadata.name={name}"
        )
        return found.get(name)

    def wait_all(
        self,
        resource: str,
        namespace: str | None,
        until: Callable[[dict[str, JSON]], bool],
        what: str,
        timeout: float = DEFAULT_TIMEOUT,
        field_selector: str = "",
    ) -> dict[str, JSON]:
        """Watch a collection until ``until`` holds for it (name -> object); return it as it was then.

        Raises:
            AssertionError: the time is over; the text holds the objects as they were last seen.
        """
        deadline = time.monotonic() + timeout
        where = path(resource, namespace)
        while True:
            document = self.call("GET", where, fieldSelector=field_selector)
            found: dict[str, JSON] = {item["metadata"]["name"]: item for item in document["items"]}
            if until(found):
                return found
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise AssertionError(f"not within {timeout:.0f} s: {what}; last seen: {_brief(found)}")
            query = {
                "watch": "1",
                "resourceVersion": document["metadata"]["resourceVersion"],
                "fieldSelector": field_selector,
                "timeoutSeconds": str(int(remaining) + 1),
            }
            if self._watch(where, remaining, query, found, until):
                return found

    def _watch(
        self,
        where: str,
        timeout: float,
        query: dict[str, str],
        found: dict[str, JSON],
        until: Callable[[dict[str, JSON]], bool],
    ) -> bool:
        """Apply watch events to ``found`` until the condition holds (True) or the watch ends (False: list again)."""
        for line in self.lines(where, timeout, **query):
            event = json.loads(line)
            if event["type"] == "ERROR":  # the version was compacted away
                return False
            item = event["object"]
            if event["type"] == "DELETED":
                found.pop(item["metadata"]["name"], None)
            else:
                found[item["metadata"]["name"]] = item
            if until(found):
                return True
        return False


def _brief(objects: dict[str, JSON]) -> str:
    """Objects for an error message: what each says of itself in short."""
    parts = {name: item.get("status") or item.get("message") or item.get("spec") for name, item in objects.items()}
    return json.dumps(parts)[:3000]
