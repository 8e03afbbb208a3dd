"""The benchmark of the store: its rows are read as kept ones are, and every query finds some."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import store_queries
import store_scale
from mcfuser_db import Blobs, Storage
from mcfuser_db.engine import connect, upgrade
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings
from store_rows import Amounts, Template, digest, fill, fill_events, kernel_key
from tests.support.db_storages import fresh
from tests.support.kernels import tuned

AMOUNTS = Amounts(2000, 200, 50, whole=2)
EMPTY = {"jobs running", "attestation", "keyed", "kernels by an unknown chain",
         "kernels by a popular name, rare device"}  # fmt: skip
"""What finds nothing, in so few rows or in any number."""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_every_query_finds_what_was_filled_in(kind: str, tmp_path: Path) -> None:
    templates = [Template.of(replace(tuned(), binary=bytes(n))) for n in (0, 0, 100)]
    with fresh(kind, tmp_path, empty=True) as url:
        engine = connect(url)
        upgrade(engine, store_scale.BEFORE)
        fill(engine, AMOUNTS, templates)
        upgrade(engine)
        fill_events(engine, AMOUNTS)
        engine.dispose()
        settings = ServiceSettings(data=tmp_path, workers=0, database=url)
        with closing(Storage(url)) as store:
            assert store.kernel_count() == 2000
            assert store.counts() == {
                "queued": 50, "running": 0, "done": 160, "failed": 20, "cancelled": 20,
            }  # fmt: skip
            found = store.get(kernel_key(4))
            assert found is not None and len(found.binary) == 0
            for name, query in store_queries.of_store(store, AMOUNTS).items():
                assert bool(query(2)) != (name in EMPTY), name
            app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
            with TestClient(app, base_url="http://localhost") as client:
                for path, query in store_queries.of_http(client, AMOUNTS).items():
                    if "explain" not in path:  # asks a process for what is installed here
                        assert query(2), path
            writes = store_queries.of_writers(store, AMOUNTS, tuned())
            figures = store_scale.measured(writes, 2, 2)
            assert set(figures) == set(writes)
            assert store.counts()["running"] == 0 and store.counts()["done"] == 164
            assert store.get(digest("new 3")) is not None
            store_scale.beside_prune(store, [kernel_key(n) for n in range(0, 2000, 9)])
            assert store.kernel_count() < 2000 - 200


def test_the_best_run_counts() -> None:
    slow = iter([0.02, 0.0])
    figures = store_scale.measured({"x": lambda i: store_scale.time.sleep(next(slow))}, 1, 2)
    assert figures["x"]["p50"] < 15
