"""What a worker does while no job waits: it measures stale kernels again (mcfuser.tune.age)."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from mcfuser.process.confined import Limits, Stopped, run
from mcfuser_db import Storage, StorageError
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

AGAIN = 3600.0
"""Seconds until stale kernels are looked for again: most are made by an upgrade, and then a worker
is started anew."""
KERNEL_SECONDS = 60.0
"""Seconds that building and measuring one kernel may take."""
_WATCH = 1.0  # seconds between two looks for a job, while kernels are measured


class JobWaits(Exception):
    """A job waits, or the worker is to stop."""


@dataclass
class IdleTime:
    """Counts how long no job was there, and uses that time."""

    settings: ServiceSettings
    store: Storage
    stop: threading.Event
    module: str = "mcfuser_service.refresh_child"
    since: float = field(default_factory=time.monotonic)
    looked: float = 0.0

    def ended(self) -> None:
        """A job was there: the time is counted anew."""
        self.since = time.monotonic()

    def use(self) -> None:
        """Measures stale kernels again, if no job was there for `refresh_after` seconds.

        It is done in a process of its own, which is ended as soon as a job waits. What was measured
        by then is kept.
        """
        wait = self.settings.refresh_after
        if not wait or time.monotonic() - max(self.since, self.looked) < wait:
            return
        request = {"store": self.settings.database_url, "seconds": KERNEL_SECONDS}
        try:
            done = run(
                self.module, request, Limits(memory=self.settings.job_memory), check=self._check()
            )
            if done["refreshed"]:
                log.info("measured stale kernels again", extra={"kernels": done["refreshed"]})
        except JobWaits:
            self.since = time.monotonic()
            return
        except Stopped as stopped:
            log.warning("stale kernels were not measured again: %s", stopped)
        self.looked = time.monotonic() + AGAIN - wait

    def _check(self) -> Watch:
        return Watch(self.store, self.stop)


@dataclass
class Watch:
    """Raises JobWaits once a job waits, or `stop` is set; the database is asked once a second."""

    store: Storage
    stop: threading.Event
    last: float = 0.0

    def __call__(self) -> None:
        if self.stop.is_set():
            raise JobWaits
        if time.monotonic() - self.last < _WATCH:
            return
        self.last = time.monotonic()
        try:
            waiting = self.store.jobs("queued", 1)
        except StorageError:
            raise JobWaits from None
        if waiting:
            raise JobWaits
