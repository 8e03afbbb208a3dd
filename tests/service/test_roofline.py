"""Kernels under their device's roofline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from mcfuser.chain import flops
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser_db import Storage
from mcfuser_service import roofline as module
from mcfuser_service.roofline import roofline
from tests.support.kernels import tuned

H200 = CATALOGUE["nvidia/h200"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        for key in "123":
            store.put(tuned(key, device="nvidia/h200"))
        store.put(replace(tuned("4", device="nvidia/h200"), measured=None, predicted=5e-6))
        store.put(tuned("5", device="nvidia/a100"))
        yield store


def test_the_kernel_is_first_and_others_of_its_device_follow(store: Storage) -> None:
    (row,) = store.kernels_of([tuned("2").key])
    found = roofline(store, row, H200)
    assert [k.key[-1] for k in found.kernels] == ["2", "4", "3", "1"]
    assert (found.peak, found.bandwidth) == (H200.throughput("float32"), H200.bandwidth)
    own, predicted = found.kernels[:2]
    assert (own.measured, own.seconds, predicted.measured, predicted.seconds) == (
        True, 2e-5, False, 5e-6,
    )  # fmt: skip
    chain = tuned().chain
    assert own.operations == flops(chain)
    assert own.bytes == 4 * (64 * 32 + 32 * 64 + 64 * 32 + 64 * 32)


def test_there_are_at_most_so_many(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIBLINGS", 1)
    (row,) = store.kernels_of([tuned("1").key])
    assert [k.key[-1] for k in roofline(store, row, H200).kernels] == ["1", "4"]


@pytest.mark.parametrize("document", ["'{half'", "'[1]'", "'{}'", """'{"chain": {"name": 3}}'"""])
def test_damaged_kernels_are_left_out(store: Storage, document: str) -> None:
    with store.writing() as session:
        session.execute(text(f"UPDATE kernels SET document = {document} WHERE key LIKE '%3'"))
    (row,) = store.kernels_of([tuned("2").key])
    assert [k.key[-1] for k in roofline(store, row, H200).kernels] == ["2", "4", "1"]
    (broken,) = store.kernels_of([tuned("3").key])
    assert roofline(store, broken, H200).peak is None


def test_a_device_that_is_not_known_has_no_roof(store: Storage) -> None:
    (row,) = store.kernels_of([tuned("2").key])
    found = roofline(store, row, None)
    assert (found.peak, found.bandwidth, found.kernels) == (None, None, [])
