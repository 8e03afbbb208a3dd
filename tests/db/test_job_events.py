"""Events of jobs: one for each version, in the transaction that makes it, and no more than fit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select, update

from mcfuser.tune.progress import ChainPlace, Progress
from mcfuser_db import Blobs, Job, JobEvent, Order, Storage, claims
from mcfuser_db.job_events import MOST_BYTES, MOST_EVENTS, as_they_were
from mcfuser_db.retention import Keep, sweep
from tests.support.clock import Clock
from tests.support.db_storages import fresh

ORDER = Order("a" * 64, "b" * 64, 7, "cpu", {"seed": 0, "shape": ["x=1x2"]}, api_key="0" * 12)
PROGRESS = Progress("measure", 3, 9, 4, 1, 2e-6, ChainPlace(1, 2, "größe\0\n"), 60.0)
UNTOLD = ("worker", "claim", "lease", "interrupted", "report", "attestation")
TOLD = [c.key for c in Job.__mapper__.column_attrs if c.key not in UNTOLD]


def claimed(store: Storage) -> UUID:
    job = store.claim("w", 60)
    assert job is not None and job.claim is not None
    return job.claim


def read(store: Storage, id: UUID) -> Job:
    job = store.job(id)
    assert job is not None
    return job


def events(store: Storage, id: UUID, first: int = 0) -> Sequence[JobEvent]:
    return store.events({id: first}).get(id, ())


def versions(store: Storage, id: UUID, first: int = 0) -> list[int]:
    return [event.version for event in events(store, id, first)]


def test_every_change_is_an_event_of_the_job_as_it_was(store: Storage, clock: Clock) -> None:
    job, _ = store.submit(ORDER)
    seen: dict[int, Job] = {}

    def look() -> None:
        now = read(store, job.id)
        assert now.version not in seen
        seen[now.version] = now
        clock.wait(40)

    look()
    store.share(replace(ORDER, name="named", priority=3))
    look()
    for end in (
        store.retry,
        store.give_back,
        lambda claim: store.postpone(claim, 30, "waits for room on the disk"),
        lambda claim: store.spare(claim, "its process was killed"),
        lambda claim: store.fail(claim, {"status": 422, "detail": "no"}),
    ):
        claim = claimed(store)
        look()
        store.renew(claim, 60, PROGRESS)
        look()
        assert end(claim)
        look()
    store.put_back(job.id)
    look()
    store.cancel(job.id)
    look()
    store.put_back(job.id)
    look()
    claim = claimed(store)
    look()
    store.finish(claim, "c" * 64, 1 << 40, {"chains": []}, "{}\n")
    look()
    store.requeue(job.id)
    look()
    told = as_they_were(seen[1], events(store, job.id))
    assert [was.version for was, _ in told] == list(range(1, len(seen) + 1)) == list(seen)
    for was, moment in told:
        now = seen[was.version]
        assert {n: getattr(was, n) for n in TOLD} == {n: getattr(now, n) for n in TOLD}
        assert moment == clock.now - timedelta(seconds=40 * (len(seen) + 1 - was.version))


def test_a_lease_alone_is_no_event(store: Storage) -> None:
    job, _ = store.submit(ORDER)
    claim = claimed(store)
    assert store.renew(claim, 60) and versions(store, job.id) == [1, 2]
    assert not store.renew(UUID(int=1), 60, PROGRESS) and versions(store, job.id) == [1, 2]


def test_an_event_is_kept_with_its_version_or_not_at_all(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = store.submit(ORDER)
    claim = claimed(store)

    def broken(*_: object) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(claims, "add_lines", broken)  # after the event
        with pytest.raises(RuntimeError):
            store.renew(claim, 60, PROGRESS)
    assert read(store, job.id).version == 2 and versions(store, job.id) == [1, 2]
    store.renew(claim, 60, PROGRESS)
    assert read(store, job.id).version == 3 and versions(store, job.id) == [1, 2, 3]


def test_events_are_read_from_a_version_of_each_job_on(store: Storage) -> None:
    jobs = [store.submit(replace(ORDER, work=str(n) * 64))[0].id for n in range(5)]
    for id in jobs[:3]:
        store.cancel(id)
        store.put_back(id)
    first = dict(zip(jobs, (1, 2, 4, 1, 2), strict=True)) | {UUID(int=0): 1}
    found = {id: [e.version for e in kept] for id, kept in store.events(first).items()}
    assert found == {jobs[0]: [1, 2, 3], jobs[1]: [2, 3], jobs[3]: [1]}
    assert store.events({}) == {}


@pytest.mark.thorough
def test_the_last_events_are_kept(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    most_kept = MOST_EVENTS // 4
    monkeypatch.setattr("mcfuser_db.job_events.MOST_EVENTS", most_kept)
    job, _ = store.submit(ORDER)
    claim = claimed(store)
    other, _ = store.submit(replace(ORDER, work="c" * 64))
    most = 0
    for n in range(most_kept + 100):
        store.renew(claim, 60, replace(PROGRESS, done=n))
        if n % 8 == 0 and n > most_kept - 32:
            most = max(most, len(events(store, job.id)))
    newest = read(store, job.id).version
    kept = versions(store, job.id)
    assert kept == list(range(kept[0], newest + 1))
    assert most_kept <= len(kept) <= most <= most_kept + 31
    assert versions(store, other.id) == [1], "another job's stay"


@pytest.mark.thorough
@pytest.mark.parametrize("size", [2_000, 30_000, MOST_BYTES - 1_000, MOST_BYTES])
def test_events_have_so_many_bytes_at_most(size: int, store: Storage) -> None:
    """Names of chains may be of any length."""
    job, _ = store.submit(ORDER)
    claim, long = claimed(store), replace(PROGRESS, chain=ChainPlace(1, 2, "n" * size))
    for n in range(2 * MOST_BYTES // size if size < 4096 else 20):
        store.renew(claim, 60, replace(long, done=n))
        if n % 16 == 0:
            kept = [len(e.document) for e in events(store, job.id)]
            assert sum(kept) < MOST_BYTES + (31 * 4096) or len(kept) == 1
    kept = [len(e.document) for e in events(store, job.id)]
    assert kept[-1] > size and (len(kept) == 1) == (size > MOST_BYTES / 2)
    assert sum(kept) > MOST_BYTES / 2
    assert [e.version for e in events(store, job.id)][-1] == read(store, job.id).version


def test_they_go_with_the_results_and_with_the_job(
    store: Storage, clock: Clock, tmp_path: Path
) -> None:
    blobs = Blobs(tmp_path / "blobs")
    job, _ = store.submit(ORDER)
    other, _ = store.submit(replace(ORDER, work="c" * 64))
    store.cancel(job.id)
    clock.wait(100)
    assert sweep(store, blobs, Keep(age=50)).jobs == 1
    assert versions(store, job.id) == [] and versions(store, other.id) == [1]
    assert read(store, job.id).version == 3
    store.cancel(other.id)
    clock.wait(100)
    with store.writing() as session:  # it has events, and is removed all the same
        session.execute(update(Job).where(Job.id == other.id).values(removed=clock.now))
    clock.wait(100)
    assert sweep(store, blobs, Keep(rows=50)).rows == 2
    assert count(store) == 0


def count(store: Storage) -> int:
    with store.reading() as session:
        return session.scalar(select(func.count()).select_from(JobEvent)) or 0


def test_a_job_that_is_made_again_has_events_from_then_on(
    store: Storage, clock: Clock, tmp_path: Path
) -> None:
    job, _ = store.submit(ORDER)
    store.finish(claimed(store), "c" * 64, 3, {"chains": []})
    clock.wait(100)
    sweep(store, Blobs(tmp_path / "blobs"), Keep(age=50))
    store.requeue(job.id)
    (event,) = events(store, job.id)
    assert event.version == read(store, job.id).version == 5
    assert event.total == len(event.document)


@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_others_who_write_at_once_leave_no_version_out(kind: str, tmp_path: Path) -> None:
    """And whoever reads meanwhile sees no later event before an earlier one."""
    over, seen = threading.Event(), list[list[int]]()

    def look() -> None:
        while not over.is_set():
            seen.append(versions(store, job.id))

    with fresh(kind, tmp_path) as url, closing(Storage(url)) as store:
        job, _ = store.submit(ORDER)
        reader = threading.Thread(target=look)
        writers = [threading.Thread(target=share, args=(url, n)) for n in range(3)]
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        over.set()
        reader.join()
        newest = read(store, job.id).version
        assert versions(store, job.id) == list(range(1, newest + 1)) and newest > 5
    assert all(found == list(range(1, len(found) + 1)) for found in seen)


def share(url: str, worker: int) -> None:
    """Posts the same work with ever higher priorities."""
    with closing(Storage(url)) as store:
        for n in range(20):
            store.share(replace(ORDER, priority=3 * n + worker + 1))
