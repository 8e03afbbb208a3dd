"""What is removed of jobs that are over, and what is not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcfuser_db import Blobs, Job, KeyedRequest, Order, Storage, retention
from mcfuser_db.models import STATES
from mcfuser_db.retention import Keep, Swept, sweep, sweep_orphans
from mcfuser_db.webhooks import settle, take_due
from tests.support.db_storages import STORAGES, fresh

HOUR = 3600.0


class Kept:
    """A database and files, whose clocks pass when told to."""

    def __init__(self, url: str, folder: Path) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.store = Storage(url, lambda: self.now)
        self.blobs = Blobs(folder)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for digest, _, written in self.blobs.files():
            os.utime(self.blobs.path(digest), (written - seconds, written - seconds))

    def post(self, model: bytes, work: str = "") -> Job:
        digest = self.blobs.put(model)
        name = (work or digest)[:64].rjust(64, "0")
        return self.store.submit(Order(name, digest, len(model), "cpu", {}))[0]

    def work(self, module: bytes) -> None:
        job = self.store.claim("w", 60)
        assert job is not None and job.claim is not None
        digest = self.blobs.put(module)
        self.store.finish(job.claim, digest, len(module), {"chains": []})

    def done(self, model: bytes, module: bytes, work: str = "") -> Job:
        job = self.post(model, work)
        self.work(module)
        return job

    def job(self, job: Job) -> Job:
        found = self.store.job(job.id)
        assert found is not None
        return found

    def contents(self) -> set[bytes]:
        return {self.blobs.read(digest) for digest, _, _ in self.blobs.files()}


@pytest.fixture(params=STORAGES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    with fresh(request.param, tmp_path) as url:
        kept = Kept(url, tmp_path / "blobs")
        yield kept
        kept.store.close()


def test_without_limits_everything_stays(kept: Kept) -> None:
    kept.done(b"model", b"module")
    kept.wait(1e8)
    assert sweep(kept.store, kept.blobs, Keep()) == Swept()
    assert kept.contents() == {b"model", b"module"}


def test_results_that_are_too_old_are_removed(kept: Kept) -> None:
    old = kept.done(b"old model", b"old module")
    failed = kept.post(b"failing")
    claimed = kept.store.claim("w", 60)
    assert claimed is not None and kept.store.fail(claimed.claim, {"status": 422, "detail": "no"})
    cancelled = kept.post(b"cancelled")
    kept.store.cancel(cancelled.id)
    kept.wait(HOUR)
    new = kept.done(b"new model", b"new module")
    assert sweep(kept.store, kept.blobs, Keep(age=2 * HOUR)) == Swept()
    kept.wait(HOUR)
    assert sweep(kept.store, kept.blobs, Keep(age=2 * HOUR)) == Swept(3, 9 + 10 + 7 + 9)
    assert kept.contents() == {b"new model", b"new module"}
    found = kept.job(old)
    assert (found.state, found.removed) == ("done", kept.now)
    assert found.module is found.report is None and found.version > old.version
    assert kept.store.log(old.id).lines == [] and kept.store.log(new.id).lines
    assert kept.job(failed).problem is not None and kept.job(new).removed is None
    assert sweep(kept.store, kept.blobs, Keep(age=2 * HOUR)) == Swept()


def test_what_others_need_stays(kept: Kept) -> None:
    """A model that a queued job needs, and a module that a younger job has, too."""
    kept.done(b"shared", b"module")
    kept.wait(3 * HOUR)
    younger = kept.done(b"other", b"module", "younger")
    waiting = kept.post(b"shared", "waiting")
    kept.wait(HOUR)
    assert sweep(kept.store, kept.blobs, Keep(age=2 * HOUR, size=0)).jobs == 2
    assert kept.contents() == {b"shared"}, "the younger one was removed for its size"
    kept.work(b"made")
    kept.wait(HOUR)
    assert kept.job(waiting).state == "done" and kept.job(younger).removed is not None
    assert kept.contents() == {b"shared", b"made"}


def test_a_module_of_two_goes_with_the_last(kept: Kept) -> None:
    kept.done(b"one", b"module")
    kept.wait(HOUR)
    kept.done(b"two", b"module")
    kept.wait(HOUR)
    assert sweep(kept.store, kept.blobs, Keep(age=1.5 * HOUR)) == Swept(1, 3)
    assert kept.contents() == {b"two", b"module"}
    kept.wait(HOUR)
    assert sweep(kept.store, kept.blobs, Keep(age=1.5 * HOUR)) == Swept(1, 9)
    assert kept.contents() == set()


def test_the_oldest_go_until_the_rest_fits(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 2)
    jobs = []
    for number in range(5):
        jobs.append(kept.done(b"%d" % number * 50, b"module %d" % number + bytes(42)))
        kept.wait(HOUR)
    assert sweep(kept.store, kept.blobs, Keep(size=500)) == Swept()
    assert sweep(kept.store, kept.blobs, Keep(size=200)) == Swept(3, 300)
    assert [kept.job(j).removed is not None for j in jobs] == [True] * 3 + [False] * 2
    assert sweep(kept.store, kept.blobs, Keep(size=200)) == Swept()


def test_what_is_new_stays_whatever_its_size(kept: Kept) -> None:
    """Whoever posts a model writes its file first: it is not removed in between."""
    kept.done(b"model", b"module")
    assert sweep(kept.store, kept.blobs, Keep(size=0)) == Swept()
    kept.wait(HOUR)
    kept.blobs.put(b"model")  # a second post of the model, whose job is not made yet
    assert sweep(kept.store, kept.blobs, Keep(size=0)) == Swept(1, 6)
    assert kept.contents() == {b"model"}


def test_a_job_without_results_is_done_again_and_is_then_kept(kept: Kept) -> None:
    job = kept.done(b"model", b"module")
    kept.wait(HOUR)
    sweep(kept.store, kept.blobs, Keep(age=1.0))
    assert kept.store.put_back(job.id) is None
    kept.blobs.put(b"model")
    assert kept.store.requeue(job.id)
    kept.work(b"module")
    assert kept.job(job).removed is None and kept.contents() == {b"model", b"module"}


def test_a_failed_job_whose_results_are_gone_is_not_put_back(kept: Kept) -> None:
    job = kept.post(b"model")
    kept.store.cancel(job.id)
    kept.wait(HOUR)
    sweep(kept.store, kept.blobs, Keep(age=1.0))
    assert kept.store.put_back(job.id) is None and kept.job(job).state == "cancelled"


def test_a_job_goes_some_time_after_its_results(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its keys and webhooks, unless one of these is still to be told; others stay."""
    monkeypatch.setattr(retention, "_BATCH", 2)
    keep, jobs = Keep(age=HOUR, rows=10 * HOUR), []
    key = KeyedRequest("1" * 64, "2" * 64, 1000 * HOUR)
    for number in range(5):
        order = Order(f"{number:064x}", kept.blobs.put(b"%d" % number), 1, "cpu", {},
                      webhook="https://ci.example/" if number == 0 else None)  # fmt: skip
        jobs.append(kept.store.submit(order, key if number == 1 else None)[0])
        kept.work(b"module %d" % number)
    kept.wait(2 * HOUR)
    young = kept.done(b"young", b"its module")
    assert sweep(kept.store, kept.blobs, keep).jobs == 5
    again = kept.store.requeue(jobs[4].id)
    kept.wait(9 * HOUR)
    assert again and sweep(kept.store, kept.blobs, keep) == Swept(1, 5 + 10), "the young one's"
    kept.wait(2 * HOUR)
    assert sweep(kept.store, kept.blobs, keep) == Swept(rows=3)
    assert {j.id for j in kept.store.jobs()} == {jobs[0].id, jobs[4].id, young.id}
    assert kept.store.keyed(key) is None and kept.store.job(jobs[1].id) is None
    assert kept.store.counts() == dict.fromkeys(STATES, 0) | {"done": 2, "queued": 1}
    ((webhook, _),) = take_due(kept.store, 9, 60)
    settle(kept.store, webhook, "delivered", "told")
    assert sweep(kept.store, kept.blobs, keep) == Swept(rows=1)


def test_files_that_no_job_refers_to_go_after_a_day(kept: Kept) -> None:
    kept.done(b"model", b"module")
    kept.blobs.put(b"orphan")
    assert sweep_orphans(kept.store, kept.blobs) == Swept()
    kept.wait(86400 + 1)
    kept.blobs.put(b"new orphan")
    assert sweep_orphans(kept.store, kept.blobs) == Swept(0, 6)
    assert kept.contents() == {b"model", b"module", b"new orphan"}


def test_files_are_listed_without_those_that_arrive(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put(b"kept")
    (blobs.path(digest).parent / "notes.txt").write_text("not ours")
    with blobs.arriving() as incoming:
        incoming.write(b"arriving")
        ((found, size, written),) = blobs.files()
    assert (found, size) == (digest, 4) and abs(written - time.time()) < 600
    assert blobs.remove(digest, 600) == 0 and blobs.has(digest)
    assert blobs.remove(digest, -1) == 4 and not blobs.has(digest)
    assert blobs.remove(digest, -1) == 0
