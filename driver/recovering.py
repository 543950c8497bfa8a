"""What follows from each look after the claims: at start, and behind every reading of the node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from driver.bridge import count_prepared, device_statuses, held_claims, metadata_problems, with_other_hardware
from driver.lookout import claim_ref

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.bridge import AgentObserver
    from driver.journal.scribe import Scribe
    from driver.later import Later
    from driver.lookout import Lookout
    from driver.metrics import Deferred
    from driver.model import Problem
    from driver.offering import Offering
    from driver.prepare import ClaimRef, PatientPreparer, Preparer, Recovery
    from kubeletplugin.plugin import Plugin

log = logging.getLogger(__name__)


class Recovering:
    """Brings claims, files and hardware together again, and says what was done and what could not be."""

    def __init__(
        self,
        preparer: Preparer,
        patient: PatientPreparer,
        plugin: Plugin,
        lookout: Lookout,
        offering: Offering,
        observer: AgentObserver,
        scribe: Later[Scribe],
        metrics: Deferred,
    ) -> None:
        self._preparer = preparer
        self._patient = patient
        self._plugin = plugin
        self._lookout = lookout
        self._offering = offering
        self._observer = observer
        self._scribe = scribe
        self._metrics = metrics
        self._known_problems: frozenset[Problem] = frozenset()

    def recover(self) -> None:
        """Look after all claims once, and tell everybody what came of it."""
        before = self._preparer.prepared()
        report = self._preparer.recover()
        restored = self._plugin.restore_metadata(lambda: held_claims(self._preparer.prepared(), self._lookout.metadata))
        problems = self._say_problems(report, metadata_problems(restored))
        for done, text, more in (
            (report.undone, "undid what was under way", {}),
            (report.remade, "made prepared claims right again", {"lacked": report.lacked}),
            (restored.remade, "made the metadata of claims again", {}),
            (report.orphans, "removed CDI specifications of claims that nobody knows", {}),
        ):
            if done:
                log.info(text, extra={"claims": done, **more})
        if report.loaded:
            self._offering.recovered(self._preparer.prepared)
            self._plugin.sweep_metadata(lambda: {record.ref.uid for record in self._preparer.prepared()})
        found = {"undone": report.undone, "remade": report.remade, "orphan": report.orphans}
        self._scribe.tell(lambda scribe: scribe.recovered(found, report.records, problems, report.lacked))
        if report.loaded:
            self._scribe.tell(lambda scribe: scribe.claims())
        count_prepared(self._preparer.prepared(), self._metrics)
        if restarts := self._offering.new_restarts():
            self._metrics.tell(lambda m: m.add("gpudra_mps_daemon_restarts_total", restarts))
        for record in with_other_hardware(before, self._preparer.prepared()):
            self._plugin.report_status(claim_ref(record.ref), device_statuses(record, self._lookout.condition))
        self._patient.changed()

    def _say_problems(self, report: Recovery, unrestored: Mapping[Problem, ClaimRef]) -> list[Problem]:
        """Say what is wrong with the claims, each once; gives what is new."""
        found = (*report.problems, *unrestored)
        new = [problem for problem in found if problem not in self._known_problems]
        self._known_problems = frozenset(found)
        lost = ((ref, "DeviceLost", problem) for ref, problem in report.broken())
        unmade = ((ref, "MetadataFailed", problem) for problem, ref in unrestored.items())
        for problem in new:
            log.warning("%s: %s", problem.subject, problem.message)
        for ref, reason, problem in (*lost, *unmade):
            if problem in new:
                self._observer.claim_event(ref, "Warning", reason, problem.message)
        return new
