"""Kept kernels, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.tune.lookup import Ages
from mcfuser_db import Storage
from mcfuser_service.kept import age_of, every_kernel
from mcfuser_service.refresh_child import answer
from tests.support.kernels import tuned
from tests.support.records import searched


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        yield store


def test_every_kernel_is_gone_through_page_by_page(store: Storage) -> None:
    keys = {f"{n:064x}" for n in range(3)}
    for key in keys:
        store.put(tuned(key))
    assert {row.key for row in every_kernel(store)} == keys
    assert list(every_kernel(store, "nvidia/h200")) == []


def test_a_kernel_without_a_cache_key_is_outdated(store: Storage) -> None:
    store.put(replace(tuned(), made=None))
    (row,) = store.kernels()
    assert age_of(store, row, Ages()) == ("outdated", ("it was kept without its cache key",))


def test_a_stale_kernel_that_cannot_be_measured_is_counted_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = searched().made
    assert made is not None
    other = replace(made, toolchain=tuple((dict(made.toolchain) | {"sympy": "1.0"}).items()))
    monkeypatch.setattr(CpuBackend, "missing", lambda self: "no CPU is at hand")
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with closing(Storage(url)) as store:
        store.put(replace(searched(), key=other.digest, made=other))
        store.put(searched())
        request = {"store": url, "seconds": 1.0}
        assert answer(request, lambda message: None) == {"refreshed": 0, "failed": 1}
        assert store.kernel_count() == 2
