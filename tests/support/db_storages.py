"""The databases that the storage contract is run over, and what other processes do to them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text

from mcfuser.tune.progress import Progress
from mcfuser_db import Storage
from tests.support.db_server import Missing, server

STORAGES = ("file", "memory", "postgresql")


@contextmanager
def fresh(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if kind == "memory":
        yield "sqlite://"
    elif kind == "file":
        yield f"sqlite:///{folder / 'mcfuser.db'}"
    else:
        try:
            where = server()
        except Missing as missing:
            pytest.skip(str(missing))
        name = f"mcfuser_{uuid4().hex}"
        engine = create_engine(where, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield make_url(where).set(database=name).render_as_string(hide_password=False)
        finally:
            with engine.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
            engine.dispose()


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
