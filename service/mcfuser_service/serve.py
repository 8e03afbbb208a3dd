"""`mcfuser serve`: runs the web server and its worker processes until it is stopped."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from mcfuser.errors import InputError
from mcfuser_db import Blobs, Storage
from mcfuser_db.private import make_file, make_folder, warn_if_open
from mcfuser_service import logs
from mcfuser_service.app import create_app
from mcfuser_service.attestation import signing_key
from mcfuser_service.delivery import Deliverer
from mcfuser_service.hosts import is_loopback
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.supervisor import Supervisor
from mcfuser_service.sweeping import Sweeper
from mcfuser_service.watch import JobWatch

log = logging.getLogger(__name__)


LOAD = "mcfuser_service.worker:load_compiler"
"""The name of the function that gives a worker mcfuser's own compiler."""


def serve(
    settings: ServiceSettings, load: str = LOAD, opened: Callable[[str], object] = lambda url: None
) -> None:
    """Serves until SIGINT or SIGTERM.

    `load` names the function that gives the compiler, as `module:function`; workers import it.
    `opened` is called with the server's URL once it listens. Raises InputError where the folder,
    the database, the port or the signing key cannot be used.
    """
    signing_key(settings)  # raises, before anything is started, where it cannot be read
    with _folder(settings), _listening(settings) as listener:
        logs.configure(settings.log_level)
        os.umask(0o077)
        warn_if_open(settings.data)
        if not is_loopback(listener.getsockname()[0]):
            log.warning(
                "whoever reaches this address may post models, cancel jobs and read results: it "
                "asks nobody who they are",
                extra={"host": settings.host},
            )
        store = Storage(settings.database_url)
        blobs = Blobs(settings.blobs)
        blobs.sweep()
        with (
            Supervisor(settings, load, store, _name(settings)) as workers,
            Sweeper(settings, store, blobs),
            Deliverer(settings, store),
        ):
            watch = JobWatch(store)
            app = create_app(settings, store, blobs, workers.alive, watch=watch)
            host, port = listener.getsockname()[:2]
            url = f"http://{_bracketed(host)}:{port}"
            log.info("serving on %s", url, extra={"data": settings.data})
            opened(url)
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=math.ceil(settings.grace),  # for senders that never end
            )
            _run(config, listener, watch)
        store.close()
    log.info("stopped")


class _Server(uvicorn.Server):
    """Ends the requests that wait for jobs as soon as it is told to stop: it waits for all that are
    being answered."""

    def __init__(self, config: uvicorn.Config, watch: JobWatch) -> None:
        super().__init__(config)
        self._watch = watch

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._watch.close()
        super().handle_exit(sig, frame)


def _run(config: uvicorn.Config, listener: socket.socket, watch: JobWatch) -> None:
    """Ignores the signal that Uvicorn raises again, at its end, after it was stopped by it."""

    def done(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    server = _Server(config, watch)
    before = {n: signal.signal(n, done) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _folder(settings: ServiceSettings) -> Iterator[None]:
    """Locks the data folder: one server per machine may use it, since its workers' names depend on
    it."""
    path = settings.data / f"serve-{socket.gethostname()}.lock"
    try:
        make_folder(settings.data)
        make_file(path)
        file = path.open("a+")
    except OSError as error:
        raise InputError(
            f"data folder {settings.data} cannot be written: {error.strerror}; "
            "set MCFUSER_DATA to one that can"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"data folder {settings.data} is served by another mcfuser serve already; "
                "stop that one or set MCFUSER_DATA to another folder"
            ) from None
        yield


@contextmanager
def _listening(settings: ServiceSettings) -> Iterator[socket.socket]:
    where = f"{_bracketed(settings.host)}:{settings.port}"
    try:
        family, *_, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        _check_reach(str(address[0]), settings)
        listener = socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise InputError(f"cannot listen on {where}: {reason}; give another host or port") from None
    with listener:
        yield listener


def _check_reach(address: str, settings: ServiceSettings) -> None:
    if settings.insecure or is_loopback(address):
        return
    raise InputError(
        f"host {settings.host} is reached from other machines, and the server would let anyone who "
        "comes through use it: listen on 127.0.0.1 behind a proxy that has a login, or say "
        "--insecure (MCFUSER_INSECURE=1) where everyone who reaches it may use it"
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _name(settings: ServiceSettings) -> str:
    """A name that is equal at every start on this machine with this folder, and nowhere else."""
    if settings.worker_name:
        return settings.worker_name
    folder = hashlib.sha256(os.fsencode(settings.data.resolve())).hexdigest()[:8]
    return f"{socket.gethostname()}:{folder}"
