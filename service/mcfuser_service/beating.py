"""A thread of a worker that notes in the database, all the time, that the worker is alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mcfuser.revision import revision
from mcfuser_db import Storage, StorageError
from mcfuser_db.beats import BEAT, forget_beat, note_beat
from mcfuser_service.background import in_background

log = logging.getLogger(__name__)


@contextmanager
def beating(store: Storage, name: str, every: float = BEAT) -> Iterator[None]:
    """Notes every so many seconds that the worker `name` is alive while the block runs, and at its
    end that it is not. A database that does not answer is left to the worker, which says so in the
    log."""
    name, started = name[:200], store.now()

    def beat(over: threading.Event) -> None:
        while True:
            try:
                note_beat(store, name, revision()[:100], started)
            except StorageError as failed:
                log.debug("the worker's life is not noted: %s", failed)
            if over.wait(every):
                return

    try:
        with in_background("heartbeat", beat):
            yield
    finally:
        try:
            forget_beat(store, name)
        except StorageError as failed:  # it is taken for dead soon
            log.debug("the worker's end is not noted: %s", failed)
