"""`mcfuser serve`: runs the web server and its worker processes until it is stopped."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcfuser.errors import InputError
from mcfuser_db import Blobs, Storage
from mcfuser_db.api_keys import api_keys
from mcfuser_db.engine import SilentDatabase
from mcfuser_db.private import make_file, make_folder, warn_if_open
from mcfuser_service import logs
from mcfuser_service.access import wants_keys
from mcfuser_service.app import create_app
from mcfuser_service.attestation import signing_key
from mcfuser_service.delivery import delivering
from mcfuser_service.hosts import is_loopback
from mcfuser_service.running import awaited, run, server_of
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.supervisor import Supervisor
from mcfuser_service.sweeping import sweeping
from mcfuser_service.watch import JobWatch

log = logging.getLogger(__name__)


_BACKLOG = 1024
"""Connections that wait to be accepted: one that is refused a place tries again after a second."""
LOAD = "mcfuser_service.worker:load_compiler"
"""The name of the function that gives a worker mcfuser's own compiler."""


def serve(
    settings: ServiceSettings, load: str = LOAD, opened: Callable[[str], object] = lambda url: None
) -> None:
    """Serves until SIGINT or SIGTERM; waits for a database server that does not answer.

    `load` names the function that gives the compiler, as `module:function`; workers import it.
    `opened` is called with the server's URL once it listens. Raises InputError where the folder,
    the database, the port or the signing key cannot be used.
    """
    signing_key(settings)  # raises, before anything is started, where it cannot be read
    with _folder(settings), _listening(settings) as listener:
        logs.configure(settings.log_level)
        os.umask(0o077)
        warn_if_open(settings.data)
        near = is_loopback(listener.getsockname()[0])
        store = _opened(settings, listener, lambda store: _warn_of_keys(settings, store, near))
        if store is None:
            log.info("stopped")
            return
        blobs = Blobs(settings.blobs)
        blobs.sweep()
        with (
            Supervisor(settings, load, store, _name(settings)) as workers,
            sweeping(settings, store, blobs),
            delivering(settings, store),
        ):
            watch = JobWatch(store)
            app = create_app(settings, store, blobs, workers.alive, watch=watch)
            url = _url(listener)
            log.info("serving on %s", url, extra={"data": settings.data})
            opened(url)
            run(server_of(app, settings.grace, watch.close), listener)
        store.close()
    log.info("stopped")


def _opened(
    settings: ServiceSettings, listener: socket.socket, prepare: Callable[[Storage], object]
) -> Storage | None:
    """The database; None where the server is stopped while it waits for that."""
    try:
        store = Storage(settings.database_url)
    except SilentDatabase:
        return awaited(settings, listener, prepare)
    prepare(store)
    return store


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{_bracketed(host)}:{port}"


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
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        # Its connections inherit this. An answer is two writes, its head and its body: without it
        # the second may wait 40 ms for the client to acknowledge the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise InputError(f"cannot listen on {where}: {reason}; give another host or port") from None
    with listener:
        yield listener


def _check_reach(address: str, settings: ServiceSettings) -> None:
    """Refuses settings under which it is unclear who needs a key."""
    if settings.insecure and settings.require_key:
        raise InputError(
            "MCFUSER_INSECURE lets everyone in and MCFUSER_REQUIRE_KEY nobody without a key: set "
            "one of them"
        )
    if not is_loopback(address) and not (settings.insecure or wants_keys(settings)):
        raise InputError(
            f"host {settings.host} is called as loopback is, but {address} is reached from other "
            "machines: set MCFUSER_REQUIRE_KEY=1, or MCFUSER_HOST to an address"
        )


def _warn_of_keys(settings: ServiceSettings, store: Storage, near: bool) -> None:
    """Says in the log that nobody can come in, or that everybody can."""
    if wants_keys(settings):
        now = store.now()
        if not any(
            k.revoked is None and (not k.expires or k.expires > now) for k in api_keys(store)
        ):
            log.warning(
                "no request is let in, for there is no key: mcfuser keys create NAME --scopes "
                "admin makes one"
            )
    elif not near:
        log.warning(
            "whoever reaches this address may post models, cancel jobs and read results: it "
            "asks nobody for a key",
            extra={"host": settings.host},
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _name(settings: ServiceSettings) -> str:
    """A name that is equal at every start on this machine with this folder, and nowhere else."""
    if settings.worker_name:
        return settings.worker_name
    folder = hashlib.sha256(os.fsencode(settings.data.resolve())).hexdigest()[:8]
    return f"{socket.gethostname()}:{folder}"
