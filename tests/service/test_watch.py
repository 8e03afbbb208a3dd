"""The loop that follows jobs for all who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

from mcfuser_db import Order, Storage
from mcfuser_service import watch as watching
from mcfuser_service.watch import JobWatch


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


def test_each_follower_sees_the_newest_version_once(store: Storage) -> None:
    id = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(id) as one, watch.following(id) as other:
            first = await one.after(0, 60)
            assert first is not None and first.version == 1
            assert await one.after(1, 0.05) is None
            store.claim("w", 60)
            store.cancel(id)
            newest = await one.after(1, 60)
            while newest is not None and newest.job.state != "cancelled":
                newest = await one.after(newest.version, 60)
            assert newest is not None and '"cancelled"' in newest.json
            assert await other.after(1, 60) is newest, "the same JSON for both"

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
                found = await late.after(1, 0.0)
                assert found is not None and found.job.state == "cancelled"

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
            assert await follower.after(0, 60) is not None

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
            assert await follower.after(0, 60) is not None

    asyncio.run(follow())
    assert len(asked) >= 4


def test_a_job_that_is_gone_and_a_stop_end_the_wait(store: Storage) -> None:
    kept = submitted(store)

    async def follow() -> None:
        watch = JobWatch(store)
        with watch.following(UUID(int=0)) as gone:
            assert await gone.after(0, 60) is None and gone.ended
        with watch.following(kept) as follower:
            await follower.after(0, 60)
            watch.close()
            assert await follower.after(9, 60) is None and follower.ended
        with watch.following(kept) as late:
            assert await late.after(9, 60) is None

    asyncio.run(follow())


def test_more_jobs_than_fit_in_one_query(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_TOGETHER", 2)
    ids = [submitted(store, str(n)) for n in range(5)]

    async def follow() -> None:
        watch = JobWatch(store)
        changed, gone = watch._changed(dict.fromkeys([*ids, UUID(int=0)], 0))
        assert {job.id for job in changed} == set(ids) and gone == {UUID(int=0)}

    asyncio.run(follow())
