"""The log of a job: lines that its server and its workers write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from mcfuser_db.models import JobLine

MOST_LINES = 1000
"""Lines that are kept of a job's log, the last ones."""
LONGEST_LINE = 500
"""Characters that are kept of a line."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A sentence of a log, and when it was written."""

    moment: datetime
    words: str


@dataclass(frozen=True, slots=True)
class JobLog:
    """The last lines of a job's log; `dropped` earlier ones are no longer kept."""

    dropped: int
    lines: Sequence[LogLine]


def add_lines(session: Session, job: UUID, lines: Sequence[LogLine]) -> None:
    """Adds lines to a job's log, in a transaction that has changed or locked the job's row: so
    nobody else numbers lines of it meanwhile."""
    if not lines:
        return
    last = session.scalar(select(func.max(JobLine.number)).where(JobLine.job == job)) or 0
    for number, line in enumerate(lines, last + 1):
        session.add(JobLine(job=job, number=number, moment=line.moment, words=_plain(line.words)))
    session.flush()
    surplus = last + len(lines) - MOST_LINES
    if surplus > 0:
        session.execute(delete(JobLine).where(JobLine.job == job, JobLine.number <= surplus))


def read_log(session: Session, job: UUID) -> JobLog:
    """The log of a job."""
    rows = session.scalars(select(JobLine).where(JobLine.job == job).order_by(JobLine.number)).all()
    lines = [LogLine(row.moment, row.words) for row in rows]
    return JobLog(rows[0].number - 1 if rows else 0, lines)


def _plain(words: str) -> str:
    """One line of printable characters: names in models may have any others."""
    short = words if len(words) <= LONGEST_LINE else words[: LONGEST_LINE - 2] + " …"
    return "".join(c if c.isprintable() else " " for c in short)
