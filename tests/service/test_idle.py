"""A worker without a job measures stale kernels again, and gives way to the next job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mcfuser_db import Order, Storage, StorageError
from mcfuser_service import idle as idle_module
from mcfuser_service.idle import IdleTime, JobWaits, Watch
from mcfuser_service.settings import ServiceSettings
from tests.support.kernels import tuned


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    return ServiceSettings(data=tmp_path, refresh_after=1.0)


@pytest.fixture
def store(settings: ServiceSettings) -> Iterator[Storage]:
    with closing(Storage(settings.database_url)) as store:
        yield store


def order(store: Storage) -> None:
    store.submit(Order("w" * 64, "m" * 64, 1, "cpu", {}))


def idle(settings: ServiceSettings, store: Storage, seconds: float) -> IdleTime:
    """As if no job was there for so many seconds."""
    since = time.monotonic() - seconds
    return IdleTime(settings, store, threading.Event(), "tests.support.idle_work", since, since)


def test_stale_kernels_are_measured_when_no_job_was_there_for_a_while(
    settings: ServiceSettings, store: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store.put(tuned("1"))
    worker = idle(settings, store, 5.0)
    worker.use()
    assert "measured stale kernels again" in caplog.text
    worker.use()
    assert caplog.text.count("measured stale kernels again") == 1, "not all the time"
    worker.looked -= idle_module.AGAIN
    worker.use()
    assert caplog.text.count("measured stale kernels again") == 2


def test_a_job_of_a_moment_ago_or_never_leaves_them_alone(
    settings: ServiceSettings, store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object, **more: object) -> None:
        raise AssertionError

    monkeypatch.setattr(idle_module, "run", never)
    idle(settings, store, 0.0).use()
    idle(settings.model_copy(update={"refresh_after": 0.0}), store, 1e6).use()
    worker = idle(settings, store, 5.0)
    worker.ended()
    worker.use()


def test_a_job_that_comes_ends_it_at_once(settings: ServiceSettings, store: Storage) -> None:
    worker = idle(settings, store, 5.0)
    timer = threading.Timer(1.0, order, [store])
    timer.start()
    worker.use()
    timer.join()
    assert len(store.jobs("queued")) == 1 and time.monotonic() - worker.since < 60


def test_a_process_that_dies_is_logged(
    settings: ServiceSettings, store: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    worker = idle(settings, store, 5.0)
    worker.module = "tests.support.no_such_module"
    worker.use()
    assert "were not measured again" in caplog.text


def test_the_watch_tells_of_a_job_a_stop_and_a_silent_database(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    watch = Watch(store, stop)
    watch()
    order(store)
    watch()  # it was asked a moment ago
    watch.last = 0.0
    with pytest.raises(JobWaits):
        watch()

    def silent(*given: object) -> None:
        raise StorageError("gone")

    monkeypatch.setattr(store, "jobs", silent)
    watch.last = 0.0
    with pytest.raises(JobWaits):
        watch()
    stop.set()
    with pytest.raises(JobWaits):
        Watch(store, stop)()
