"""Which errors say that a disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from mcfuser.process.confined import Stopped
from mcfuser_db import is_full


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (OSError(errno.EROFS, "x"), False),
        (OperationalError("q", {}, psycopg.errors.DiskFull("x")), True),
        (OperationalError("q", {}, psycopg.errors.AdminShutdown("x")), False),
        (Stopped("death", "it ended", "ld: No space left on device\n"), True),
        (Stopped("death", "it ended", "killed"), False),
        (RuntimeError("No space left on device"), False),
    ],
)
def test_errors(error: BaseException, expected: bool) -> None:
    assert is_full(error) is expected


def test_a_cause_counts() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raise OSError(errno.ENOSPC, "x")
        except OSError as error:
            raise RuntimeError("it failed") from error
    assert is_full(caught.value)


def test_sqlite(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(OperationalError) as caught, engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 2")
        connection.exec_driver_sql("CREATE TABLE t (x)")
        connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(1000000))")
    assert is_full(caught.value)
    with pytest.raises(OperationalError) as caught, engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM nowhere")
    assert not is_full(caught.value)
    engine.dispose()
