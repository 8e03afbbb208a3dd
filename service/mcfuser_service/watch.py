"""One loop over the database for all clients that wait for jobs to change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from uuid import UUID

import anyio.to_thread

from mcfuser_db import Job, Storage, StorageError
from mcfuser_service.outage import Outage
from mcfuser_service.schemas import JobOut

log = logging.getLogger(__name__)

_LOOK = 0.25  # seconds between two looks at the database while anyone waits
_TOGETHER = 500  # jobs that are asked for in one query


class JobSnapshot:
    """A job as it was, without its report; its JSON is made once for all who wait for it."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def version(self) -> int:
        return self.job.version

    @cached_property
    def json(self) -> str:
        return JobOut.of(self.job, whole=False).model_dump_json()


@dataclass(eq=False)
class Follower:
    """Someone who waits for a job: what was seen last, and what wakes them."""

    latest: JobSnapshot | None
    ended: bool = False
    """The job has been removed, or the server stops."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def after(self, version: int, seconds: float) -> JobSnapshot | None:
        """The newest snapshot of the job that is newer than a version; None where there is none
        within so many seconds, or the follower has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                while not (self.ended or self._newer(version)):
                    self.woken.clear()
                    await self.woken.wait()
        return self.latest if self._newer(version) else None

    def _newer(self, version: int) -> bool:
        return self.latest is not None and self.latest.version > version


class JobWatch:
    """Looks at the jobs that anyone waits for, with one query for all of them, and wakes who waits
    for those that have changed. It does nothing while nobody waits."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._followers: dict[UUID, set[Follower]] = {}
        self._latest: dict[UUID, JobSnapshot] = {}
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
        follower = Follower(self._latest.get(id), self._closed)
        self._followers.setdefault(id, set()).add(follower)
        self._start()
        try:
            yield follower
        finally:
            others = self._followers[id]
            others.discard(follower)
            if not others:
                del self._followers[id]
                self._latest.pop(id, None)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = loop.create_task(self._look())

    async def _look(self) -> None:
        while self._followers and not self._closed:
            known = {
                id: self._latest[id].version if id in self._latest else 0 for id in self._followers
            }
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

    def _changed(self, known: Mapping[UUID, int]) -> tuple[Sequence[Job], Collection[UUID]]:
        """Jobs whose versions are no longer the known ones, and those that are gone."""
        changed: list[Job] = []
        found: set[UUID] = set()
        every = list(known)
        for first in range(0, len(every), _TOGETHER):
            versions = self._store.versions(every[first : first + _TOGETHER])
            found |= set(versions)
            stale = [id for id, version in versions.items() if version != known[id]]
            if stale:
                changed += self._store.snapshots(stale)
        return changed, set(known) - found

    def _publish(self, changed: Sequence[Job], gone: Collection[UUID]) -> None:
        for job in changed:
            if job.id in self._followers:
                snapshot = self._latest[job.id] = JobSnapshot(job)
                for follower in self._followers[job.id]:
                    follower.latest = snapshot
                    follower.woken.set()
        self._end(gone)

    def _end(self, ids: Collection[UUID]) -> None:
        for id in ids:
            for follower in self._followers.get(id, ()):
                follower.ended = True
                follower.woken.set()
