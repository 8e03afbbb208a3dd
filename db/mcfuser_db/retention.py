"""Removes the results of jobs that are over: those that are too old, and the oldest where all files
together are too large.

A job itself stays for a while, without its module, report, log and events. The file of a model or
module is removed with the last job that refers to it, and never while it is new: whoever writes one
refers to it soon after.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, exists, or_, select, update

from mcfuser_db.blobs import Blobs
from mcfuser_db.database import PAUSE
from mcfuser_db.models import IS_KEPT, IS_WAITING, OVER, Job, JobEvent, JobLine, Webhook
from mcfuser_db.store import Storage

NEW = 600.0
"""Seconds after which a file that no job refers to is not about to be referred to."""
_BATCH = 100  # jobs that are read at once


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of jobs that are over: their results for `age` seconds after their end, files of
    `size` bytes in all, and jobs for `rows` seconds after their results were removed. None is no
    limit."""

    age: float | None = None
    size: int | None = None
    rows: float | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """How many jobs lost their results, how many bytes of files were removed, and how many jobs."""

    jobs: int = 0
    freed: int = 0
    rows: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.jobs + other.jobs, self.freed + other.freed, self.rows + other.rows)


def sweep(store: Storage, blobs: Blobs, keep: Keep) -> Swept:
    """Removes the results that are too old, then the oldest until the files fit, and then the jobs
    whose results were removed long ago."""
    swept, now = Swept(), store.now()
    if keep.age is not None:
        while some := _oldest(store, now - timedelta(seconds=keep.age)):
            for job in some:
                swept += _remove(store, blobs, job)
            time.sleep(PAUSE)
    if keep.size is not None:
        surplus = sum(size for _, size, _ in blobs.files()) - keep.size
        while surplus > 0 and (some := _oldest(store, now - timedelta(seconds=NEW))):
            for job in some:
                if surplus > 0:
                    removed = _remove(store, blobs, job)
                    surplus -= removed.freed
                    swept += removed
    if keep.rows is not None:
        while rows := _forget(store, now - timedelta(seconds=keep.rows)):
            swept += Swept(rows=rows)
            time.sleep(PAUSE)
    return swept


def sweep_orphans(store: Storage, blobs: Blobs, age: float = 86400.0) -> Swept:
    """Removes the files, older than `age` seconds, that no job refers to: killed processes have
    left them."""
    old = [digest for digest, _, written in blobs.files() if written < time.time() - age]
    return Swept(0, sum(_unlink(store, blobs, digest, age) for digest in old))


def _oldest(store: Storage, before: datetime) -> Sequence[Job]:
    """Some of the jobs that were over before a moment and whose results are kept, oldest first."""
    wanted = select(Job.id, Job.model, Job.module).where(IS_KEPT, Job.finished <= before)
    with store.reading() as session:
        rows = session.execute(wanted.order_by(Job.finished, Job.id).limit(_BATCH)).all()
    return [Job(id=row.id, model=row.model, module=row.module) for row in rows]


def _remove(store: Storage, blobs: Blobs, job: Job) -> Swept:
    """Removes a job's results, unless it is no longer over."""
    over = update(Job).where(Job.id == job.id, Job.state.in_(OVER), Job.removed.is_(None))
    values = {"module": None, "module_bytes": None, "report": None, "attestation": None}
    removed = over.values(removed=store.now(), version=Job.version + 1, **values)
    with store.writing() as session:
        plain = removed.returning(Job.id).execution_options(synchronize_session=False)
        if session.scalar(plain) is None:
            return Swept()
        session.execute(delete(JobLine).where(JobLine.job == job.id))
        session.execute(delete(JobEvent).where(JobEvent.job == job.id))
    digests = {digest for digest in (job.model, job.module) if digest is not None}
    return Swept(1, sum(_unlink(store, blobs, digest, NEW) for digest in digests))


def _forget(store: Storage, before: datetime) -> int:
    """Removes some of the jobs whose results were removed before a moment, with all that hangs on
    them; a job of which an address is still to be told stays."""
    old = (Job.removed.is_not(None), Job.removed <= before, Job.state.in_(OVER))
    told = ~exists().where(Webhook.job == Job.id, IS_WAITING)
    some = select(Job.id).where(*old, told).order_by(Job.removed, Job.id).limit(_BATCH)
    with store.writing() as session:
        gone = delete(Job).where(Job.id.in_(some), *old).returning(Job.id)
        plain = gone.execution_options(synchronize_session=False)
        return len(session.scalars(plain).all())


def _unlink(store: Storage, blobs: Blobs, digest: str, age: float) -> int:
    """Removes a file older than `age` seconds that no job refers to; gives its bytes."""
    refers = or_(and_(Job.model == digest, Job.removed.is_(None)), Job.module == digest)
    with store.reading() as session:
        if session.scalar(select(Job.id).where(refers).limit(1)) is not None:
            return 0
    return blobs.remove(digest, age)
