"""The migrations lead to the models, from nothing and back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from mcfuser.errors import InputError
from mcfuser_db import Storage
from mcfuser_db.engine import connect, upgrade
from mcfuser_db.models import Base
from tests.support.db_storages import STORAGES, fresh


@pytest.fixture(params=STORAGES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh(request.param, tmp_path) as url:
        yield url


def test_models_and_migrations_agree(database: str) -> None:
    engine = connect(database)
    upgrade(engine)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        found = {i["name"] for i in inspect(connection).get_indexes("jobs")}
        assert found == {i.name for i in Base.metadata.tables["jobs"].indexes}
    engine.dispose()


def test_upgrading_twice_changes_nothing(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade(engine)
    upgrade(engine)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
    engine.dispose()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    engine = connect(url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'future'"))
    engine.dispose()
    with pytest.raises(InputError, match="newer mcfuser"):
        Storage(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////nowhere/at/all.db", "unable to open"),
        ("no url", "cannot be read"),
        ("oracle+nodriver://x", "cannot be read"),
        ("sqlite:////proc/version", "cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Storage(url)
    assert "\n" not in str(caught.value)


def test_sqlite_is_set_up_for_many_processes(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        told = {p: connection.scalar(text(f"PRAGMA {p}"))
                for p in ("journal_mode", "foreign_keys", "busy_timeout")}  # fmt: skip
    assert told == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30000}
    engine.dispose()
