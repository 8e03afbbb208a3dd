"""The kernels and readings that are kept for commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.cli.kept import kernel_cache, make_data_folder, opened_store
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import InputError
from mcfuser.tune.tuned import MemoryCache
from mcfuser_db import StorageError

L4 = CATALOGUE["nvidia/l4"]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MCFUSER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_probe_that_is_kept_is_the_devices() -> None:
    with opened_store() as store:
        store.keep_probe(L4.name, {"launch": 3e-6}, {})
    with kernel_cache(True, L4) as (_, device):
        assert device == replace(L4, readings=(("launch", 3e-6),))
    with kernel_cache(False, L4) as (cache, device):
        assert isinstance(cache, MemoryCache) and device == L4


def test_a_database_that_fails_is_one_sentence(data: Path) -> None:
    told = r"in '.*data' cannot be used: disk full; free some space"
    with pytest.raises(InputError, match=told), opened_store():
        raise StorageError("disk full")


def test_the_data_folder_is_the_users_alone(data: Path) -> None:
    make_data_folder(data)
    assert data.stat().st_mode & 0o777 == 0o700
    (data / "file").touch()
    with pytest.raises(InputError, match=r"file/kernels' cannot be made.*MCFUSER_DATA"):
        make_data_folder(data / "file" / "kernels")
