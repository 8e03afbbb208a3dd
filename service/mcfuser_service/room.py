"""Postpones jobs while the disk is full or the database does not answer: no attempt is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import UUID

from mcfuser_db import Job, Storage, StorageError, is_full
from mcfuser_service.outage import Outage, reason

log = logging.getLogger(__name__)

FULL = "waiting: the disk is full"
SILENT = "waiting: the database does not answer"
WAIT = 30.0
"""Seconds until a postponed job is tried again."""
_PAUSE = 1.0  # seconds between two attempts to write that a job waits


def claimed(
    store: Storage, name: str, lease: float, outage: Outage, stop: threading.Event
) -> Job | None:
    """Claims the next job; None where there is none, or the database does not answer. Then it has
    waited for a while, or until `stop` is set."""
    try:
        job = store.claim(name, lease)
    except StorageError as error:
        stop.wait(outage.failed(error))
        return None
    outage.over()
    return job


def guarded(attempt: Callable[[], str], store: Storage, claim: UUID, stop: threading.Event) -> str:
    """Runs an attempt; gives how it ended.

    Where the disk is full or the database does not answer, the job is queued again, due later, and
    the attempt does not count.
    """
    try:
        return attempt()
    except Exception as error:
        if not isinstance(error, StorageError) and not is_full(error):
            raise
        stage = FULL if is_full(error) else SILENT
        log.error("%s: %s", stage, reason(error))
    outage = Outage(log, "a job is to be put back")
    while True:
        try:
            ended = "postponed" if store.postpone(claim, WAIT, stage) else "lost"
        except StorageError as error:
            outage.failed(error)
        else:
            outage.over()
            return ended
        if stop.wait(_PAUSE):
            return "left"
