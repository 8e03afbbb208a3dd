"""How long a job took, stage by stage, and what the cache had for it: added to what all workers
have counted (mcfuser_db.figures)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcfuser_db import Job, Storage, StorageError
from mcfuser_db.figures import Figure, add_figures, timed

log = logging.getLogger(__name__)

ATTEMPTS, STAGES, JOBS, QUEUED, LOOKUPS = "attempts", "stages", "jobs", "queued", "lookups"
"""The names of what is counted: ends of attempts; and the seconds of their stages, of jobs that are
done, and of their time in the queue; answers of the cache."""
_OVER = "done"


@dataclass
class JobFigures:
    """The seconds of each stage of one attempt, and how often the cache answered what."""

    cache: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    _stage: str = "start"
    _since: float = field(default_factory=time.monotonic)

    def enter(self, stage: str) -> None:
        """A stage begins, which may be the one that it is in."""
        if stage == self._stage:
            return
        now = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def keep(self, store: Storage, job: Job, ended: str) -> None:
        """Adds the figures of an attempt at a job, which ended so. They are lost where the database
        does not answer."""
        self.enter("")
        try:
            add_figures(store, self._figures(job, ended))
        except StorageError as error:
            log.debug("the figures of an attempt are lost: %s", error, extra={"job": job.id})

    def _figures(self, job: Job, ended: str) -> Iterator[Figure]:
        yield Figure(ATTEMPTS, ended)
        if ended != "done":
            return
        for stage, seconds in self.seconds.items():
            if stage not in ("", _OVER):
                yield timed(STAGES, stage[:40], seconds)
        yield timed(JOBS, job.device[:40], time.monotonic() - self.begun)
        if job.started is not None and job.attempts == 1:
            yield timed(QUEUED, "", max(0.0, (job.started - job.created).total_seconds()))
        for answer, count in self.cache.items():
            if count > 0:
                yield Figure(LOOKUPS, answer[:40], count=count)
