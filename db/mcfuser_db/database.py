"""One database, and the transactions of whoever reads or writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, configure_mappers, sessionmaker

from mcfuser_db.engine import connect, upgrade, writing
from mcfuser_db.models import Base

StorageError = SQLAlchemyError
"""Is raised by every method where the database does not answer."""
RACES = 10
"""Attempts at a row that other processes change."""
PAUSE = 0.02
"""Seconds between the transactions of a long removal. Those who wait for SQLite's lock ask for it
now and then: without a pause the next transaction would have it again before they do."""


def insert(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """An insertion in the words of the session's database, which can say what is to be done where
    the row is there already."""
    made: Mapping[str, Callable[..., sqlite.Insert | postgresql.Insert]] = {
        "sqlite": sqlite.insert, "postgresql": postgresql.insert,
    }  # fmt: skip
    return made[session.get_bind().dialect.name](table)


class Database:
    """A database that any number of processes may open, and the clock that dates its rows."""

    def __init__(
        self, url: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC), attempts: int = 3
    ) -> None:
        """Opens the database and runs its migrations; raises InputError where this fails.

        `attempts` is the number of times that a job is tried.
        """
        engine = connect(url)
        upgrade(engine)
        configure_mappers()  # takes 3 ms, once
        self._engine = engine
        self._read = sessionmaker(engine, expire_on_commit=False)
        self._write = sessionmaker(writing(engine), expire_on_commit=False)
        self._now = clock
        self._attempts = attempts

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> AbstractContextManager[Session]:
        """A session that reads."""
        return self._read()

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that writes."""
        return self._write.begin()

    def now(self) -> datetime:
        return self._now()

    def _later(self, seconds: float) -> datetime:
        return self._now() + timedelta(seconds=seconds)
