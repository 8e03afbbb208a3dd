"""The loop that follows jobs for all who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from mcfuser.tune.progress import Progress
from mcfuser_db import Job, Order, Storage
from mcfuser_service import watch as watching
from mcfuser_service.watch import Follower, JobWatch


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LOOK", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    store = Storage(f"sqlite:///{tmp_path / 'x.db'}")
    yield store
    store.close()


def submitted(store: Storage, work: str = "a") -> UUID:
    return store.submit(Order(work.rjust(64, "0"), "b" * 64, 7, "cpu", {}))[0].id


def test_each_follower_sees_every_version_once_however_fast_they_are(store: Storage) -> None:
    id = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as one, watch.following(id) as other:
            (first,) = await one.after(0, 60)
            assert first.version == 1
            assert await one.after(1, 0.05) == []
            job = store.claim("w", 60)
            assert job is not None and job.claim is not None
            for n in range(20):  # all between two looks
                store.renew(job.claim, 60, Progress("measure", n, 20))
            store.cancel(id)
            newer = list(await one.after(1, 60))
            while newer[-1].job.state != "cancelled":
                newer += await one.after(newer[-1].version, 60)
            assert [s.version for s in newer] == list(range(2, 24))
            assert [s.job.done for s in newer[1:-1]] == list(range(20))
            assert '"cancelled"' in newer[-1].json
            assert await other.after(22, 60) == newer[-1:], "the same JSON for both"

    asyncio.run(follow())


def test_where_events_are_not_kept_the_job_is_told_as_it_is(store: Storage) -> None:
    """Those of a program before there were events, and those that were removed."""
    id = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as follower:
            await follower.after(0, 60)
            with store.writing() as session:
                session.execute(update(Job).values(version=5, name="older"))
            (newest,) = await follower.after(1, 60)
            assert (newest.version, newest.job.name) == (5, "older")
            store.cancel(id)
            (newest,) = await follower.after(5, 60)
            assert (newest.version, newest.job.state) == (6, "cancelled")
            with store.writing() as session:
                session.execute(update(Job).values(version=3, name="restored"))
            (newest,) = await follower.after(2, 60) if await settled(follower, 3) else ()
            assert newest.job.name == "restored"

    asyncio.run(follow())


async def settled(follower: Follower, version: int) -> bool:
    """Waits until a version is the newest that is known."""
    while follower.latest is None or follower.latest.version != version:
        await asyncio.sleep(0.01)
    return True


def test_the_last_versions_are_held_and_no_more(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_RECENT", 3)
    id = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as follower:
            await follower.after(0, 60)
            job = store.claim("w", 60)
            assert job is not None and job.claim is not None
            for n in range(8):
                store.renew(job.claim, 60, Progress("measure", n, 8))
            await settled(follower, 10)
            assert [s.version for s in await follower.after(2, 60)] == [8, 9, 10]

    asyncio.run(follow())


def test_who_comes_later_is_given_what_is_known(store: Storage) -> None:
    id = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as one:
            await one.after(0, 60)
            store.cancel(id)
            await one.after(1, 60)
            with watch.following(id) as late:
                (found,) = await late.after(1, 0.0)
                assert found.job.state == "cancelled"

    asyncio.run(follow())


def test_nobody_waits_and_nothing_is_asked(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    id, asked = submitted(store), []
    versions = Storage.versions
    monkeypatch.setattr(Storage, "versions", lambda s, ids: asked.append(1) or versions(s, ids))

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as follower:
            await follower.after(0, 60)
        await asyncio.sleep(0.05)
        count = len(asked)
        await asyncio.sleep(0.1)
        assert len(asked) == count > 0
        with watch.following(id) as follower:  # it begins anew
            assert await follower.after(0, 60)

    for _ in range(2):
        asyncio.run(follow())


def test_a_silent_database_is_asked_again(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    id, asked = submitted(store), []
    versions = Storage.versions

    def silent(store: Storage, ids: list[UUID]) -> dict[UUID, int]:
        asked.append(1)
        if len(asked) < 4:
            raise OperationalError("SELECT", {}, RuntimeError("no answer"))
        return versions(store, ids)

    monkeypatch.setattr(Storage, "versions", silent)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as follower:
            assert await follower.after(0, 60)

    asyncio.run(follow())
    assert len(asked) >= 4


def test_a_job_that_is_gone_and_a_stop_end_the_wait(store: Storage) -> None:
    kept = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(UUID(int=0)) as gone:
            assert not await gone.after(0, 60) and gone.ended
        with watch.following(kept) as follower:
            await follower.after(0, 60)
            watch.close()
            assert not await follower.after(9, 60) and follower.ended
        with watch.following(kept) as late:
            assert not await late.after(9, 60)

    asyncio.run(follow())


def test_more_jobs_than_fit_in_one_query(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_TOGETHER", 2)
    ids = [submitted(store, str(n)) for n in range(5)]

    async def follow() -> None:
        watch = JobWatch(store)
        changed, gone = watch._changed(dict.fromkeys([*ids, UUID(int=0)]))
        assert set(changed) == set(ids) and gone == {UUID(int=0)}

    asyncio.run(follow())
