"""The log of a job, over every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from mcfuser_db import LogLine, Order, Storage
from mcfuser_db import joblog as logs
from tests.support.clock import Clock

START = Clock().now


def submitted(store: Storage) -> UUID:
    return store.submit(Order("a" * 64, "b" * 64, 7, "cpu", {}))[0].id


def words(store: Storage, id: UUID) -> list[str]:
    return [line.words for line in store.log(id).lines]


def test_every_change_of_a_job_leaves_a_line(store: Storage) -> None:
    id = submitted(store)
    store.release("unknown")
    for end in (
        lambda claim: store.retry(claim, "the attempt failed (OSError)"),
        lambda claim: store.postpone(claim, 0, "waiting: the disk is full"),
        lambda claim: store.release("w", blame=False),
        lambda claim: store.interrupted("w"),
        lambda claim: store.release("w"),
    ):
        job = store.claim("w", 60)
        assert job is not None and end(job.claim)
        with store.writing() as session:
            session.get_one(type(job), id).due = None
    job = store.claim("w", 60)
    assert job is not None and store.finish(job.claim, "c" * 64, 3, {})
    store.requeue(id)
    store.cancel(id)
    log = store.log(id)
    assert log.dropped == 0 and {line.moment for line in log.lines} == {START}
    begins = "attempt {} of 3 begins; worker 'w'"
    assert [line.words for line in log.lines] == [
        f"posted for cpu: model {'b' * 64}",
        begins.format(1), "the attempt failed (OSError); queued again, to be tried in 2 s",
        begins.format(2), "waiting: the disk is full",
        begins.format(2), "given back: the worker was asked to stop",
        begins.format(2), "queued again: the server of worker 'w' was ended",
        begins.format(2), "worker 'w' died; queued again, to be tried in 8 s",
        begins.format(3), "done: a module of 3 bytes",
        "queued again: its module is no longer kept",
        "cancelled",
    ]  # fmt: skip


def test_a_log_is_bounded_and_says_how_much_is_missing(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 5)
    id = submitted(store)
    for number in range(4):
        store.note_lines(id, [LogLine(START, f"{number} {part}") for part in "ab"])
    log = store.log(id)
    assert log.dropped == 4
    assert [line.words for line in log.lines] == ["1 b", "2 a", "2 b", "3 a", "3 b"]
    store.note_lines(id, [LogLine(START, str(n)) for n in range(9)])
    assert words(store, id) == ["4", "5", "6", "7", "8"]


def test_a_line_is_one_line_of_characters_that_can_be_printed(store: Storage) -> None:
    id = submitted(store)
    for odd in ("a\nb", "nul \0 in it", "half \ud800", "x" * 9000, "\x1b[31mred"):
        store.note_lines(id, [LogLine(START, odd)])
    found = words(store, id)[1:]
    assert found[:3] == ["a b", "nul   in it", "half  "] and found[4] == " [31mred"
    assert len(found[3]) == logs.LONGEST_LINE and found[3].endswith("…")


def test_a_job_that_is_unknown_has_no_log(store: Storage) -> None:
    store.note_lines(UUID(int=0), [LogLine(START, "lost")])
    assert store.log(UUID(int=0)).lines == []


def test_lines_of_several_writers_are_numbered_one_after_another(store: Storage) -> None:
    id = submitted(store)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.note_lines(id, [LogLine(START, str(n))]), range(40)))
    assert sorted(words(store, id)[1:], key=int) == [str(n) for n in range(40)]
