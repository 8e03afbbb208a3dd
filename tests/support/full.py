"""A database whose disk is full."""

from __future__ import annotations

from mcfuser_db import Storage


def sqlite_full(store: Storage, *_: object) -> bool:
    """What SQLite raises where its file may not grow."""
    with store._engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.execute("PRAGMA max_page_count = 1")
        try:
            connection.exec_driver_sql("CREATE TABLE filler (x)")
            connection.exec_driver_sql("INSERT INTO filler VALUES (zeroblob(1000000))")
        finally:
            driver.execute("PRAGMA max_page_count = 1000000000")
    raise AssertionError("there was room")
