"""What a publication lacks, told when it begins to lack it and not with every publication that follows."""

from __future__ import annotations

import logging

from driver.publish import PoolDocument, Withheld

log = logging.getLogger(__name__)


class Lacks:
    """Remembers what was told of the latest publication."""

    def __init__(self) -> None:
        self._withheld: tuple[Withheld, ...] = ()
        self._uncounted = False

    def tell(self, pool: PoolDocument, *, uncounted: bool) -> None:
        """Log what is new.

        Args:
            pool: what is published now.
            uncounted: whether partitions cannot be made because the API server keeps no counters.
        """
        before, self._withheld = self._withheld, pool.withheld
        for withheld in pool.withheld:
            if withheld not in before:
                log.warning("not published: %s: %s", withheld.device, withheld.reason)
        for device in sorted({each.device for each in before} - {each.device for each in pool.withheld}):
            log.info("%s is withheld no longer", device)
        told, self._uncounted = self._uncounted, uncounted
        if uncounted and not told:
            log.warning(
                "the API server does not keep counters (feature gate DRAPartitionableDevices, Kubernetes 1.36): no "
                "partitions are made, those that stand are handed out as with --mig static"
            )
