"""Jobs as those see them who have posted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import defer

from mcfuser_db.job_events import events_from
from mcfuser_db.joblog import JobLog, read_log
from mcfuser_db.models import IS_LIVE, STATES, Job, JobEvent
from mcfuser_db.paging import before
from mcfuser_db.tallies import tallies
from mcfuser_db.transitions import FRESH, NO_CLAIM, Transitions


class JobStore(Transitions):
    """Jobs, one at a time and in lists, and how they are cancelled."""

    def live(self, work: str) -> Job | None:
        """The job with that work that is queued, running or done; None if there is none."""
        with self._read() as session:
            return session.scalar(select(Job).where(Job.work == work, IS_LIVE))

    def job(self, id: UUID) -> Job | None:
        """The job with an id."""
        with self._read() as session:
            return session.get(Job, id)

    def jobs(
        self, state: str | None = None, limit: int = 50, after: UUID | None = None
    ) -> Sequence[Job]:
        """Jobs, newest first, without their reports; `after` is the last one of the page before."""
        query = select(Job).options(defer(Job.report, raiseload=True))
        if state is not None:
            query = query.where(Job.state == state)
        with self._read() as session:
            if after is not None:
                if (last := session.get(Job, after)) is None:
                    return []
                query = query.where(before(Job.created, last.created, Job.id, last.id))
            query = query.order_by(Job.created.desc(), Job.id.desc()).limit(limit)
            return session.scalars(query).all()

    def versions(self, ids: Iterable[UUID]) -> dict[UUID, int]:
        """The versions of jobs; without those that do not exist."""
        with self._read() as session:
            rows = session.execute(select(Job.id, Job.version).where(Job.id.in_(ids)))
            return {row.id: row.version for row in rows}

    def snapshots(self, ids: Iterable[UUID]) -> Sequence[Job]:
        """Jobs without their reports."""
        query = select(Job).options(defer(Job.report, raiseload=True)).where(Job.id.in_(ids))
        with self._read() as session:
            return session.scalars(query).all()

    def events(self, first: Mapping[UUID, int]) -> dict[UUID, Sequence[JobEvent]]:
        """The kept events of jobs from a version of each on, in their order; without the jobs that
        have none."""
        with self._read() as session:
            return events_from(session, first)

    def log(self, id: UUID) -> JobLog:
        """The log of a job; without lines where there is none."""
        with self._read() as session:
            return read_log(session, id)

    def cancel(self, id: UUID, api_key: str | None = None) -> bool:
        """Ends a job that is queued or running; its worker learns of it at its next renewal. With
        `api_key`, only where it was posted with that key alone."""
        own = (Job.api_key == api_key, Job.shared.is_(False)) if api_key is not None else ()
        return self._set(
            (Job.id == id, Job.state.in_(("queued", "running")), *own), "cancelled",
            state="cancelled", finished=self._now(), **NO_CLAIM,
        )  # fmt: skip

    def requeue(self, id: UUID) -> bool:
        """Queues a done job again, because its module was lost."""
        words = "queued again: its module is no longer kept"
        return self._set((Job.id == id, Job.state == "done"), words, **FRESH)

    def attestation(self, id: UUID) -> str | None:
        """The signed statement of a job's module; None where there is none."""
        with self._read() as session:
            return session.scalar(select(Job.attestation).where(Job.id == id))

    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        with self._read() as session:
            tallied = tallies(session)
        return {state: tallied.get(f"jobs.{state}", 0) for state in STATES}
