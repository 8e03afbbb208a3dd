"""A job that a worker has claimed: a thread renews its lease, and writes its progress and log."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, assert_never

from mcfuser.tune.progress import Note, Progress
from mcfuser_db import Job, LogLine, Storage, StorageError, is_full
from mcfuser_service.figures import JobFigures
from mcfuser_service.outage import Outage
from mcfuser_service.problems import problem
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

_BEAT = 0.25  # seconds between two checks, in which a cancelled job is noticed
_WRITE = 0.5  # seconds between two writes of progress
_RENEW = 2.0  # seconds between two renewals without progress
_AGAIN = 0.5  # seconds between two attempts to write a result


class Interrupted(BaseException):
    """The compile must stop. It is a BaseException, so that no `except Exception` counts it as a
    failed attempt."""


class Claim:
    """Holds a job while the `with` block runs.

    The next call of `listen` raises Interrupted when the claim is lost, `stop` is set, or the
    job's time is over. If the block does not call it within the settings' `grace`, it hangs in code
    that Python cannot interrupt, and `abort` is called.
    """

    def __init__(
        self,
        store: Storage,
        job: Job,
        settings: ServiceSettings,
        stop: threading.Event,
        abort: Callable[[], None],
    ) -> None:
        assert job.claim is not None
        self.token = job.claim
        self.figures = JobFigures()
        self._store = store
        self._job = job
        self._settings = settings
        self._stop = stop
        self._abort = abort
        self._latest = Progress("starting")
        self._lines: list[LogLine] = []
        self._writing = threading.Lock()
        self._outage = Outage(log, f"job {job.id}")
        self._over = threading.Event()
        self._interrupted = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"claim {job.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        try:  # what could not be written while the claim was held
            self._store.note_lines(self._job.id, self._lines)
        except StorageError as failed:
            log.warning("log not written: %s", failed, extra={"job": self._job.id})

    def listen(self, told: Progress | Note) -> None:
        """Notes what the compiler tells, which may call it often, since it does not access the
        database. Each new stage becomes a line of the job's log."""
        match told:
            case Progress():
                before, self._latest = self._latest, told
                self.figures.enter(told.stage)
                if str(told) != str(before):
                    self._note(f"{told}: {told.chain.name}" if told.chain else str(told))
            case Note():
                self._note(told.words)
            case _:
                assert_never(told)
        self.check()

    def flush(self) -> None:
        """Writes the last progress and the log, if the thread has not yet done so."""
        self._renew(self._latest)

    def check(self) -> None:
        """Raises Interrupted if the compile must stop."""
        if self._must_stop():
            raise Interrupted

    def written(self, write: Callable[[], bool]) -> bool:
        """Has `write` keep how the attempt ended; gives whether the claim was valid then.

        Where the database does not answer, it is asked again for as long as a lease lasts, so that
        a short outage costs a job no second compile. Raises StorageError where that was not enough,
        at once where the disk is full, and where the claim is lost or `stop` is set meanwhile.
        """
        outage, end = Outage(log, f"the result of job {self._job.id}"), math.inf
        while True:
            try:
                kept = write()
            except StorageError as error:
                outage.failed(error)
                end = min(end, time.monotonic() + self._settings.lease)
                if is_full(error) or self._must_stop() or time.monotonic() + _AGAIN > end:
                    raise
                self._stop.wait(_AGAIN)
            else:
                outage.over()
                return kept

    def _must_stop(self) -> bool:
        return self._interrupted.is_set() or self._stop.is_set()

    def _beat(self) -> None:
        begun = renewed = time.monotonic()
        ending: float | None = None
        written: Progress | None = None
        while not self._over.wait(_BEAT):
            now = time.monotonic()
            if ending is None and now - begun > self._settings.job_timeout:
                self._time_out()
            elif ending is None and now - renewed > (_RENEW if self._latest == written else _WRITE):
                changed = self._latest if self._latest != written else None
                written, renewed = self._latest, now
                self._renew(changed)
            elif ending is None:
                self._look()
            if ending is None and self._must_stop():
                ending = now
            if ending is not None and now - ending > self._settings.grace:
                log.error("job hangs; ending its worker", extra={"job": self._job.id})
                self._abort()
                return

    def _note(self, words: str) -> None:
        self._lines.append(LogLine(datetime.now(UTC), words))

    def _renew(self, progress: Progress | None) -> None:
        with self._writing:
            lines = tuple(self._lines)
            try:
                if self._store.renew(self.token, self._settings.lease, progress, lines):
                    del self._lines[: len(lines)]
                else:
                    self._interrupted.set()
                self._outage.over()
            except StorageError as error:  # the lease outlasts a short outage
                self._outage.failed(error)

    def _look(self) -> None:
        try:
            if not self._store.held(self.token):
                self._interrupted.set()
            self._outage.over()
        except StorageError as error:
            self._outage.failed(error)

    def _time_out(self) -> None:
        limit = self._settings.job_timeout
        detail = (
            f"the job was not done after {limit:g} s; ask for fewer trials or a shorter timeout"
        )
        try:
            self._store.fail(self.token, problem("timed-out", detail))
        except StorageError as error:
            log.warning("time-out not written: %s", error, extra={"job": self._job.id})
        self._interrupted.set()
