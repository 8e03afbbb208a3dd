"""Which webhooks are due, over every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from mcfuser_db import Order, Storage
from mcfuser_db.models import Webhook
from mcfuser_db.webhooks import settle, take_due
from tests.support.clock import Clock

URL = "https://ci.example/hook"


def submitted(store: Storage, work: str = "a", url: str | None = URL) -> UUID:
    order = Order(work.rjust(64, "0"), "b" * 64, 7, "cpu", {}, webhook=url)
    return store.submit(order)[0].id


def due(store: Storage) -> list[tuple[Webhook, UUID]]:
    return [(webhook, job.id) for webhook, job in take_due(store, 10, 60)]


def last_line(store: Storage, id: UUID) -> str:
    return store.log(id).lines[-1].words


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_a_webhook_is_due_once_its_job_is_over(store: Storage, end: str, clock: Clock) -> None:
    id = submitted(store)
    clock.wait(1)
    submitted(store, "b", None)
    assert due(store) == []
    claim = store.claim("w", 60)
    assert claim is not None and claim.id == id and due(store) == []
    if end == "done":
        store.finish(claim.claim, "c" * 64, 3, {})
    elif end == "failed":
        store.fail(claim.claim, {"status": 422, "detail": "no"})
    else:
        store.cancel(id)
    ((webhook, job),) = due(store)
    assert (webhook.url, webhook.attempts, job) == (URL, 1, id)
    assert due(store) == [], "it is taken"
    settle(store, webhook, "delivered", "webhook to ci.example: delivered")
    clock.wait(1e6)
    assert due(store) == [] and last_line(store, id) == "webhook to ci.example: delivered"


def test_a_failed_attempt_is_due_again(store: Storage, clock: Clock) -> None:
    store.cancel(id := submitted(store))
    for attempt, wait in enumerate((5, 30), 1):
        ((webhook, _),) = due(store)
        assert webhook.attempts == attempt
        settle(store, webhook, "waiting", f"status 500; tried again in {wait} s", wait)
        assert last_line(store, id) == f"status 500; tried again in {wait} s"
        clock.wait(wait - 1)
        assert due(store) == []
        clock.wait(1)
    ((webhook, _),) = due(store)
    settle(store, webhook, "given up", "given up")
    clock.wait(1e6)
    assert due(store) == []


def test_an_attempt_whose_server_died_is_made_again(store: Storage, clock: Clock) -> None:
    store.cancel(submitted(store))
    ((lost, _),) = due(store)
    clock.wait(61)
    ((again, _),) = due(store)
    assert again.id == lost.id and again.attempts == 2
    settle(store, lost, "given up", "the dead one speaks")  # it no longer holds the attempt
    settle(store, again, "waiting", "status 500", 1)
    clock.wait(1)
    assert len(due(store)) == 1


def test_a_job_that_is_done_again_tells_only_its_next_end(store: Storage, clock: Clock) -> None:
    id = submitted(store)
    for turn in range(2):
        claim = store.claim("w", 60)
        assert claim is not None and store.finish(claim.claim, "c" * 64, 3, {})
        if turn == 0:
            assert store.requeue(id) and due(store) == [], "its module was lost"
    assert len(due(store)) == 1


def test_of_many_servers_one_takes_an_attempt(store: Storage) -> None:
    for number in range(5):
        store.cancel(submitted(store, str(number)))
    with ThreadPoolExecutor(4) as pool:
        taken = [w.id for some in pool.map(lambda _: due(store), range(8)) for w, _ in some]
    assert len(taken) == len(set(taken)) == 5


def test_who_shares_a_job_is_told_too_and_each_address_once(store: Storage) -> None:
    id = submitted(store)
    for url in (URL, "https://other.example/", URL):
        assert submitted(store, url=url) == id
    claim = store.claim("w", 60)
    assert claim is not None and store.finish(claim.claim, "c" * 64, 3, {})
    found = due(store)
    assert sorted(w.url for w, _ in found) == [URL, "https://other.example/"]
    for webhook, _ in found:
        settle(store, webhook, "delivered", "delivered")
    assert submitted(store) == id, "the job is done: this post is told at once"
    assert [w.url for w, _ in due(store)] == [URL]


def test_a_job_that_is_put_back_tells_its_next_end(store: Storage) -> None:
    store.cancel(id := submitted(store))
    ((first, _),) = due(store)
    settle(store, first, "delivered", "delivered")
    assert store.put_back(id) is not None and due(store) == []
    claim = store.claim("w", 60)
    assert claim is not None and store.finish(claim.claim, "c" * 64, 3, {})
    ((second, _),) = due(store)
    assert second.url == URL and second.id != first.id
