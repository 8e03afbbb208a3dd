"""Waiting for jobs, and their events, over HTTP; the tests do the work of a worker elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from mcfuser.tune.progress import ChainPlace, Progress
from mcfuser_db import Job, Order, Storage
from mcfuser_service import events
from mcfuser_service.watch import JobWatch
from tests.support.served import Served, serving
from tests.support.streams import read_stream


async def inspect(*_: object) -> None: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), inspect) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client


@pytest.fixture
def elsewhere(server: Served) -> Iterator[Storage]:
    """The database as another machine's worker has it."""
    store = Storage(server.settings.database_url)
    yield store
    store.close()


def submitted(store: Storage, work: str) -> Job:
    return store.submit(Order(work.rjust(64, "0"), "b" * 64, 7, "cpu", {"seed": 0}))[0]


def claimed(store: Storage, job: Job) -> UUID:
    """Claims jobs until it is this one; gives the claim."""
    while (got := store.claim("w", 60)) is not None:
        if got.id == job.id and got.claim is not None:
            return got.claim
    raise AssertionError("the job was not claimed")


PROGRESS = Progress("measure", 3, 9, 4, 1, 2e-6, ChainPlace(2, 5, "attention"), 60.0)


def test_a_job_that_another_machine_does_is_followed_to_its_end(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "follow")
    with client.stream("GET", f"/v1/jobs/{job.id}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        told = read_stream(stream.iter_lines())
        first = next(told)
        assert (first.kind, first.data["state"]) == ("state", "queued")
        claim = claimed(elsewhere, job)
        running = next(told)
        assert (running.kind, running.data["state"]) == ("state", "running")
        elsewhere.renew(claim, 60, PROGRESS)
        progress = next(told)
        assert (progress.kind, progress.data["stage"]) == ("progress", "measure chain 2 of 5")
        found = progress.data["progress"]
        assert found["chain"] == {"number": 2, "of": 5, "name": "attention"}
        assert found["candidates"] == {"total": 9, "compiled": 4, "measured": 3, "failed": 1}
        assert found["best_seconds"] == 2e-6 and 50 < found["seconds_left"] <= 60
        elsewhere.finish(claim, "c" * 64, 3, {"chains": []})
        last = next(told)
        assert (last.kind, last.data["state"], last.data["progress"]) == ("state", "done", None)
        assert next(told, None) is None, "the stream ends"
    ids = [e.id for e in (first, running, progress, last)]
    assert ids == sorted(set(ids))


def test_a_stream_goes_on_after_the_last_event_that_was_seen(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "resume")
    path = f"/v1/jobs/{job.id}/events"
    with client.stream("GET", path) as stream:
        seen = next(read_stream(stream.iter_lines()))
    claim = claimed(elsewhere, job)
    with client.stream("GET", path, headers={"Last-Event-ID": str(seen.id)}) as stream:
        told = read_stream(stream.iter_lines())
        missed = next(told)
        assert missed.kind == "state" and missed.data["state"] == "running"
        elsewhere.renew(claim, 60, PROGRESS)
        progress = next(told)
        assert progress.kind == "progress"
        assert [seen.id, missed.id, progress.id] == [1, 2, 3]
    with client.stream("GET", path, headers={"Last-Event-ID": "3"}) as stream:
        told = read_stream(stream.iter_lines())
        elsewhere.fail(claim, {"status": 422, "detail": "no"})
        last = next(told)
        assert (last.kind, last.data["state"]) == ("state", "failed"), (
            "what was seen is not repeated"
        )
        assert next(told, None) is None


@pytest.mark.parametrize("seen", ["", "x", "-1", "9" * 400, "1.5", "999999"])
def test_a_job_that_is_over_is_told_once(
    seen: str, client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "over")
    elsewhere.cancel(job.id)
    path = f"/v1/jobs/{job.id}/events"
    answer = client.get(path, headers={"Last-Event-ID": seen})
    (event,) = read_stream(iter(answer.text.splitlines()))
    assert event.data["state"] == "cancelled" and event.data["id"] == str(job.id)
    again = client.get(path, headers={"Last-Event-ID": str(event.id)})
    assert (again.status_code, again.content) == (204, b""), "an EventSource connects no more"


def test_silence_is_broken_by_comments(
    client: httpx.Client, elsewhere: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.05)
    job = submitted(elsewhere, "silent")
    with client.stream("GET", f"/v1/jobs/{job.id}/events") as stream:
        lines = stream.iter_lines()
        assert sum(line.startswith(": ") for line in islice(lines, 12)) >= 2
    elsewhere.cancel(job.id)


def test_head_says_what_get_would_and_ends(client: httpx.Client, elsewhere: Storage) -> None:
    job = submitted(elsewhere, "head")
    answer = client.head(f"/v1/jobs/{job.id}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    missing = client.get("/v1/jobs/00000000-0000-4000-8000-000000000000/events")
    assert missing.status_code == 404 and missing.json()["type"].endswith("no-such-job")


def test_a_wait_ends_when_the_state_changes_and_not_before(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "wait")
    path = f"/v1/jobs/{job.id}"
    begun = time.monotonic()
    assert client.get(path, params={"wait": 0.4}).json()["state"] == "queued"
    assert 0.4 <= time.monotonic() - begun < 30
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, path, params={"wait": 50})
        time.sleep(0.3)
        claim = claimed(elsewhere, job)
        assert answer.result().json()["state"] == "running"
        answer = pool.submit(client.get, path, params={"wait": 50})
        elsewhere.renew(claim, 60, PROGRESS)
        time.sleep(0.6)
        assert not answer.done(), "progress alone is no change of state"
        elsewhere.finish(claim, "c" * 64, 3, {"chains": []})
        done = answer.result().json()
    assert done["state"] == "done" and done["report"] == {"chains": []}
    begun = time.monotonic()
    assert client.get(path, params={"wait": 50}).json() == done
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "soon", "", "20s"])
def test_a_wait_is_bounded(wait: str, client: httpx.Client) -> None:
    unknown = "/v1/jobs/00000000-0000-4000-8000-000000000000"
    answer = client.get(unknown, params={"wait": wait})
    assert answer.status_code == 422 and "wait" in answer.json()["detail"]
    assert client.get(unknown, params={"wait": 9}).status_code == 404


