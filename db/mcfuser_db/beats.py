"""Which workers are alive, wherever they run: each notes every BEAT seconds that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from mcfuser_db.models import Job, WorkerBeat
from mcfuser_db.store import Storage

BEAT = 10.0
"""Seconds between two notes of a worker."""
SILENT = 35.0
"""Seconds after which a worker without a note counts as dead: three notes, and clocks that differ
by a few seconds."""
_FORGOTTEN = 86400.0  # seconds after which a dead worker's note is removed


@dataclass(frozen=True, slots=True)
class Backlog:
    """For how many seconds the oldest queued job has waited since it was posted, and the oldest
    running one has run; 0 where there is none."""

    queued: float
    running: float


def note_beat(store: Storage, name: str, revision: str, started: datetime) -> None:
    """Notes that a worker, which began at `started`, is alive now; `revision` is its code's."""
    now = store.now()
    old = delete(WorkerBeat).where(WorkerBeat.seen < now - timedelta(seconds=_FORGOTTEN))
    with store.writing() as session:
        session.merge(WorkerBeat(name=name, revision=revision, started=started, seen=now))
        session.execute(old.execution_options(synchronize_session=False))


def forget_beat(store: Storage, name: str) -> None:
    """Notes that a worker has ended."""
    with store.writing() as session:
        session.execute(delete(WorkerBeat).where(WorkerBeat.name == name))


def living_workers(store: Storage) -> Sequence[WorkerBeat]:
    """The workers that have been alive within SILENT seconds, by name."""
    since = store.now() - timedelta(seconds=SILENT)
    query = select(WorkerBeat).where(WorkerBeat.seen >= since).order_by(WorkerBeat.name)
    with store.reading() as session:
        return session.scalars(query).all()


def backlog(store: Storage) -> Backlog:
    """How long the oldest jobs have waited, and have run."""
    with store.reading() as session:
        queued = session.scalar(select(func.min(Job.created)).where(Job.state == "queued"))
        running = session.scalar(select(func.min(Job.started)).where(Job.state == "running"))
    return Backlog(_since(store, queued), _since(store, running))


def _since(store: Storage, moment: datetime | None) -> float:
    return max(0.0, (store.now() - moment).total_seconds()) if moment is not None else 0.0
