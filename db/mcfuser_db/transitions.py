"""Changes of jobs, with what follows from them: events, lines in logs, webhooks that are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, update
from sqlalchemy.orm import Session

from mcfuser_db.database import Database
from mcfuser_db.job_events import TOLD, add_event
from mcfuser_db.joblog import LogLine, add_lines
from mcfuser_db.models import OVER, Job
from mcfuser_db.webhooks import hold_webhooks, release_webhooks

NO_CLAIM: Mapping[str, Any] = {
    "worker": None, "claim": None, "lease": None, "progress": None, "expected": None,
}  # fmt: skip
"""The columns of a job that nobody works on."""
FRESH: Mapping[str, Any] = {
    "state": "queued", "attempts": 0, "interrupted": 0, "due": None, "stage": "", "done": 0,
    "total": 0, "started": None, "finished": None, "module": None, "module_bytes": None,
    "report": None, "problem": None, "removed": None, "attestation": None,
}  # fmt: skip
"""The columns of a job that is done from the beginning."""


class Transitions(Database):
    """How rows of jobs change."""

    def _set(self, where: Sequence[ColumnElement[bool]], words: str, **values: Any) -> bool:
        """Changes the jobs of a condition, with a line in their logs; whether there were any."""
        with self._write.begin() as session:
            return self._change(session, where, words, values) > 0

    def _change(
        self,
        session: Session,
        where: Sequence[ColumnElement[bool]],
        words: str,
        values: Mapping[str, Any],
    ) -> int:
        jobs = self._update(session, where, {**values, "version": Job.version + 1})
        for job in jobs:
            add_event(session, job, self._now())
            add_lines(session, job.id, self._lines(words))
            if values.get("state") in OVER:
                release_webhooks(session, job.id, self._now())
            elif values.get("state") == "queued":
                hold_webhooks(session, job.id)
        return len(jobs)

    def _update(
        self, session: Session, where: Sequence[ColumnElement[bool]], values: Mapping[str, Any]
    ) -> Sequence[Row[Any]]:
        """Changes the jobs of a condition; gives the columns TOLD of each."""
        changed = update(Job).where(*where).values(**values).returning(*TOLD)
        plain = changed.execution_options(synchronize_session=False)
        return session.execute(plain).all()

    def _lines(self, words: str) -> list[LogLine]:
        return [LogLine(self._now(), words)]
