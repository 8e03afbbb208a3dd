"""The candidates of searches are kept in batches, in every storage."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select, text

from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Use
from mcfuser_db import Storage
from mcfuser_db.models import CandidateBatch
from tests.support.kernels import tuned

ONE = tuned()
assert ONE.made is not None
KEY = replace(ONE, key=ONE.made.digest)


def candidate(tile: int, seconds: float | None = 1e-6, failed: str | None = None) -> Tried:
    return Tried("a0a1", {"a0": tile}, None, 1, True, {"rows": 8}, seconds, 1e-7, failed)


def keep(store: Storage, *some: Tried) -> None:
    store.keep_tried(KEY.made, KEY.chain, "cpu", some)


def batches(store: Storage) -> int:
    with store._read() as session:
        return session.scalar(select(func.count()).select_from(CandidateBatch)) or 0


class TestCandidates:
    def test_they_come_back_in_order_each_with_its_last_result(self, store: Storage) -> None:
        assert store.tried(KEY.key) == []
        keep(store, candidate(16), candidate(32, None, "its registers\0 spill"))
        keep(store, candidate(64), candidate(16, 2e-6))
        spilt = candidate(32, None, "its registers spill")
        assert store.tried(KEY.key) == [candidate(16, 2e-6), spilt, candidate(64)]

    def test_they_become_one_batch_when_the_search_is_over(self, store: Storage) -> None:
        for tile in (16, 32, 16):
            keep(store, candidate(tile))
        assert batches(store) == 3
        store.put(KEY)
        assert batches(store) == 1 and store.tried(KEY.key) == [candidate(16), candidate(32)]
        store.put(KEY)
        assert batches(store) == 1 and len(store.tried(KEY.key)) == 2

    def test_damaged_ones_are_left_out(self, store: Storage, caplog) -> None:
        keep(store, candidate(16))
        with store._write.begin() as session:
            for batch in session.scalars(select(CandidateBatch)):
                batch.document = {"knobs": 3}
        keep(store, candidate(32))
        assert store.tried(KEY.key) == [candidate(32)] and KEY.key in caplog.text
        store.put(KEY)
        assert store.tried(KEY.key) == [candidate(32)] and batches(store) == 1

    def test_a_search_without_a_kernel_is_unfinished(self, store: Storage) -> None:
        keep(store, candidate(16), candidate(32))
        keep(store, candidate(64))
        (one,) = store.unfinished()
        assert (one.key, one.device, one.results) == (KEY.key, "cpu", 3)
        assert store.unfinished("nvidia/h200") == []
        store.put(KEY)
        assert store.unfinished() == []

    def test_pruning_removes_kernels_candidates_and_uses(self, store: Storage) -> None:
        keep(store, candidate(16))
        store.put(KEY)
        store.put(tuned("1"))
        store.note([Use(KEY.chain.key, "MatMul_0", KEY.key)])
        assert store.prune([KEY.key, "f" * 64]) == 1
        assert store.tried(KEY.key) == [] and store.kernel_count() == 1
        assert store.kernels(chain="MatMul_0") == []

    def test_a_kernel_that_was_made_anew_is_used_where_the_old_one_was(
        self, store: Storage
    ) -> None:
        store.put(KEY)
        store.note([Use(KEY.chain.key, "MatMul_0", KEY.key)])
        new = tuned("1")
        store.renew_kernel(KEY.key, new)
        assert [k.key for k in store.kernels(chain="MatMul_0")] == [new.key]
        assert store.get(KEY.key) is None and store.kernel_count() == 1
        store.renew_kernel(new.key, replace(new, measured=1e-9))
        kept = store.get(new.key)
        assert kept is not None and kept.measured == 1e-9

    def test_keys_are_found_by_their_first_digits(self, store: Storage) -> None:
        for last in "12":
            store.put(tuned(last.rjust(64, "a")))
        assert len(store.keys_like("aa")) == 2 and store.keys_like("a" * 63 + "2")
        assert store.keys_like("b") == store.keys_like("%") == []


def test_a_document_that_is_no_json_is_as_if_nothing_was_measured(tmp_path: Path) -> None:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        keep(store, candidate(16))
        with store._engine.begin() as connection:
            connection.execute(text("UPDATE candidates SET document = '{half'"))
        assert store.tried(KEY.key) == []
        keep(store, candidate(32))
        store.put(KEY)
        assert store.tried(KEY.key) == []


def test_three_hundred_candidates_take_little_room(tmp_path: Path) -> None:
    """Bytes of the database for each: 50 to 300 are kept for every chain."""
    path = tmp_path / "x.db"
    with closing(Storage(f"sqlite:///{path}")) as store:
        keep(store, candidate(1))
        with store._engine.begin() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        before = path.stat().st_size
        for first in range(0, 3000, 20):
            keep(store, *(candidate(16 + i) for i in range(first, first + 20)))
        store.put(KEY)
    assert (path.stat().st_size - before) / 3000 < 250
