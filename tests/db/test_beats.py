"""Which workers are alive, over every database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcfuser_db import Order, Storage
from mcfuser_db.beats import SILENT, Backlog, backlog, forget_beat, living_workers, note_beat
from tests.support.db_storages import STORAGES, fresh

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORAGES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Storage]:
    with fresh(request.param, tmp_path) as url:
        store = Storage(url, clock)
        yield store
        store.close()


def names(store: Storage) -> list[str]:
    return [worker.name for worker in living_workers(store)]


def test_a_worker_lives_until_it_is_silent_or_says_so(store: Storage, clock: Clock) -> None:
    assert names(store) == []
    note_beat(store, "b", "1+abc", NOON)
    note_beat(store, "a", "1+abc", NOON)
    assert names(store) == ["a", "b"]
    clock.pass_by(SILENT - 1)
    note_beat(store, "a", "1+abc", NOON)
    clock.pass_by(2)
    assert names(store) == ["a"]
    (one,) = living_workers(store)
    assert (one.revision, one.started, one.seen) == ("1+abc", NOON, clock.now - timedelta(0, 2))
    note_beat(store, "b", "2", clock.now)
    assert names(store) == ["a", "b"]
    forget_beat(store, "a")
    forget_beat(store, "never seen")
    assert names(store) == ["b"]


def test_the_oldest_jobs_have_waited_and_run_so_long(store: Storage, clock: Clock) -> None:
    assert backlog(store) == Backlog(0.0, 0.0)
    for work in "abc":
        store.submit(Order(work * 64, "b" * 64, 7, "cpu", {}))
        clock.pass_by(10)
    assert backlog(store) == Backlog(30.0, 0.0)
    assert store.claim("w", 3600) is not None
    clock.pass_by(5)
    assert backlog(store) == Backlog(25.0, 5.0)