@pytest.mark.thorough
def test_many_wait_with_few_threads_and_one_query(
    server: Served, elsewhere: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile: no one who waits holds a thread."""
    looks: list[int] = []
    changed = JobWatch._changed

    def counted(watch: JobWatch, known: Any) -> Any:
        looks.append(threading.get_ident())
        return changed(watch, known)

    monkeypatch.setattr(JobWatch, "_changed", counted)
    jobs = [submitted(elsewhere, f"many{n}") for n in range(4)]
    limits = httpx.Limits(max_connections=300)
    base = f"http://127.0.0.1:{server.port}"
    with (
        httpx.Client(base_url=base, timeout=120, limits=limits) as client,
        ThreadPoolExecutor(120) as pool,
    ):
        paths = [f"/v1/jobs/{jobs[n % 4].id}?wait=60" for n in range(120)]
        answers = [pool.submit(client.get, path) for path in paths]
        begun = time.monotonic()
        while time.monotonic() < begun + 1.5:
            assert client.get("/v1/jobs?limit=1").status_code == 200
        for job in jobs:
            elsewhere.cancel(job.id)
        states = {a.result().json()["state"] for a in answers}
        seconds = time.monotonic() - begun
    assert states == {"cancelled"}
    assert len(looks) < 4 * seconds + 3, "one query for all, four times a second"


def test_closing_ends_all_who_wait(tmp_path: Path) -> None:
    """What a server that stops does: waits end with what is known, and streams end."""
    watches: list[JobWatch] = []
    init = JobWatch.__init__
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JobWatch, "__init__", lambda w, s: (init(w, s), watches.append(w))[0])
        with serving(tmp_path, inspect) as served:
            job = submitted(served.store, "closing")
            base = f"http://127.0.0.1:{served.port}"
            with httpx.Client(base_url=base, timeout=60) as client, ThreadPoolExecutor(2) as pool:
                wait = pool.submit(client.get, f"/v1/jobs/{job.id}?wait=60")
                stream = pool.submit(client.get, f"/v1/jobs/{job.id}/events")
                time.sleep(0.5)
                begun = time.monotonic()
                watches[0].close()
                assert wait.result().json()["state"] == "queued"
                assert [e.kind for e in read_stream(iter(stream.result().text.splitlines()))] == [
                    "state"
                ]
                assert time.monotonic() - begun < 20
