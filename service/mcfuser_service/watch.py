"""One loop over the database for all clients that wait for jobs to change."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import anyio.to_thread

from mcfuser_db import Job, Storage, StorageError
from mcfuser_service.missed import JobSnapshot, follows, replayed
from mcfuser_service.outage import Outage

log = logging.getLogger(__name__)

_LOOK = 0.25  # seconds between two looks at the database while anyone waits
_TOGETHER = 500  # jobs that are asked for in one query
_RECENT = 64  # snapshots of a job that are held for all who follow it


@dataclass(eq=False)
class Follower:
    """Someone who waits for a job: the last snapshots of it, in the order of their versions, which
    all who wait for it share, and what wakes them."""

    recent: deque[JobSnapshot]
    ended: bool = False
    """The job has been removed, or the server stops."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def latest(self) -> JobSnapshot | None:
        return self.recent[-1] if self.recent else None

    async def after(self, version: int, seconds: float) -> Sequence[JobSnapshot]:
        """The snapshots of the job that are newer than a version, as soon as there are any; none
        where there are none within so many seconds, or the follower has ended.

        Only the last ones are held: where the first of them is not of the next version, others were
        missed, which the store may have (service.missed).
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                while not (self.ended or self._newer(version)):
                    self.woken.clear()
                    await self.woken.wait()
        return self._newer(version)

    def _newer(self, version: int) -> Sequence[JobSnapshot]:
        return [snapshot for snapshot in self.recent if snapshot.version > version]


class JobWatch:
    """Looks at the jobs that anyone waits for, with one query for all of them, and wakes who waits
    for those that have changed. It does nothing while nobody waits."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._followers: dict[UUID, set[Follower]] = {}
        self._recent: dict[UUID, deque[JobSnapshot]] = {}
        self._thread = anyio.CapacityLimiter(1)
        self._outage = Outage(log, "those who wait for jobs")
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """Ends all waits soon, because the server stops; any thread or signal handler may call
        it."""
        self._closed = True

    @contextmanager
    def following(self, id: UUID) -> Iterator[Follower]:
        """Follows a job while the block runs, in a coroutine. What changes after the block has
        begun is not missed."""
        recent = self._recent.setdefault(id, deque(maxlen=_RECENT))
        follower = Follower(recent, self._closed)
        self._followers.setdefault(id, set()).add(follower)
        self._start()
        try:
            yield follower
        finally:
            others = self._followers[id]
            others.discard(follower)
            if not others:
                del self._followers[id]
                del self._recent[id]

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = loop.create_task(self._look())

    async def _look(self) -> None:
        while self._followers and not self._closed:
            known = {id: recent[-1].job if recent else None for id, recent in self._recent.items()}
            try:
                changed, gone = await anyio.to_thread.run_sync(
                    partial(self._changed, known), limiter=self._thread
                )
            except StorageError as error:  # the next look may be answered
                self._outage.failed(error)
            else:
                self._outage.over()
                self._publish(changed, gone)
            await asyncio.sleep(_LOOK)
        if self._closed:
            self._end(list(self._followers))

    def _changed(
        self, known: Mapping[UUID, Job | None]
    ) -> tuple[Mapping[UUID, Sequence[JobSnapshot]], Collection[UUID]]:
        """What has become of jobs since they were as they are known, and those that are gone."""
        changed: dict[UUID, Sequence[JobSnapshot]] = {}
        found: set[UUID] = set()
        every = list(known)
        for first in range(0, len(every), _TOGETHER):
            versions = self._store.versions(every[first : first + _TOGETHER])
            found |= set(versions)
            stale = {id: known[id] for id, v in versions.items() if v != _version(known[id])}
            if stale:
                changed |= self._since(stale)
        return changed, set(known) - found

    def _since(self, known: Mapping[UUID, Job | None]) -> Mapping[UUID, Sequence[JobSnapshot]]:
        """The events since jobs were as they are known; a job of which nothing is known, or whose
        next event is not kept, as it is."""
        changed: dict[UUID, Sequence[JobSnapshot]] = {}
        seen = {id: job for id, job in known.items() if job is not None}
        events = self._store.events({id: job.version + 1 for id, job in seen.items()})
        for id, kept in events.items():
            snapshots = replayed(seen[id], kept)
            if follows(seen[id].version, snapshots):
                changed[id] = snapshots
        others = [id for id in known if id not in changed]
        if others:
            changed |= {job.id: [JobSnapshot(job)] for job in self._store.snapshots(others)}
        return changed

    def _publish(
        self, changed: Mapping[UUID, Sequence[JobSnapshot]], gone: Collection[UUID]
    ) -> None:
        for id, snapshots in changed.items():
            if (recent := self._recent.get(id)) is not None:
                if recent and snapshots[0].version <= recent[-1].version:
                    recent.clear()  # the database is an older one now
                recent.extend(snapshots)
                for follower in self._followers[id]:
                    follower.woken.set()
        self._end(gone)

    def _end(self, ids: Collection[UUID]) -> None:
        for id in ids:
            for follower in self._followers.get(id, ()):
                follower.ended = True
                follower.woken.set()


def _version(job: Job | None) -> int:
    return job.version if job is not None else 0
