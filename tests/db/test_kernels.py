"""Tuned kernels in every database."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from mcfuser.chain import from_text
from mcfuser.codegen import triton
from mcfuser.devices.catalogue import device_named
from mcfuser.tune.budget import Budget
from mcfuser.tune.tuned import TuneOptions, Use
from mcfuser.tune.tuner import key_of, tune
from mcfuser_db import Storage
from mcfuser_db.kernels import _next_portion
from mcfuser_db.models import KernelRow
from tests.support.clock import Clock
from tests.support.kernels import tuned
from tests.support.speed import slowness
from tests.support.triton_cases import scheduled


def test_a_removal_holds_the_database_for_a_short_time() -> None:
    """It begins with one kernel, and removes as many at once as fit into that time."""
    sizes, size = [], 1
    for seconds_of_one in (0.001,) * 7 + (0.01,) * 6:
        size = _next_portion(size, size * seconds_of_one)
        sizes.append(size)
    assert sizes == [2, 4, 8, 16, 16, 16, 16, 8, 4, 2, 2, 2, 2]
    assert _next_portion(1, 9.0) == 1 and _next_portion(100, 0.0) == 100


class TestKernels:
    def test_a_kernel_comes_back_as_it_was_put(self, store: Storage) -> None:
        one = tuned()
        assert store.get(one.key) is None
        store.put(one)
        assert store.get(one.key) == one
        document = store.kernel(one.key)
        assert document is not None and document == one.to_json()

    def test_of_two_with_one_key_the_later_stays(self, store: Storage) -> None:
        store.put(tuned())
        later = replace(tuned(), measured=1e-6, binary=b"")
        store.put(later)
        assert store.get(later.key) == later and store.kernel_count() == 1

    def test_a_kernel_without_a_measurement(self, store: Storage) -> None:
        predicted = replace(tuned(device="nvidia/h200"), measured=None, error=None)
        store.put(predicted)
        assert store.get(predicted.key) == predicted

    def test_they_are_found_by_device_and_chain(self, store: Storage, clock: Clock) -> None:
        attention = "attention:2,64,64,32,32"
        for key, chain, device in (
            ("1", attention, "cpu"), ("2", "gemm:1,64,64,32,32", "cpu"),
            ("3", attention, "nvidia/l4"),
        ):  # fmt: skip
            store.put(tuned(key, chain, device))
            clock.wait(1)
        keys = lambda **query: [k.key[-1] for k in store.kernels(**query)]  # noqa: E731
        assert keys() == ["3", "2", "1"]
        assert keys(device="cpu") == ["2", "1"]
        assert keys(chain=attention) == keys(chain=from_text(attention).key) == ["3", "1"]
        assert keys(chain=attention, device="cpu") == ["1"]
        assert keys(limit=2) == ["3", "2"]
        assert keys(limit=2, after="2".rjust(64, "0")) == ["1"]
        assert keys(after="unknown") == []
        row = store.kernels(limit=1)[0]
        assert (row.expression, row.measured, row.predicted) == ("mn(k,h)", 2e-5, 1e-5)

    def test_the_kernels_of_a_compiled_model_are_found_by_its_chain(self, store: Storage) -> None:
        """Those of its pieces, and those that were tuned under other names, too."""
        whole, piece, other = tuned("1"), tuned("2", "gemm:1,32,32,32,32"), tuned("3")
        for one in (whole, piece, other):
            store.put(one)
        long = "model/" + "layer/" * 2000
        uses = [Use("c" * 64, long, whole.key), Use("c" * 64, long, piece.key)]
        store.note([])
        store.note(uses)
        store.note([*uses, Use("d" * 64, "elsewhere", piece.key)])
        for asked in ("c" * 64, long):
            assert {k.key for k in store.kernels(chain=asked)} == {whole.key, piece.key}
        assert [k.key for k in store.kernels(chain="elsewhere")] == [piece.key]
        assert list(store.kernels(chain="c" * 64, device="nvidia/l4")) == []
        assert list(store.kernels(chain="unknown")) == []

    def test_the_keys_kept_for_a_chain_are_told(self, store: Storage) -> None:
        one, other = tuned("1"), tuned("2", "gemm:1,32,32,32,32")
        store.put(one)
        store.put(other)
        store.put(replace(tuned("3"), made=None))
        assert store.keys_of(one.chain.key) == [one.made]
        with store._engine.begin() as connection:
            connection.execute(text("UPDATE kernels SET made = '{}'"))
        assert store.keys_of(one.chain.key) == []

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE kernels SET document = '{}'",
            "UPDATE kernels SET document = '[1]'",
            'UPDATE kernels SET document = \'{"key": "k", "from_the_future": 1}\'',
            "UPDATE kernels SET document = 'null'",
        ],
    )
    def test_a_damaged_row_is_a_miss_and_is_replaced(
        self, store: Storage, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = tuned()
        store.put(one)
        with store._engine.begin() as connection:
            connection.execute(text(damage))
        assert store.get(one.key) is None
        assert one.key in caplog.text
        store.put(one)
        assert store.get(one.key) == one


@pytest.mark.parametrize("damage", [{"binary": b"half"}, {"document": {"source": "other"}}])
def test_a_record_that_was_changed_is_a_miss(tmp_path: Path, damage: dict[str, Any]) -> None:
    store, one = Storage(f"sqlite:///{tmp_path / 'x.db'}"), tuned()
    store.put(one)
    with store._write.begin() as session:
        row = session.get_one(KernelRow, one.key)
        row.binary = damage.get("binary", row.binary)
        row.document = row.document | damage.get("document", {})
    assert store.get(one.key) is None
    store.close()


def test_a_document_that_is_no_json_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, one = Storage(f"sqlite:///{tmp_path / 'x.db'}"), tuned()
    store.put(one)
    with store._engine.begin() as connection:
        connection.execute(text("UPDATE kernels SET document = '{half'"))
    assert store.get(one.key) is None and one.key in caplog.text
    store.put(one)
    assert store.get(one.key) == one
    store.close()


def test_a_known_chain_comes_from_a_file_within_five_milliseconds(tmp_path: Path) -> None:
    """Time on a processor of 2024: what other tests do meanwhile does not count. They do push the
    caches empty, so it is asked as often as that takes to happen once in between."""
    url, device, options = (
        f"sqlite:///{tmp_path / 'kernels.db'}",
        device_named("h200"),
        TuneOptions(),
    )
    chain = from_text("attention:12,512,512,64,64")
    key = key_of(chain, device, options)
    source = triton.generate(scheduled(chain, "mh.nk", {"m": 64, "n": 64, "k": 64, "h": 64}), "k")
    with closing(Storage(url)) as store:
        store.put(replace(
            tuned(key.digest), chain=chain, binary=bytes(60_000), measured=1e-6, made=key,
            source=source.text, launch=triton.to_record(source),
            resources={"shared": 1, "registers": 2, "spills": 0}, budget=Budget(),
        ))  # fmt: skip
    spent, limit = [math.inf], 5e-3 * slowness()
    while min(spent) >= limit and len(spent) < 400:
        with closing(Storage(url)) as store:
            start = time.process_time()
            found = tune(from_text("attention:12,512,512,64,64"), device, store, options)
            spent.append(time.process_time() - start)
            assert found.key == key.digest
    assert min(spent) < limit
