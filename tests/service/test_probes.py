"""The probes of a server: alive, ready, and how the service is, wherever its workers are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mcfuser_db import Blobs, Order, Storage
from mcfuser_db.beats import SILENT, forget_beat, note_beat
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings


class Alone:
    """A web server without workers of its own."""

    def __init__(self, folder: Path, workers: int = 0) -> None:
        settings = ServiceSettings(data=folder, workers=workers)
        self.now_moved = timedelta()
        self.store = Storage(settings.database_url)
        real = self.store._now
        self.store._now = lambda: real() + self.now_moved
        self.alive = 0
        app = create_app(settings, self.store, Blobs(settings.blobs), lambda: self.alive)
        self.client = TestClient(app, base_url="http://localhost")

    def health(self) -> tuple[int, dict[str, object]]:
        answer = self.client.get("/healthz")
        return answer.status_code, answer.json()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(tmp_path)
    yield alone
    alone.store.close()


def test_health_counts_the_workers_of_other_machines(alone: Alone) -> None:
    status, told = alone.health()
    assert (status, told["status"]) == (503, "degraded")
    for name in ("a:0", "b:0"):
        note_beat(alone.store, name, "1", alone.store.now())
    status, told = alone.health()
    assert (status, told["status"], told["database"]) == (200, "ok", "ok")
    assert told["workers"] == {"alive": 0, "wanted": 0, "everywhere": 2}
    forget_beat(alone.store, "a:0")
    alone.now_moved = timedelta(seconds=SILENT - 5)
    assert alone.health()[0] == 200
    alone.now_moved = timedelta(seconds=SILENT + 5)
    assert alone.health()[0] == 503, "nothing was heard of b:0 for too long"


def test_a_server_whose_own_workers_are_dead_is_not_well(tmp_path: Path) -> None:
    alone = Alone(tmp_path, workers=2)
    note_beat(alone.store, "elsewhere", "1", alone.store.now())
    assert alone.health()[0] == 503
    alone.alive = 1
    assert alone.health()[0] == 200
    alone.store.close()


def test_health_tells_the_age_of_the_oldest_queued_job(alone: Alone) -> None:
    assert alone.health()[1]["oldest_queued_seconds"] is None
    alone.store.submit(Order("a" * 64, "b" * 64, 5, "cpu", {}))
    alone.now_moved = timedelta(seconds=100)
    alone.store.submit(Order("c" * 64, "b" * 64, 5, "cpu", {}))
    assert alone.health()[1]["oldest_queued_seconds"] == pytest.approx(100, abs=5)


def test_probes_answer_under_any_name_and_tell_dead_from_not_ready(alone: Alone) -> None:
    anywhere = {"Host": "10.1.2.3:8642"}
    for path in ("/livez", "/readyz"):
        answer = alone.client.get(path, headers=anywhere)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"}), path
    assert alone.client.get("/healthz", headers=anywhere).status_code == 421
    with alone.store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE workers")  # it answers no more
    assert alone.client.get("/livez").status_code == 200
    ready = alone.client.get("/readyz")
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "5")
    assert ready.json()["type"] == "urn:mcfuser:problem:storage"
    health = alone.client.get("/healthz")
    assert (health.status_code, health.headers["retry-after"]) == (503, "5")
    assert health.json()["database"] == "silent" and health.json()["version"]
