"""Jobs as workers see them: each is claimed by one, who must renew the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Select, and_, or_, select

from mcfuser_db import again
from mcfuser_db.again import gave_up
from mcfuser_db.database import RACES
from mcfuser_db.job_events import add_event
from mcfuser_db.joblog import LogLine, add_lines
from mcfuser_db.jobs import JobStore
from mcfuser_db.models import Job
from mcfuser_db.transitions import NO_CLAIM

if TYPE_CHECKING:
    from mcfuser.tune.progress import Progress


class ClaimStore(JobStore):
    """Jobs that workers claim.

    A job is claimed by compare-and-set: its row changes only if it still is as it was read. The
    worker that claimed it must renew its claim. Every write of a worker names the claim, and
    returns False where that was lost (the job was cancelled, or the lease ran out).
    """

    def claim(self, worker: str, lease: float) -> Job | None:
        """Claims the oldest queued job that is due, for `lease` seconds; None if there is none."""
        silent = "its worker was silent for longer than its lease"
        self._take_back(Job.lease < self._now(), silent, wait=False)  # the lease was the wait
        for _ in range(RACES):
            with self._read() as session:
                waiting = session.execute(_next(self._now())).one_or_none()
            if waiting is None:
                return None
            claim, attempt = uuid4(), waiting.attempts + 1
            words = f"attempt {attempt} of {self._attempts} begins; worker '{worker}'"
            taken = self._set(
                (Job.id == waiting.id, Job.state == "queued", Job.attempts == waiting.attempts),
                words, state="running", due=None, worker=worker, claim=claim,
                lease=self._later(lease), attempts=attempt, started=self._now(), stage="", done=0,
                total=0,
            )  # fmt: skip
            job = self.job(waiting.id) if taken else None
            if job is not None and job.claim == claim:  # not cancelled in between
                return job
        return None  # other workers were faster each time

    def renew(
        self,
        claim: UUID,
        lease: float,
        progress: Progress | None = None,
        lines: Sequence[LogLine] = (),
    ) -> bool:
        """Extends a claim to `lease` seconds from now; writes the job's progress where that is
        given, and adds lines to its log."""
        values: dict[str, Any] = {"lease": self._later(lease)}
        if progress is not None:
            values |= {
                "stage": str(progress).replace("\0", "")[:200],  # PostgreSQL keeps no NUL
                "done": progress.done,
                "total": progress.total,
                "progress": progress.to_json(),
                "expected": self._later(progress.left) if progress.left is not None else None,
                "version": Job.version + 1,
            }
        with self._write.begin() as session:
            jobs = self._update(session, (Job.claim == claim,), values)
            for job in jobs:
                if progress is not None:
                    add_event(session, job, self._now())
                add_lines(session, job.id, lines)
            return bool(jobs)

    def note_lines(self, id: UUID, lines: Sequence[LogLine]) -> None:
        """Adds lines to the log of a job, whoever holds it now."""
        if not lines:
            return
        with self._write.begin() as session:
            locked = select(Job.id).where(Job.id == id).with_for_update()
            if session.scalar(locked) is not None:
                add_lines(session, id, lines)

    def held(self, claim: UUID) -> bool:
        """Whether a claim is still valid."""
        with self._read() as session:
            return session.scalar(select(Job.id).where(Job.claim == claim)) is not None

    def finish(
        self, claim: UUID, module: str, module_bytes: int, report: dict[str, Any],
        attestation: str | None = None,
    ) -> bool:  # fmt: skip
        """Ends a job with its result: the digest and size of its module, its report and, if there
        is one, the signed statement of both."""
        return self._set(
            (Job.claim == claim,), f"done: a module of {module_bytes} bytes", state="done",
            finished=self._now(), module=module, module_bytes=module_bytes, report=report,
            attestation=attestation, stage="", **NO_CLAIM,
        )  # fmt: skip

    def fail(self, claim: UUID, problem: Mapping[str, Any]) -> bool:
        """Ends a job with a problem (RFC 9457)."""
        words = f"failed: {problem.get('detail', '')}"
        return self._set((Job.claim == claim,), words, **self._failed(problem))

    def retry(self, claim: UUID, why: str = "the attempt failed") -> bool:
        """Queues a job whose attempt failed again, to wait for db.again.delay; fails it if that was
        the last attempt. The log says `why`."""
        return self._take_back(Job.claim == claim, why) > 0

    def give_back(self, claim: UUID) -> bool:
        """Queues a job again without counting the attempt, because the worker was asked to stop."""
        return self.postpone(claim, 0.0, "")

    def postpone(self, claim: UUID, seconds: float, stage: str) -> bool:
        """Queues a job again without counting the attempt, due in `seconds`; `stage` says what it
        waits for."""
        return self._set(
            (Job.claim == claim,), stage or "given back: the worker was asked to stop",
            state="queued", attempts=Job.attempts - 1, stage=stage[:200],
            due=self._later(seconds) if seconds else None, **NO_CLAIM,
        )  # fmt: skip

    def release(self, worker: str, blame: bool = True) -> int:
        """Takes back the jobs of a worker that is known to be dead; gives their number.

        With `blame` the attempt counts as failed: the job may have killed the worker.
        """
        if blame:
            return self._take_back(Job.worker == worker, f"worker '{worker}' died")
        return sum(self.give_back(claim) for claim in self._claims(worker))

    def interrupted(self, worker: str) -> int:
        """Takes back the jobs that a worker held when its server was ended; gives their number.

        Their attempts do not count as failed, but a job to which this happens too often is given
        up.
        """
        return self._interrupt(Job.worker == worker, f"the server of worker '{worker}' was ended")

    def killed(self, worker: str) -> int:
        """The same for a worker that was killed, of which its jobs are not the cause."""
        return self._interrupt(Job.worker == worker, f"worker '{worker}' was killed")

    def spare(self, claim: UUID, why: str) -> bool:
        """The same for one job, whose process was killed; the log says `why`."""
        return self._interrupt(Job.claim == claim, why) > 0

    def _interrupt(self, whose: ColumnElement[bool], why: str) -> int:
        held = (Job.state == "running", whose)
        problem = again.interrupted(again.INTERRUPTIONS)
        back = {
            "state": "queued", "attempts": Job.attempts - 1, "interrupted": Job.interrupted + 1,
            **NO_CLAIM,
        }  # fmt: skip
        with self._write.begin() as session:
            spent = (*held, Job.interrupted >= again.INTERRUPTIONS)
            failed = self._change(session, spent, problem["detail"], self._failed(problem))
            return failed + self._change(session, held, f"queued again: {why}", back)

    def _claims(self, worker: str) -> Sequence[UUID]:
        with self._read() as session:
            query = select(Job.claim).where(Job.worker == worker, Job.state == "running")
            return [claim for claim in session.scalars(query) if claim is not None]

    def _take_back(self, lost: ColumnElement[bool], why: str, wait: bool = True) -> int:
        """Queues running jobs again, and fails those whose last attempt this was."""
        lost = and_(Job.state == "running", lost)
        with self._read() as session:
            if session.scalar(select(Job.id).where(lost).limit(1)) is None:
                return 0  # workers ask this all day: only a change takes SQLite's lock
        with self._write.begin() as session:
            problem = gave_up(self._attempts)
            spent = (lost, Job.attempts >= self._attempts)
            words = f"{why}; given up after {self._attempts} attempts"
            count = self._change(session, spent, words, self._failed(problem))
            for tried in range(1, self._attempts):
                seconds = again.delay(tried) if wait else 0.0
                due = self._later(seconds) if wait else None
                values = {"state": "queued", "due": due, **NO_CLAIM}
                words = f"{why}; queued again, to be tried in {seconds:g} s"
                count += self._change(session, (lost, Job.attempts == tried), words, values)
            return count

    def _failed(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": "failed", "finished": self._now(), "problem": dict(problem), **NO_CLAIM}


def _next(now: datetime) -> Select[UUID, int]:
    """The oldest of the queued jobs that are due and of the highest priority."""
    waiting = and_(Job.state == "queued", _is_due(now))
    highest = select(Job.priority).where(waiting).order_by(Job.priority.desc()).limit(1)
    oldest = select(Job.id, Job.attempts).where(waiting, Job.priority == highest.scalar_subquery())
    return oldest.order_by(Job.created, Job.id).limit(1)


def _is_due(now: datetime) -> ColumnElement[bool]:
    return or_(Job.due.is_(None), Job.due <= now)
