"""Devices and kernels as users name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mcfuser.cli.kernels import device_name, full_key
from mcfuser.errors import InputError
from mcfuser_db import Storage
from tests.support.kernels import tuned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        yield store


def test_a_key_that_several_kernels_begin_with_is_refused(store: Storage) -> None:
    for last in "12":
        store.put(tuned(last.rjust(64, "a")))
    assert full_key(store, "A" * 63 + "1") == "a" * 63 + "1"
    with pytest.raises(InputError, match="several kernels"):
        full_key(store, "aaaaaa")


def test_a_device_may_be_named_without_its_vendor() -> None:
    assert (device_name(None), device_name("cpu"), device_name("h200")) == (
        None, "cpu", "nvidia/h200",
    )  # fmt: skip
