"""The databases that the storage contract is run over, and what other processes do to them."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Lock
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from mcfuser.tune.progress import Progress
from mcfuser_db import Storage
from mcfuser_db.engine import connect, upgrade
from tests.support.db_server import Missing, server

STORAGES = ("file", "memory", "postgresql")


@contextmanager
def fresh(kind: str, folder: Path, empty: bool = False) -> Iterator[str]:
    """The URL of a database without rows; without tables as well, if it is to be `empty`. A file,
    and one in memory, has no tables until it is opened."""
    if kind == "memory":
        yield "sqlite://"
    elif kind == "file":
        yield f"sqlite:///{folder / 'mcfuser.db'}"
    else:
        try:
            where = server()
        except Missing as missing:
            pytest.skip(str(missing))
        name = _made(where, None if empty else _migrated(where))
        try:
            yield _named(where, name)
        finally:
            _do(where, f"DROP DATABASE {name} WITH (FORCE)")


@cache
def _migrated(where: str) -> str:
    """The name of a database of a server that the migrations were run on, once for many tests."""
    name = _made(where, None)
    engine = connect(_named(where, name))
    upgrade(engine)
    engine.dispose()
    return name


def _made(where: str, like: str | None) -> str:
    """The name of a new database of a server: an empty one, or a copy."""
    name = f"mcfuser_{uuid4().hex}"
    _do(where, f"CREATE DATABASE {name}" + (f" TEMPLATE {like}" if like else ""))
    return name


def _named(where: str, name: str) -> str:
    return make_url(where).set(database=name).render_as_string(hide_password=False)


def _do(where: str, statement: str) -> None:
    engine = create_engine(where, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def upgrade_by_copy(engine: Engine) -> None:
    """In place of mcfuser_db.engine.upgrade: a SQLite database that is new, in memory or a file,
    becomes a copy of one that the migrations were run on."""
    if engine.dialect.name != "sqlite" or not _is_new(engine.url.database):
        upgrade(engine)
        return
    try:
        with _COPYING, engine.connect() as connection:
            _migrated_in_memory().backup(connection.connection.driver_connection)
    except DBAPIError:
        upgrade(engine)  # which says why it cannot be used


def _is_new(name: str | None) -> bool:
    """Whether nothing was ever written to a database of SQLite's."""
    if name in (None, "", ":memory:"):
        return True
    return not name.startswith("file:") and Path(name).is_file() and not Path(name).stat().st_size


_COPYING = Lock()


@cache
def _migrated_in_memory() -> sqlite3.Connection:
    engine = connect("sqlite://")
    upgrade(engine)
    borrowed = engine.raw_connection()
    made = borrowed.driver_connection
    borrowed.detach()  # from its pool, which would close it
    assert isinstance(made, sqlite3.Connection)
    return made


def processes() -> ForkServerContext:
    """How other processes are started: forked from one that has loaded what they run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def claim_all(url: str, name: str, start: Barrier, out: Queue[list[str]]) -> None:
    """Does jobs until none waits; tells which those were. Nobody does a second one before all have
    claimed a first."""
    store = Storage(url)
    start.wait()
    mine: list[str] = []
    while (job := store.claim(name, 3600)) is not None:
        if not mine:
            start.wait()
        mine.append(str(job.id))
        store.renew(job.claim, 3600, Progress("tuning", 1, 2))
        store.finish(job.claim, "c" * 64, 1, {})
    out.put(mine)
    store.close()


def open_store(url: str, start: Barrier) -> None:
    start.wait()
    Storage(url).close()
