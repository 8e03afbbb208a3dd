"""Runs an ASGI application on a socket until it is stopped."""

from __future__ import annotations

import logging
import math
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from mcfuser_db import Storage
from mcfuser_service.opening import opened
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.waiting import waiting_app

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Calls `stopped` as soon as it is told to stop: it waits for all that are being answered."""

    def __init__(self, config: uvicorn.Config, stopped: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopped = stopped

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopped()
        super().handle_exit(sig, frame)


def server_of(app: ASGIApp, grace: float, stopped: Callable[[], None]) -> uvicorn.Server:
    """A server of an application; connections that are open have `grace` seconds when it is told to
    stop, which calls `stopped`, perhaps in a signal handler."""
    config = uvicorn.Config(
        app,
        http="h11",  # whatever is installed: it refuses what is no HTTP
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=math.ceil(grace),  # for senders that never end
    )
    return _Server(config, stopped)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM; ignores the signal that Uvicorn raises again, at its end,
    after it was stopped by it."""

    def done(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {n: signal.signal(n, done) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def awaited(
    settings: ServiceSettings,
    listener: socket.socket,
    prepare: Callable[[Storage], object] = lambda store: None,
) -> Storage | None:
    """The database, once it answers and has been prepared; None where the program is stopped before
    that. Meanwhile requests are answered with 503.

    Raises InputError where the database cannot be used however long one waits.
    """
    stop = Event()
    server = server_of(waiting_app(settings), 1.0, stop.set)

    def look() -> Storage | None:
        try:
            return opened(settings.database_url, "server", stop, prepare)
        finally:
            server.should_exit = True

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(look)
        run(server, listener.dup())  # it closes what it is given
        was_stopped = stop.is_set()
        stop.set()
        store = found.result()
    if store is not None and was_stopped:
        store.close()
        return None
    return store
