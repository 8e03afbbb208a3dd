"""A PostgreSQL server that is stopped and started again, and those who need it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mcfuser_db import Blobs, Storage
from mcfuser_db.beats import living_workers
from mcfuser_db.engine import SilentDatabase
from mcfuser_service.opening import opened
from mcfuser_service.outage import FIRST, LAST, Outage
from tests.support.db_server import Missing, OwnServer, own_server
from tests.support.models import model
from tests.support.paths import PYTHONPATH, ROOT, SUPPORT

WAIT = 120.0


@pytest.fixture(scope="module")
def database() -> Iterator[OwnServer]:
    try:
        with own_server() as own:
            yield own
    except Missing as missing:
        pytest.skip(str(missing))


def wait(done: Callable[[], object], seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_an_outage_is_said_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("test"), "worker 'a:0'")
    outage.over()
    waits = [outage.failed(OSError("connection refused\nat some place")) for _ in range(8)]
    outage.over()
    outage.over()
    assert waits[:3] == [FIRST, 2 * FIRST, 4 * FIRST] and waits[-1] == LAST
    first, last = caplog.messages
    assert first.startswith("worker 'a:0': the database does not answer")
    assert first.endswith("connection refused")
    assert last == "worker 'a:0': the database answers again, after 0 s"
    assert outage.failed(OSError("again")) == FIRST


@pytest.mark.thorough
def test_a_database_is_waited_for_until_it_answers(
    database: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    database.stop()
    with pytest.raises(SilentDatabase, match="cannot be used"):
        Storage(database.url)
    threading.Timer(1.0, database.start).start()
    store = opened(database.url, "the test", threading.Event())
    assert store is not None and store.counts()["queued"] == 0
    store.close()
    said = [m for m in caplog.messages if m.startswith("the test: ")]
    assert len(said) == 2 and "answers again" in said[1]


def test_waiting_ends_when_it_is_told_to(database: OwnServer) -> None:
    stop = threading.Event()
    stop.set()
    assert opened("postgresql+psycopg://nobody@/none?host=/nowhere", "x", stop) is None


@contextmanager
def process(errors: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    with errors.open("wb") as log:
        one = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, **more},
        )  # fmt: skip
    try:
        yield one
        one.send_signal(signal.SIGTERM)
        assert one.wait(WAIT) == 0
    finally:
        one.kill()
        one.wait()


def lines(log: Path, words: str) -> int:
    return sum(words in line for line in log.read_text().splitlines())


@pytest.mark.thorough
def test_server_and_worker_live_through_an_outage(database: OwnServer, tmp_path: Path) -> None:
    """Both begin while there is no database; it comes, goes in the middle of a job, and comes."""
    database.stop()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    web, worker = tmp_path / "web.log", tmp_path / "worker.log"
    with (
        process(web, str(SUPPORT / "serve_slowly.py"), str(tmp_path), str(port), "1",
                MCFUSER_DATABASE=database.url, MCFUSER_WORKERS="0"),
        process(worker, str(SUPPORT / "work_slowly.py"), str(tmp_path), "4",
                MCFUSER_DATABASE=database.url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):  # fmt: skip
        wait(lambda: answered(client, "/livez") == 200)
        assert [answered(client, p) for p in ("/readyz", "/healthz", "/v1/jobs")] == [503] * 3
        assert client.get("/v1/jobs").headers["retry-after"] == "5"
        assert client.get("/healthz").json()["database"] == "silent"
        wait(lambda: lines(worker, "the database does not answer") == 1)

        database.start()
        wait(lambda: answered(client, "/healthz") == 200)
        assert client.get("/healthz").json()["workers"]["everywhere"] == 1
        job = client.post("/v1/jobs", content=model()).headers["location"]
        wait(lambda: client.get(job).json()["state"] == "running")

        database.stop()
        assert answered(client, "/livez") == 200
        refused = client.get(job)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert client.post("/v1/jobs", content=b"other").status_code == 503
        assert "mcfuser_database_up 0.0" in client.get("/metrics").text
        time.sleep(3)
        database.start()
        wait(lambda: answered(client, job) == 200)
        wait(lambda: client.get(job).json()["state"] == "done")
        assert client.get(job).json()["attempts"] == 1
        assert "mcfuser_database_up 1.0" in client.get("/metrics").text
        store = Storage(database.url)
        assert len(living_workers(store)) == 1
    assert living_workers(store) == [], "a worker that ends says so"
    store.close()
    assert Blobs(tmp_path / "blobs").files()
    assert lines(worker, "work_slowly': the database does not answer") == 1
    assert lines(worker, "work_slowly': the database answers again") == 1
    assert 1 <= lines(worker, "does not answer") <= 4, "each part says it once"
    for log in (web, worker):
        assert "Traceback" not in log.read_text()


def answered(client: httpx.Client, path: str) -> int:
    """The status of an answer; 0 where nothing listens yet."""
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0
