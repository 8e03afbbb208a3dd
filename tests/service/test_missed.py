"""What a listener who was away is told, over HTTP and over both databases; the tests do the work of
workers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import delete, update
from sqlalchemy.exc import OperationalError

from mcfuser.tune.progress import ChainPlace, Progress
from mcfuser_db import Job, JobEvent, Order, Storage, job_events
from mcfuser_service.missed import missed_since
from tests.support.clock import Clock
from tests.support.db_storages import fresh
from tests.support.served import Served, serving
from tests.support.streams import StreamedEvent, read_stream


async def inspect(*_: object) -> None: ...


@pytest.fixture(scope="module", params=["file", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("served")
    with (
        fresh(request.param, folder) as url,
        serving(folder, inspect, database=SecretStr(url)) as served,
    ):
        yield served


@pytest.fixture
def elsewhere(server: Served) -> Iterator[Storage]:
    """The database as another machine's worker has it."""
    with closing(Storage(server.settings.database_url)) as store:
        yield store


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client:
        yield client


def submitted(store: Storage, work: str) -> Job:
    return store.submit(Order(work.rjust(64, "0"), "b" * 64, 7, "cpu", {"seed": 0}))[0]


def claimed(store: Storage, job: Job, worker: str = "w") -> UUID:
    """Claims the job, which is the only one that is queued; gives the claim."""
    got = store.claim(worker, 60)
    assert got is not None and got.id == job.id and got.claim is not None
    return got.claim


def progress(n: int) -> Progress:
    best = 1e-6 / n if n else None
    return Progress("measure", n, 99, n, 0, best, ChainPlace(2, 5, "attention"), 60.0)


def measured(store: Storage, claim: UUID, *numbers: int) -> None:
    for n in numbers:
        assert store.renew(claim, 60, progress(n))


def all_events(
    client: httpx.Client, job: Job, seen: int | None = None, query: str = ""
) -> list[StreamedEvent]:
    """The events of a job that ends, or is over."""
    headers = {"Last-Event-ID": str(seen)} if seen is not None else {}
    answer = client.get(f"/v1/jobs/{job.id}/events{query}", headers=headers)
    return list(read_stream(iter(answer.text.splitlines())))


def test_a_listener_is_told_what_it_missed_and_what_comes(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "missed")
    with client.stream("GET", f"/v1/jobs/{job.id}/events") as stream:
        told = read_stream(stream.iter_lines())
        live = [next(told)]
        claim = claimed(elsewhere, job)
        measured(elsewhere, claim, 1, 2)
        live += [next(told) for _ in range(3)]
    measured(elsewhere, claim, 3, 4)
    with client.stream(
        "GET", f"/v1/jobs/{job.id}/events", headers={"Last-Event-ID": "3"}
    ) as stream:
        told = read_stream(stream.iter_lines())
        missed = [next(told) for _ in range(3)]
        measured(elsewhere, claim, 5)
        elsewhere.finish(claim, "c" * 64, 3, {"chains": []})
        after = list(told)
    assert [e.id for e in live] == [1, 2, 3, 4]
    assert [e.id for e in (*missed, *after)] == [4, 5, 6, 7, 8]
    assert missed[0] == live[3], "the event as it was: its time left, too"
    assert [e.data["progress"]["best_seconds"] for e in missed] == [1e-6 / n for n in (2, 3, 4)]
    assert [e.kind for e in (*missed, *after)] == ["progress"] * 4 + ["state"]
    assert after[-1].data["state"] == "done" and "report" in after[-1].data
    everything = all_events(client, job, 0)
    assert everything[:4] == live and everything[3:6] == missed and everything[6:] == after
    assert all_events(client, job, query="?after=0") == everything
    assert all_events(client, job, 5, "?after=0") == everything[5:], "Last-Event-ID prevails"
    assert [e.id for e in all_events(client, job)] == [8], "without either, the job as it is"
    assert client.get(f"/v1/jobs/{job.id}/events?after=8").status_code == 204


def test_a_job_s_version_is_where_its_events_go_on(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "version")
    version = client.get(f"/v1/jobs/{job.id}").json()["version"]
    elsewhere.cancel(job.id)
    (event,) = all_events(client, job, query=f"?after={version}")
    assert (event.id, event.data["version"], event.data["state"]) == (2, 2, "cancelled")


@pytest.mark.parametrize("after", ["-1", "x", "", "1.5", str(2**31)])
def test_a_version_is_a_number(after: str, client: httpx.Client, elsewhere: Storage) -> None:
    job = submitted(elsewhere, "number")
    answer = client.get(f"/v1/jobs/{job.id}/events", params={"after": after})
    assert answer.status_code == 422 and "after" in answer.json()["detail"]
    elsewhere.cancel(job.id)


def test_fast_writes_are_all_told(client: httpx.Client, elsewhere: Storage) -> None:
    """Many more than there are looks at the database, and than a follower holds."""
    job = submitted(elsewhere, "fast")
    with client.stream("GET", f"/v1/jobs/{job.id}/events") as stream:
        told = read_stream(stream.iter_lines())
        first = next(told)
        claim = claimed(elsewhere, job)
        measured(elsewhere, claim, *range(150))
        elsewhere.fail(claim, {"status": 422, "detail": "no"})
        events = [first, *told]
    assert [e.id for e in events] == list(range(1, 154))
    assert [e.data["candidates"]["done"] for e in events[2:-1]] == list(range(150))


