"""Opens the database, and waits for one that does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mcfuser_db import Storage, StorageError
from mcfuser_db.engine import SilentDatabase
from mcfuser_service.outage import Outage

log = logging.getLogger(__name__)


def opened(
    url: str,
    what: str,
    stop: threading.Event,
    prepare: Callable[[Storage], object] = lambda store: None,
) -> Storage | None:
    """The database, once it answers and has been prepared; None where `stop` is set before that.

    `what` is who waits, for the log. A SQLite file that cannot be opened is not waited for. Raises
    InputError where the database cannot be used however long one waits.
    """
    outage = Outage(log, what)
    while not stop.is_set():
        try:
            store = Storage(url)
            try:
                prepare(store)
            except StorageError:
                store.close()
                raise
        except (SilentDatabase, StorageError) as error:
            stop.wait(outage.failed(error))
        else:
            outage.over()
            return store
    return None
