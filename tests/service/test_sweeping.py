"""The thread that removes old results, and what clients see then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from mcfuser_db import Blobs, Storage, retention
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.sweeping import sweeping


async def inspect(*_: object) -> None: ...


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcfuser_service.sweeping._EVERY", 0.01)
    monkeypatch.setattr(retention, "NEW", -1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Storage, Blobs, TestClient]]:
    settings = ServiceSettings(data=tmp_path)
    store, blobs = Storage(settings.database_url), Blobs(settings.blobs)
    app = create_app(settings, store, blobs, lambda: 1, inspect)
    with TestClient(app, base_url="http://localhost") as client:
        yield store, blobs, client
    store.close()


def worked(store: Storage, blobs: Blobs) -> None:
    job = store.claim("w", 60)
    assert job is not None and job.claim is not None
    store.finish(job.claim, blobs.put(b"module"), 6, {"chains": []})


@pytest.mark.parametrize("limit", [{"keep_age": 0.001}, {"keep_bytes": 0}])
def test_a_removed_result_is_410_and_is_made_again_by_a_post(
    folder: tuple[Storage, Blobs, TestClient], limit: dict[str, float]
) -> None:
    store, blobs, client = folder
    id = client.post("/v1/jobs", content=b"model").json()["id"]
    worked(store, blobs)
    settings = ServiceSettings(data=blobs.root, **limit)
    with sweeping(settings, store, blobs):
        while client.get(f"/v1/jobs/{id}").json()["removed"] is None:
            time.sleep(0.01)
    job = client.get(f"/v1/jobs/{id}").json()
    assert (job["state"], job["module"], job["report"]) == ("done", None, None)
    for part in ("module", "report", "log"):
        answer = client.get(f"/v1/jobs/{id}/{part}")
        assert answer.status_code == 410 and answer.json()["type"].endswith("lost")
        assert "post the model again" in answer.json()["detail"]
    assert client.post("/v1/jobs?reuse=only", content=b"model").status_code == 404
    again = client.post("/v1/jobs", content=b"model").json()
    assert (again["id"], again["state"], again["removed"]) == (id, "queued", None)
    worked(store, blobs)
    assert client.get(f"/v1/jobs/{id}/module").content == b"module"


def test_a_failed_job_without_its_model_cannot_be_retried(
    folder: tuple[Storage, Blobs, TestClient],
) -> None:
    store, blobs, client = folder
    id = client.post("/v1/jobs", content=b"model").json()["id"]
    client.delete(f"/v1/jobs/{id}")
    retention.sweep(store, blobs, retention.Keep(size=0))
    answer = client.post(f"/v1/jobs/{id}/retry")
    assert answer.status_code == 410 and answer.json()["type"].endswith("lost")


def test_without_a_limit_nothing_runs(folder: tuple[Storage, Blobs, TestClient]) -> None:
    store, blobs, _ = folder
    with sweeping(ServiceSettings(data=blobs.root), store, blobs):
        assert "sweeper" not in {t.name for t in threading.enumerate()}


def test_a_silent_database_is_tried_again(
    folder: tuple[Storage, Blobs, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, blobs, _ = folder
    calls = []

    def silent(*_: object) -> retention.Swept:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        raise OperationalError("SELECT", {}, RuntimeError("no answer"))

    monkeypatch.setattr("mcfuser_service.sweeping.sweep", silent)
    with sweeping(ServiceSettings(data=blobs.root, keep_age=1), store, blobs):
        deadline = time.monotonic() + 60
        while len(calls) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(calls) >= 4
