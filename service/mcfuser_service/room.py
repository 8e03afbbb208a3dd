"""Postpones jobs while the disk is full or the database does not answer: no attempt is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import UUID

from mcfuser_db import Job, Storage, StorageError, is_full

log = logging.getLogger(__name__)

FULL = "waiting: the disk is full"
SILENT = "waiting: the database does not answer"
WAIT = 30.0
"""Seconds until a postponed job is tried again."""
_PAUSE = 1.0  # seconds between two attempts to write that a job waits


def claimed(store: Storage, name: str, lease: float) -> Job | None:
    """Claims the next job; None where there is none, or the database does not answer."""
    try:
        return store.claim(name, lease)
    except StorageError as error:
        log.warning("no job can be claimed: %s", _reason(error), extra={"worker": name})
        return None


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
        log.error("%s: %s", stage, _reason(error))
    while True:
        try:
            return "postponed" if store.postpone(claim, WAIT, stage) else "lost"
        except StorageError as error:
            log.warning("job cannot be put back yet: %s", _reason(error))
        if stop.wait(_PAUSE):
            return "left"


def _reason(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(error).__name__])[0]
