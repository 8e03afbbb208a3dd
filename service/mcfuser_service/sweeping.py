"""Keeps the data folder within its limits while the server runs (mcfuser_db.retention)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from mcfuser_db import Blobs, Storage, StorageError
from mcfuser_db.retention import Keep, Swept, sweep, sweep_orphans
from mcfuser_service.background import in_background
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

_EVERY = 60.0  # seconds between two sweeps
_DAY = 86400.0  # seconds between two searches for files that no job refers to


@contextmanager
def sweeping(settings: ServiceSettings, store: Storage, blobs: Blobs) -> Iterator[None]:
    """Removes old results while the block runs; does nothing where no limit is set."""
    keep = Keep(settings.keep_age, settings.keep_bytes, settings.keep_rows)
    if keep.age is None and keep.size is None:
        yield
        return
    with in_background("sweeper", partial(_sweep, store, blobs, keep)):
        yield


def _sweep(store: Storage, blobs: Blobs, keep: Keep, over: threading.Event) -> None:
    searched = -_DAY
    while not over.is_set():
        try:
            swept = sweep(store, blobs, keep)
            if time.monotonic() - searched >= _DAY:
                swept += sweep_orphans(store, blobs)
                searched = time.monotonic()
            if swept != Swept():
                told = {"jobs": swept.jobs, "bytes": swept.freed, "rows": swept.rows}
                log.info("removed", extra=told)
        except (StorageError, OSError) as error:  # the next sweep may succeed
            log.warning("old results not removed: %s", error)
        over.wait(_EVERY)
