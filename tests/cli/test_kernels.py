"""Kept kernels, as commands go through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.cli.kernels import age_of, device_name, every_kernel, full_key
from mcfuser.errors import InputError
from mcfuser.tune.lookup import Ages
from mcfuser_db import Storage
from tests.support.kernels import tuned


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


def test_a_key_that_several_kernels_begin_with_is_refused(store: Storage) -> None:
    for last in "12":
        store.put(tuned(last.rjust(64, "a")))
    assert full_key(store, "A" * 63 + "1") == "a" * 63 + "1"
    with pytest.raises(InputError, match="several kernels"):
        full_key(store, "aaaaaa")


def test_a_kernel_without_a_cache_key_is_outdated(store: Storage) -> None:
    store.put(replace(tuned(), made=None))
    (row,) = store.kernels()
    assert age_of(store, row, Ages()) == ("outdated", ("it was kept without its cache key",))


def test_a_device_may_be_named_without_its_vendor() -> None:
    assert (device_name(None), device_name("cpu"), device_name("h200")) == (
        None, "cpu", "nvidia/h200",
    )  # fmt: skip
