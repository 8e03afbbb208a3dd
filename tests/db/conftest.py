"""A store over every database, whose clock stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mcfuser_db import Storage
from tests.support.clock import Clock
from tests.support.db_storages import STORAGES, fresh, upgrade_by_copy


@pytest.fixture(scope="session", autouse=True)
def databases_are_copied(patch: pytest.MonkeyPatch) -> None:
    """The migrations take longer than what most tests ask a database."""
    patch.setattr("mcfuser_db.database.upgrade", upgrade_by_copy)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Storage]:
    with closing(Storage(url, clock)) as store:
        yield store