def test_many_listeners_are_told_the_same(client: httpx.Client, elsewhere: Storage) -> None:
    job = submitted(elsewhere, "listeners")
    claim = claimed(elsewhere, job)
    measured(elsewhere, claim, 1, 2, 3)
    with ThreadPoolExecutor(5) as pool:
        told = [pool.submit(all_events, client, job, seen) for seen in (0, 1, 2, 3, 4)]
        measured(elsewhere, claim, *range(4, 40))
        elsewhere.finish(claim, "c" * 64, 3, {"chains": []})
        for seen, events in enumerate(told):
            assert [e.id for e in events.result()] == list(range(seen + 1, 43))


def test_what_is_no_longer_kept_is_said(
    client: httpx.Client, elsewhere: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "MOST_EVENTS", 10)
    job = submitted(elsewhere, "too old")
    claim = claimed(elsewhere, job)
    measured(elsewhere, claim, *range(64 - 2))  # versions 3 to 64, at which earlier ones go
    path = f"/v1/jobs/{job.id}/events"
    with client.stream("GET", path, headers={"Last-Event-ID": "5"}) as stream:
        told = read_stream(stream.iter_lines())
        gap, now = next(told), next(told)
        assert gap == StreamedEvent("gap", None, {"after": 5, "oldest": 55})
        assert (now.kind, now.id, now.data["candidates"]["done"]) == ("state", 64, 61)
        elsewhere.cancel(job.id)
        assert [e.id for e in told] == [65]
    assert [e.id for e in all_events(client, job, 54)] == list(range(55, 66)), "no gap"
    assert [e.kind for e in all_events(client, job, 53)] == ["gap", "state"]


def test_the_events_of_an_earlier_program_are_not_there(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "earlier")
    with elsewhere.writing() as session:
        session.execute(delete(JobEvent).where(JobEvent.job == job.id))
        session.execute(update(Job).where(Job.id == job.id).values(version=7))
    with client.stream("GET", f"/v1/jobs/{job.id}/events?after=3") as stream:
        told = read_stream(stream.iter_lines())
        assert next(told) == StreamedEvent("gap", None, {"after": 3, "oldest": None})
        assert next(told).id == 7
        with elsewhere.writing() as session:  # it goes on beside this one
            session.execute(update(Job).where(Job.id == job.id).values(version=9, name="x"))
        assert next(told) == StreamedEvent("gap", None, {"after": 7, "oldest": None})
        assert next(told).data["name"] == "x"
        elsewhere.cancel(job.id)
        assert [(e.kind, e.id) for e in told] == [("state", 10)]


def test_a_job_that_another_worker_takes_over_keeps_its_order(
    client: httpx.Client, elsewhere: Storage
) -> None:
    """After a kill, a failed attempt, and a lease that has run out."""
    job = submitted(elsewhere, "takeover")
    measured(elsewhere, claimed(elsewhere, job, "one"), 1)
    assert elsewhere.killed("one") == 1
    measured(elsewhere, claimed(elsewhere, job, "two"), 1)
    assert elsewhere.interrupted("two") == 1
    lost = elsewhere.claim("three", -60)
    assert lost is not None and lost.claim is not None
    claim = claimed(elsewhere, job, "four")
    assert not elsewhere.renew(lost.claim, 60, progress(9)), "its claim is lost"
    measured(elsewhere, claim, 1)
    elsewhere.finish(claim, "c" * 64, 3, {"chains": []})
    events = all_events(client, job, 0)
    assert [e.id for e in events] == list(range(1, len(events) + 1))
    assert [e.data["state"] for e in events if e.kind == "state"] == [
        *("queued", "running") * 4, "done",
    ]  # fmt: skip
    assert [e.data["progress"]["candidates"]["measured"] for e in events
            if e.kind == "progress"] == [1, 1, 1]  # fmt: skip
    assert all_events(client, job, 6) == events[6:]


def test_a_job_that_is_tried_again_goes_on_past_its_earlier_end(
    client: httpx.Client, elsewhere: Storage
) -> None:
    job = submitted(elsewhere, "again")
    elsewhere.fail(claimed(elsewhere, job), {"status": 422, "detail": "no"})
    assert elsewhere.put_back(job.id) is not None
    elsewhere.finish(claimed(elsewhere, job), "c" * 64, 3, {"chains": []})
    events = all_events(client, job, 1)
    assert [e.data["state"] for e in events] == ["running", "failed", "queued", "running", "done"]
    assert events[1].data["problem"] == {"status": 422, "detail": "no"}
    assert events[-1].data["problem"] is None


def test_a_listener_comes_again_where_the_database_is_silent(
    server: Served, client: httpx.Client, elsewhere: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(elsewhere, "silent")
    elsewhere.cancel(job.id)
    with monkeypatch.context() as patched:

        def silent(store: Storage, first: object) -> None:
            raise OperationalError("SELECT", {}, RuntimeError("no answer"))

        patched.setattr(Storage, "events", silent)
        assert all_events(client, job, 1) == [], "the stream ends"
    assert [e.id for e in all_events(client, job, 1)] == [2]


def test_the_state_before_what_was_missed_is_known_where_it_is_kept(tmp_path: Path) -> None:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}", clock := Clock())) as store:
        job = submitted(store, "state")
        claim = claimed(store, job)
        clock.wait(30)
        measured(store, claim, 1)
        present = store.job(job.id)
        assert present is not None
        missed = missed_since(store, present, 2)
        assert (missed.before, missed.incomplete) == ("running", False)
        assert [s.moment for s in missed.snapshots] == [clock()]
        with store.writing() as session:
            session.execute(delete(JobEvent).where(JobEvent.version == 2))
        assert (missed := missed_since(store, present, 2)).before == ""
        assert [s.version for s in missed.snapshots] == [3]
        assert missed_since(store, present, 3).snapshots == []
        assert missed_since(store, present, 1).incomplete
