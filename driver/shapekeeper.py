"""Keeps the node's shape in a ConfigMap (``--shape-namespace``), so that somebody can tell an autoscaler of such nodes.

In the background and never in anybody's way: what cannot be written is said in the log, and nothing depends on it. The
ConfigMap is named by what it holds, so that nodes of a kind write the same one and nobody has to change it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from driver.publish import PoolDocument, slice_objects
from driver.publish.kinds import attribute_kinds
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.credentials import CredentialsError

if TYPE_CHECKING:
    from driver.analysis.shape import Shape

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
"""Until the next attempt where the API server could not be reached or was busy."""
REFUSED_SECONDS: Final = 600.0
"""Until the next attempt where it refused: somebody may give the right, or make the namespace, meanwhile."""
_EXISTS: Final = 409
_MENDABLE: Final = (401, 403, 404)
_BUSY: Final = 429


class ShapeKeeper:
    """Takes what is published, writes its shape when that is new.

    Args:
        client: needs the right to create ConfigMaps in the namespace.
        driver_name: of this driver.
        node_name: of this node.
        namespace: where the ConfigMap lies.
        retry_seconds: until the next attempt where the API server could not be reached or was busy.
        refused_seconds: until the next attempt where it refused.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        driver_name: str,
        node_name: str,
        namespace: str,
        retry_seconds: float = RETRY_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
    ) -> None:
        self._client = client
        self._driver_name = driver_name
        self._node_name = node_name
        self._namespace = namespace
        self._retry_seconds = retry_seconds
        self._refused_seconds = refused_seconds
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._offered: PoolDocument | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._settled = ""
        """Hash of the newest shape that is written, or that the server will never take."""
        self._complained = ""
        """Hash of the newest shape whose refusal was told."""
        self._delayed = "", 0.0
        """Hash of a shape that could not be written, and the monotonic time of the next attempt."""

    def offer(self, pool: PoolDocument) -> None:
        """The node publishes this now. Returns at once.

        A pool from which something is withheld is passed over: it is not what a new node of the kind has.
        """
        if pool.withheld or not pool.devices:
            return
        with self._lock:
            self._offered = pool
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="shape", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self, timeout: float = 5.0) -> None:
        """End; what is being written may be lost."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        patience: float | None = None
        while True:
            self._wake.wait(patience)
            self._wake.clear()
            with self._lock:
                pool, closed = self._offered, self._closed
            if closed:
                return
            patience = None if pool is None else self._attend(self._shape(pool))

    def _attend(self, shape: Shape) -> float | None:
        """Write the shape if it is new and its time has come; the seconds until that is, None where it never is."""
        if shape.software_hash == self._settled:
            return None
        delayed, until = self._delayed
        remaining = until - time.monotonic()
        if shape.software_hash == delayed and remaining > 0:  # it was offered again meanwhile
            return remaining
        patience = self._write(shape)
        if patience is not None:
            self._delayed = shape.software_hash, time.monotonic() + patience
        return patience

    def _write(self, shape: Shape) -> float | None:
        """Write the shape; the seconds until it is to be tried again, None where it is not."""
        # Imported here: most agents do not ask for it.
        from driver.analysis.shape import config_map

        document = config_map(shape, namespace=self._namespace)
        try:
            self._client.create(f"/api/v1/namespaces/{self._namespace}/configmaps", document)
        except ApiError as error:
            if error.status != _EXISTS:
                return self._refused(shape, document["metadata"]["name"], error)
        except (ApiUnreachableError, CredentialsError) as error:
            log.info("the node's shape is written later: %s", error)
            return self._retry_seconds
        else:
            name = f"{self._namespace}/{document['metadata']['name']}"
            log.info("the node's shape is written", extra={"configmap": name, "shape": shape.hash})
        self._settled = shape.software_hash
        return None

    def _refused(self, shape: Shape, name: str, error: ApiError) -> float | None:
        """What the server's refusal means; it is told once for each shape."""
        if error.status == _BUSY or error.status >= 500:
            log.info("the node's shape is written later: %s", error)
            return self._retry_seconds
        if self._complained != shape.software_hash:
            self._complained = shape.software_hash
            log.warning(
                "the node's shape cannot be written to ConfigMap %s/%s: %s; deploy/shape-publishing.yaml gives the "
                "right, and without --shape-namespace nothing is written",
                self._namespace,
                name,
                error,
            )
        if error.status in _MENDABLE:
            return self._refused_seconds
        self._settled = shape.software_hash
        return None

    def _shape(self, pool: PoolDocument) -> Shape:
        from driver.analysis.shape import AttributeKinds, export

        slices = slice_objects(pool, node_name=self._node_name, driver_name=self._driver_name)
        return export(slices, AttributeKinds(attribute_kinds(self._driver_name)), node_name=self._node_name)
