"""The events of a job: the job as it was at each of its versions, for those who follow it.

Each change of a job that others can see writes one, in the transaction that makes the change: the
job's row is locked until that transaction ends, so events become visible in the order of their
versions, none before the job has its version, and none is left out between two that are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Integer,
    Row,
    Uuid,
    and_,
    bindparam,
    column,
    delete,
    func,
    insert,
    or_,
    select,
    values,
)
from sqlalchemy.orm import Session

from mcfuser_db.models import Job, JobEvent

MOST_EVENTS = 500
"""Events that are kept of a job, the last ones; at times up to 31 more."""
MOST_BYTES = 256 << 10
"""Bytes of events that are kept of a job; at times up to 124 KiB more, and at least one event."""
_PRUNED = 32  # the events, one removal of earlier ones to the next
_LARGE = 4096  # bytes of an event that does not wait for that

_MOMENTS = ("expected", "due", "started", "finished", "removed")
_CHANGING = (
    "name", "priority", "state", "stage", "done", "total", "progress", "attempts", "module",
    "module_bytes", "problem", *_MOMENTS,
)  # fmt: skip
_LASTING = (
    "id", "work", "model", "model_bytes", "device", "options", "created", "api_key", "shared",
)  # fmt: skip
TOLD = (Job.id, Job.version, *(getattr(Job, name) for name in _CHANGING))
"""The columns of a job that `add_event` reads."""
_TABLE = JobEvent.metadata.tables[JobEvent.__tablename__]
_LAST = select(_TABLE.c.total).where(_TABLE.c.job == bindparam("whose", type_=Uuid()))
_ADD = insert(_TABLE).values(
    total=func.coalesce(_LAST.order_by(_TABLE.c.version.desc()).limit(1).scalar_subquery(), 0)
    + bindparam("size", type_=BigInteger())
)


def add_event(session: Session, job: Job | Row[Any], moment: datetime) -> None:
    """Keeps a job as it has become, in the transaction that has changed its row; removes earlier
    events that are too many. `job` has the columns TOLD."""
    told = {name: getattr(job, name) for name in _CHANGING}
    document = json.dumps(
        {name: value for name, value in told.items() if value is not None},
        default=datetime.isoformat,
        separators=(",", ":"),
    )
    row = {"job": job.id, "version": job.version, "moment": moment, "document": document}
    session.connection().execute(_ADD, {**row, "whose": job.id, "size": len(document)})
    if job.version % _PRUNED == 0 or len(document) > _LARGE:
        _prune(session, job.id, job.version)


def _prune(session: Session, job: UUID, newest: int) -> None:
    total = select(JobEvent.total).where(JobEvent.job == job, JobEvent.version == newest)
    before = JobEvent.total - func.length(JobEvent.document)  # in bytes: it is ASCII
    surplus = or_(
        JobEvent.version <= newest - MOST_EVENTS,
        before < total.scalar_subquery() - MOST_BYTES,
    )
    gone = delete(JobEvent).where(JobEvent.job == job, JobEvent.version < newest, surplus)
    session.execute(gone.execution_options(synchronize_session=False))


def events_from(session: Session, first: Mapping[UUID, int]) -> dict[UUID, Sequence[JobEvent]]:
    """The kept events of jobs from a version of each on, in the order of their versions; without
    the jobs that have none."""
    found: dict[UUID, list[JobEvent]] = {}
    if first:
        columns = column("job", Uuid()), column("first", Integer())
        wanted = values(*columns, name="wanted").data(list(first.items())).cte()
        known = and_(JobEvent.job == wanted.c.job, JobEvent.version >= wanted.c.first)
        query = select(JobEvent).join(wanted, known).order_by(JobEvent.job, JobEvent.version)
        for event in session.scalars(query):
            found.setdefault(event.job, []).append(event)
    return dict(found)


def as_they_were(job: Job, events: Iterable[JobEvent]) -> list[tuple[Job, datetime]]:
    """A job as it was at each of some events of it, without its report, and when that was."""
    lasting = {name: getattr(job, name) for name in _LASTING}
    return [(_as_it_was(lasting, event), event.moment) for event in events]


def _as_it_was(lasting: Mapping[str, Any], event: JobEvent) -> Job:
    told = json.loads(event.document)
    moments = {n: datetime.fromisoformat(told[n]) for n in _MOMENTS if n in told}
    empty = dict.fromkeys(_CHANGING)
    return Job(**{**empty, **lasting, **told, **moments, "version": event.version})
