"""Keeps the data folder within its limits while the server runs (mcfuser_db.retention)."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from mcfuser_db import Blobs, Storage, StorageError
from mcfuser_db.retention import Keep, Swept, sweep, sweep_orphans
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

_EVERY = 60.0  # seconds between two sweeps
_DAY = 86400.0  # seconds between two searches for files that no job refers to


class Sweeper:
    """Removes old results while the `with` block runs; does nothing where no limit is set."""

    def __init__(self, settings: ServiceSettings, store: Storage, blobs: Blobs) -> None:
        self._keep = Keep(settings.keep_age, settings.keep_bytes)
        self._store, self._blobs = store, blobs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def __enter__(self) -> Self:
        if self._keep.age is not None or self._keep.size is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        searched = -_DAY
        while not self._stop.is_set():
            try:
                swept = sweep(self._store, self._blobs, self._keep)
                if time.monotonic() - searched >= _DAY:
                    swept += sweep_orphans(self._store, self._blobs)
                    searched = time.monotonic()
                if swept != Swept():
                    log.info("removed", extra={"jobs": swept.jobs, "bytes": swept.freed})
            except (StorageError, OSError) as error:  # the next sweep may succeed
                log.warning("old results not removed: %s", error)
            self._stop.wait(_EVERY)
