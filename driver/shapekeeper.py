"""Keeps the node's shape in a ConfigMap (``--shape-namespace``), so that somebody can tell an autoscaler of such nodes.

In the background and never in anybody's way: what cannot be written is said in the log, and nothing depends on it. The
ConfigMap is named by what it holds, so that nodes of a kind write the same one and nobody has to change it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from driver.publish import PoolDocument, slice_objects
from driver.publish.kinds import attribute_kinds
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.credentials import CredentialsError

if TYPE_CHECKING:
    from driver.analysis.shape import Shape

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
_EXISTS: Final = 409


class ShapeKeeper:
    """Takes what is published, writes its shape when that is new.

    Args:
        client: needs the right to create ConfigMaps in the namespace.
        driver_name: of this driver.
        node_name: of this node.
        namespace: where the ConfigMap lies.
        retry_seconds: between two attempts to reach the API server.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        driver_name: str,
        node_name: str,
        namespace: str,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._client = client
        self._driver_name = driver_name
        self._node_name = node_name
        self._namespace = namespace
        self._retry_seconds = retry_seconds
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._offered: PoolDocument | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._settled = ""
        """Hash of the newest shape that is written, or that the server has refused."""

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
            patience = None if pool is None or self._write(pool) else self._retry_seconds

    def _write(self, pool: PoolDocument) -> bool:
        """Write the shape if it is new; False where it has to be tried again."""
        # Imported here: most agents do not ask for it.
        from driver.analysis.shape import config_map

        shape = self._shape(pool)
        if shape.software_hash == self._settled:
            return True
        document = config_map(shape, namespace=self._namespace)
        name = f"{self._namespace}/{document['metadata']['name']}"
        try:
            self._client.create(f"/api/v1/namespaces/{self._namespace}/configmaps", document)
        except ApiError as error:
            if error.status != _EXISTS:
                log.warning(
                    "the node's shape cannot be written to ConfigMap %s: %s; deploy/shape-publishing.yaml gives the "
                    "right, and without --shape-namespace nothing is written",
                    name,
                    error,
                )
        except (ApiUnreachableError, CredentialsError) as error:
            log.info("the node's shape is written later: %s", error)
            return False
        else:
            log.info("the node's shape is written", extra={"configmap": name, "shape": shape.hash})
        self._settled = shape.software_hash
        return True

    def _shape(self, pool: PoolDocument) -> Shape:
        from driver.analysis.shape import AttributeKinds, export

        slices = slice_objects(pool, node_name=self._node_name, driver_name=self._driver_name)
        return export(slices, AttributeKinds(attribute_kinds(self._driver_name)), node_name=self._node_name)
