"""Fitted constants are kept in versions, and taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.devices.catalogue import device_named
from mcfuser_db import Storage
from mcfuser_db.constants import (
    MOST,
    KeptConstants,
    constants_of,
    keep_constants,
    reset_constants,
)
from tests.support.db_storages import STORAGES, fresh


@pytest.fixture(params=STORAGES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with fresh(request.param, tmp_path) as url, closing(Storage(url)) as store:
        yield store


def in_use(store: Storage) -> KeptConstants | None:
    with store.reading() as session:
        return constants_of(session, "nvidia/l4")


def test_constants_are_kept_over_those_before_and_taken_back(store: Storage) -> None:
    l4 = device_named("l4")
    assert in_use(store) is None and reset_constants(store, l4.name) is None
    assert keep_constants(store, l4.name, {"turn": 1e-6}, {"n": 1}) == 1
    store.keep_probe(l4.name, {"launch": 3e-6}, {})
    assert keep_constants(store, l4.name, {"turn": 2e-6}, {"n": 2}) == 2
    expected = replace(l4, costs=(("turn", 2e-6),), readings=(("launch", 3e-6),))
    assert store.probed(l4) == expected, "a probe takes nothing away"
    assert in_use(store) == KeptConstants(2, {"turn": 2e-6}, {"n": 2})
    assert reset_constants(store, l4.name) == 1
    assert in_use(store) == KeptConstants(1, {"turn": 1e-6}, {"n": 1})
    assert reset_constants(store, l4.name) == 0
    assert store.probed(l4) == replace(l4, readings=(("launch", 3e-6),))
    assert store.probed(device_named("h200")) == device_named("h200")


def test_not_every_version_is_kept_for_ever(store: Storage) -> None:
    for number in range(MOST + 5):
        keep_constants(store, "nvidia/l4", {"turn": float(number)}, {})
    steps = 0
    while reset_constants(store, "nvidia/l4"):
        steps += 1
    assert steps == MOST
