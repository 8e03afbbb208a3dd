"""Opens a database and runs its migrations."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    QueuePool,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from mcfuser.errors import InputError
from mcfuser_db.models import Base
from mcfuser_db.private import make_file

if TYPE_CHECKING:  # it is loaded where there is something to migrate, which is seldom
    from alembic.config import Config

_CONNECTIONS = 40
"""The most connections to a SQLite file in one process: one for each thread that answers requests
(anyio has 40). One beyond those that are kept would be opened and closed for a single query."""
_PATIENCE = {"connect_timeout": 5, "tcp_user_timeout": 10_000}
"""What libpq is told unless the URL says otherwise: seconds for a connection, and milliseconds for
which a server may leave unacknowledged what it was sent. Without them a machine that is gone is
waited for a quarter of an hour."""
_BUSY_S = 30
"""Seconds for which a SQLite file that another process has locked is waited for."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_UPGRADE_LOCK = 0x6D636675  # any number that no one else locks: the letters "mcfu"


class SilentDatabase(InputError):
    """The database does not answer, and may do so later."""


def connect(url: str) -> Engine:
    """An engine for a database URL, with transactions that work on SQLite as on PostgreSQL.

    Raises InputError where the URL cannot be parsed or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True, connect_args=_patience(parsed))
        return _sqlite(parsed)
    except (ArgumentError, NoSuchModuleError):
        raise InputError(
            "the database URL cannot be read; write sqlite:///path or postgresql://user@host/name"
        ) from None
    except ModuleNotFoundError as error:
        raise InputError(
            f"the database driver '{error.name}' is not installed; run pip install {error.name}"
        ) from None


def writing(engine: Engine) -> Engine:
    """The engine for transactions that write: they take SQLite's lock when they begin.

    A transaction that reads first and then writes would fail at once, without waiting, where
    another process has written in between.
    """
    return engine.execution_options(begin="BEGIN IMMEDIATE")


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Runs the migrations that are missing, up to a revision; processes that do so at the same time
    wait for each other. A PostgreSQL that was at an earlier revision is vacuumed once it is at
    the newest one: until that is done, an index alone does not answer a query.

    Raises SilentDatabase where the database does not answer, and InputError where it cannot be used
    or is newer than this program.
    """
    where = engine.url.render_as_string(hide_password=True)
    try:
        with writing(engine).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
            before = _revision(connection)
            if revision == "head" and before == newest_revision():
                return
            _migrate(connection, revision, where)
        if before is not None and revision == "head" and engine.dialect.name == "postgresql":
            _vacuum(engine)
    except DBAPIError as error:
        cause = str(error.orig).strip().splitlines()[0]
        waits = isinstance(error, OperationalError) and engine.dialect.name != "sqlite"
        kind = SilentDatabase if waits else InputError
        raise kind(f"database {where} cannot be used: {cause}; check the URL") from None


def newest_revision() -> str:
    """The revision that the last migration leads to: its file's name begins with it."""
    return max(p.name for p in (_MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]


def _revision(connection: Connection) -> str | None:
    """The revision of a database, None of an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _migrate(connection: Connection, revision: str, where: str) -> None:
    """Raises InputError where the database, at `where`, has a revision that is not known here."""
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(migrations(connection), revision)
    except CommandError as error:
        raise InputError(
            f"database {where} was written by a newer mcfuser ({error}); upgrade this one"
        ) from None


def _vacuum(engine: Engine) -> None:
    """Does at once what autovacuum would do some minutes later, to the tables of this project."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM (ANALYZE) {', '.join(Base.metadata.tables)}"))


def _patience(url: URL) -> dict[str, int]:
    """How long a server's connections wait, as far as the URL does not say it."""
    if url.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    return {name: value for name, value in _PATIENCE.items() if name not in url.query}


def migrations(connection: Connection) -> Config:
    """What Alembic's commands need to run the migrations on a connection."""
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _sqlite(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        # Each connection would be a database of its own: all threads share one.
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            connect_args={"check_same_thread": False},
        )
    else:
        _private(url.database)
        engine = create_engine(url, pool_size=_CONNECTIONS, max_overflow=0)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _private(name: str) -> None:
    """Closes SQLite's file, and the files that SQLite makes next to it, to other users."""
    if name.startswith("file:"):  # a URI, which may say that nothing is to be made
        return
    with contextlib.suppress(OSError):  # opening it says what is wrong
        for path in (Path(name), *(Path(name + end) for end in ("-wal", "-shm"))):
            if path.exists() or path.name == Path(name).name:
                make_file(path)


def _prepare(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: `_begin` does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_S * 1000}")
    _log_ahead(cursor)
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _log_ahead(cursor: Any) -> None:
    """Has a SQLite file write ahead to a log, from now on.

    SQLite does not wait for a lock here: it holds a lock to read when it asks for the one to write,
    and two processes that did so would wait for each other. Those that open a new file at once have
    to ask again.
    """
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(0.01)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
