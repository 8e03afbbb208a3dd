"""What someone who was away has missed of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from mcfuser_db import Job, JobEvent, Storage
from mcfuser_db.job_events import as_they_were
from mcfuser_service.schemas import JobOut


class JobSnapshot:
    """A job as it was at a moment (now, where that is None), without its report; its JSON is made
    once for all who follow it."""

    def __init__(self, job: Job, moment: datetime | None = None) -> None:
        self.job = job
        self.moment = moment

    @property
    def version(self) -> int:
        return self.job.version

    @cached_property
    def json(self) -> str:
        return JobOut.of(self.job, whole=False, moment=self.moment).model_dump_json()


@dataclass(frozen=True, slots=True)
class Missed:
    """What became of a job after one of its versions.

    `snapshots` are those of all later versions, in their order. Where some of them are no longer
    kept, the job is `incomplete`: there is one snapshot, of the job as it is, and `oldest` is the
    first version that is kept, None where there is none. `before` is the state of the job at the
    version that was seen, and empty where that is not kept.
    """

    before: str
    snapshots: Sequence[JobSnapshot]
    incomplete: bool = False
    oldest: int | None = None


def missed_since(store: Storage, job: Job, version: int) -> Missed:
    """What became of a job after a version, at least up to the version that `job` has."""
    kept = replayed(job, store.events({job.id: version}).get(job.id, ()))
    before = kept.pop(0).job.state if kept and kept[0].version == version else ""
    if follows(version, kept) and (kept[-1].version if kept else version) >= job.version:
        return Missed(before, kept)
    oldest = kept[0].version if kept else None
    return Missed(before, [JobSnapshot(job)], True, oldest)


def replayed(job: Job, events: Iterable[JobEvent]) -> list[JobSnapshot]:
    """A job as it was at each of some events of it."""
    return [JobSnapshot(was, moment) for was, moment in as_they_were(job, events)]


def follows(version: int, snapshots: Sequence[JobSnapshot]) -> bool:
    """Whether the snapshots are those of the versions that come next after one."""
    return all(s.version == n for n, s in enumerate(snapshots, version + 1))
