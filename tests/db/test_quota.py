"""What a key's jobs may take, in every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcfuser_db import Job, KeyGrant, Order, OverQuota, Storage
from mcfuser_db.api_keys import make_key
from mcfuser_db.blobs import Blobs
from mcfuser_db.retention import Keep, sweep
from tests.support.clock import Clock


def key(store: Storage, queued: int | None = None, disk: int | None = None) -> str:
    grant = KeyGrant(f"{queued} {disk}", ("submit",), queued=queued, disk=disk)
    return make_key(store, grant)[0].id


def order(work: int, key: str | None, model: str = "b", size: int = 7) -> Order:
    return Order(f"{work:064x}", model * 64, size, "cpu", {}, api_key=key)


def done(store: Storage, module: str, size: int) -> Job:
    job = store.claim("w", 60)
    assert job is not None and job.claim is not None
    assert store.finish(job.claim, module * 64, size, {})
    return job


def test_a_job_more_than_may_wait_is_refused(store: Storage, clock: Clock) -> None:
    mine = key(store, queued=2)
    for work in (1, 2):
        store.submit(order(work, mine))
    clock.wait(1)  # these are claimed first
    with pytest.raises(OverQuota, match="has 2 queued jobs, as many as it may have") as full:
        store.submit(order(3, mine))
    assert full.value.what == "queued"
    with pytest.raises(OverQuota):
        store.check_quota(order(3, mine))
    assert store.submit(order(1, mine))[1] is False, "work that is there already takes no place"
    for other in (key(store, queued=1), key(store), None):
        store.submit(order(hash(other), other))
    assert store.claim("w", 60) is not None
    store.submit(order(3, mine))


def test_of_many_posts_at_once_no_more_are_taken(store: Storage) -> None:
    mine = key(store, queued=3)

    def post(work: int) -> bool:
        try:
            return store.submit(order(work, mine))[1]
        except OverQuota:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(post, range(16))) == 3
    assert store.counts()["queued"] == 3


def test_a_job_that_is_put_back_takes_a_place(store: Storage) -> None:
    mine = key(store, queued=1)
    job, _ = store.submit(order(1, mine))
    assert store.cancel(job.id)
    other, _ = store.submit(order(2, mine))
    with pytest.raises(OverQuota):
        store.put_back(job.id, mine)
    assert store.put_back(job.id) is not None, "who has no limits may put it back"
    assert store.cancel(other.id)


def test_files_are_counted_once_and_until_they_are_removed(store: Storage, tmp_path: Path) -> None:
    mine = key(store, disk=100)
    store.submit(order(1, mine, "a", 30))
    store.submit(order(2, mine, "a", 30))  # the same model with other options
    for _ in range(2):
        done(store, "c", 20)
    store.check_quota(order(3, mine, "d", 50))
    with pytest.raises(OverQuota, match="may have 100 bytes, and with this model they have 101"):
        store.submit(order(3, mine, "d", 51))
    store.submit(order(4, mine, "a", 30))
    store.submit(order(5, key(store), "e", 10**12))
    store.submit(order(6, None, "f", 10**12))
    sweep(store, Blobs(tmp_path / "blobs"), Keep(age=0.0))
    store.submit(order(7, mine, "d", 51))  # beside model "a" of a job that is not over


def test_a_job_that_others_posted_too_is_not_ended_for_them(store: Storage) -> None:
    mine, yours = key(store, queued=5), key(store, queued=6)
    alone, _ = store.submit(order(1, mine))
    shared, _ = store.submit(order(2, mine))
    assert store.submit(order(2, yours))[1] is False
    assert store.submit(order(1, mine))[1] is False
    assert not store.cancel(shared.id, mine) and not store.cancel(shared.id, yours)
    assert not store.cancel(alone.id, yours) and store.cancel(alone.id, mine)
    assert store.cancel(shared.id)
    open_to_all, _ = store.submit(order(3, None))
    assert not store.cancel(open_to_all.id, mine) and store.cancel(open_to_all.id)
