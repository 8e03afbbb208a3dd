"""What is kept of a job's time, and of the cache's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mcfuser_db import Job, Order, Storage
from mcfuser_db.figures import figures
from mcfuser_service.figures import JobFigures


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    store = Storage(f"sqlite:///{tmp_path / 'x.db'}")
    yield store
    store.close()


@pytest.fixture
def job(store: Storage) -> Job:
    store.submit(Order("a" * 64, "b" * 64, 7, "cpu", {}))
    job = store.claim("w", 60)
    assert job is not None
    return job


def test_a_stage_that_is_entered_again_is_one(
    store: Storage, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("mcfuser_service.figures.time.monotonic", lambda: now)
    kept = JobFigures(begun=now, _since=now)
    for seconds, stage in ((1, "import"), (2, "measure"), (0, "measure"), (8, "build"),
                           (16, "measure"), (32, "done")):  # fmt: skip
        now += seconds
        kept.enter(stage)
    now += 64
    kept.cache = {"hit": 2, "team": 0, "miss": 1}
    kept.keep(store, job, "done")
    found = {(t.name, t.label): (t.count, t.total) for t in figures(store)}
    queued = found.pop(("queued", ""))
    assert queued[0] == 1 and queued[1] >= 0
    assert found == {
        ("attempts", "done"): (1, 0.0), ("jobs", "cpu"): (1, 123.0),
        ("lookups", "hit"): (2, 0.0), ("lookups", "miss"): (1, 0.0),
        ("stages", "start"): (1, 1.0), ("stages", "import"): (1, 2.0),
        ("stages", "measure"): (1, 40.0), ("stages", "build"): (1, 16.0),
    }  # fmt: skip


def test_an_attempt_that_failed_is_counted_without_its_seconds(store: Storage, job: Job) -> None:
    kept = JobFigures()
    kept.enter("import")
    kept.keep(store, job, "retried")
    assert [(t.name, t.label, t.count) for t in figures(store)] == [("attempts", "retried", 1)]


def test_figures_that_cannot_be_kept_fail_no_job(store: Storage, job: Job) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE figures")
    JobFigures().keep(store, job, "done")
