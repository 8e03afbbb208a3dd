"""What all workers count together, over every database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcfuser_db import Storage
from mcfuser_db.figures import BOUND_NAMES, Figure, add_figures, figures, timed
from tests.support.db_storages import STORAGES, fresh


@pytest.fixture(params=STORAGES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with fresh(request.param, tmp_path) as url:
        store = Storage(url)
        yield store
        store.close()


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [(0.0, "0.1"), (0.1, "0.1"), (0.11, "0.5"), (59.9, "60"), (3600.0, "3600"), (3601.0, "+Inf")],
)
def test_seconds_belong_to_the_bucket_that_holds_them(seconds: float, bound: str) -> None:
    assert timed("stages", "import", seconds) == Figure("stages", "import", bound, 1, seconds)
    assert bound in BOUND_NAMES


def test_what_is_added_is_summed(store: Storage) -> None:
    assert figures(store) == []
    add_figures(store, [Figure("lookups", "hit", count=3), timed("stages", "import", 1.5)])
    add_figures(store, [timed("stages", "import", 1.75), timed("stages", "build", 1.75)])
    add_figures(store, [])
    assert figures(store) == [
        Figure("lookups", "hit", "", 3, 0.0),
        Figure("stages", "build", "2", 1, 1.75),
        Figure("stages", "import", "2", 2, 3.25),
    ]


def test_nothing_is_lost_where_many_add_at_once(store: Storage) -> None:
    some = [Figure("attempts", "done"), Figure("lookups", "miss", count=2)]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda i: add_figures(store, some[:: 1 if i % 2 else -1]), range(40)):
            pass
    assert [t.count for t in figures(store)] == [40, 80]
