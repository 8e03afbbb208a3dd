"""Kernels are found by words, in any order, a bounded part at a time, in every storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

import mcfuser_db
from mcfuser.chain import from_text
from mcfuser_db import Storage, kernel_search
from mcfuser_db.engine import connect
from mcfuser_db.kernel_search import KernelQuery
from tests.support.db_storages import STORAGES, fresh
from tests.support.kernels import tuned

MADE = {
    "1": ("gemm:1,64,64,32,32", "cpu", "float32", 3e-6),
    "2": ("attention:2,64,64,32,32", "nvidia/h200", "float16", 1e-6),
    "3": ("gemm:1,128,64,32,32", "nvidia/h200", "bfloat16", 2e-6),
    "4": ("50%_of_it", "nvidia/h100", "float16", None),
}


@pytest.fixture(params=STORAGES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with fresh(request.param, tmp_path) as url, closing(Storage(url)) as store:
        for key, (chain, device, dtype, seconds) in MADE.items():
            short = chain if ":" in chain else "gemm:1,64,64,32,32"
            kept = replace(from_text(short, dtype), name=chain)
            store.put(
                replace(tuned(key), chain=kept, device=device, measured=seconds, predicted=9e-6)
            )
        yield store


def found(store: Storage, limit: int = 50, **asked: Any) -> str:
    """The last digits of the keys, over all pages."""
    keys, after = "", None
    while True:
        part = store.find_kernels(KernelQuery(**asked), limit, after)
        assert len(part.rows) <= limit
        keys += "".join(row.key[-1] for row in part.rows)
        if part.last is None:
            return keys
        after = part.last


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_every_order_goes_both_ways_over_all_pages(store: Storage, limit: int) -> None:
    orders = {"created": "1234", "chain": "4231", "device": "1423", "dtype": "3421", "time": "2314"}
    for order, up in orders.items():
        assert found(store, limit, order=order, descending=False) == up
        assert found(store, limit, order=order) == up[::-1]


def test_every_word_must_be_somewhere(store: Storage) -> None:
    asked = {
        "": "4321", "GEMM": "31", "h200": "32", "gemm h200": "3", "64,64": "21", "float16 h": "432",
        "50%_": "4", "%": "4", "_": "4", "nothing": "", "0" * 60: "4321", "0" * 63 + "2": "2",
    }  # fmt: skip
    for words, keys in asked.items():
        assert found(store, words=words) == keys, words
    assert found(store, device="nvidia/h200", order="time") == "32"
    assert found(store, device="nvidia/h200", words="attention") == "2"
    assert found(store, device="nvidia/h20") == ""


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_search_looks_at_some_kernels_and_goes_on_after_them(
    store: Storage, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_search, "WINDOW", window)
    for order in ("created", "chain", "device", "dtype", "time"):
        assert sorted(found(store, words="gemm", order=order)) == ["1", "3"]
        assert sorted(found(store, limit=1, words="gemm", order=order, descending=False)) == [
            "1",
            "3",
        ]
    first = store.find_kernels(KernelQuery("attention"), 5, None)
    assert first.last is not None and len(first.rows) == (window == 3)


def test_after_a_kernel_that_is_gone_there_is_nothing(store: Storage) -> None:
    assert store.find_kernels(KernelQuery(), 5, "f" * 64).rows == ()


def test_kernels_of_an_earlier_revision_are_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with closing(Storage(url)) as store:
        store.put(tuned("1"))
        store.put(replace(tuned("2"), measured=None, predicted=1e-9))
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kernels SET document = '{half' WHERE key LIKE '%2'"))
        config = Config()
        config.set_main_option(
            "script_location", str(Path(mcfuser_db.__file__).parent / "migrations")
        )
        config.attributes["connection"] = connection
        command.downgrade(config, "0008")
    engine.dispose()
    with closing(Storage(url)) as store:
        assert found(store, words="gemm:1,64 cpu float32") == "1"
        assert found(store, order="time", descending=False) == "21"
