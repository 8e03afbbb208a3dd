"""The import by a process that has just begun."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mcfuser.process.load import leave_out_torch, load

COLLECTING = "import gc\nCOLLECTS = gc.isenabled()\nKEPT = [{'a': [i]} for i in range(100)]\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    gc.unfreeze()
    sys.modules.pop("load_this", None)


def test_nothing_is_collected_meanwhile_nor_is_what_was_imported_later(place: Path) -> None:
    (place / "load_this.py").write_text(COLLECTING)
    frozen = gc.get_freeze_count()
    module = load("load_this")
    assert not module.COLLECTS and gc.isenabled()
    assert gc.get_freeze_count() >= frozen + 200
    assert load("load_this") is module


def test_after_a_failure_the_collector_runs_again(place: Path) -> None:
    (place / "load_this.py").write_text("raise ValueError('no')")
    with pytest.raises(ValueError, match="no"):
        load("load_this")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(place: Path) -> None:
    (place / "load_this.py").write_text(COLLECTING)
    gc.disable()
    try:
        load("load_this")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_torch_is_left_out_where_nothing_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    leave_out_torch()
    with pytest.raises(ImportError):
        import torch  # noqa: F401


def test_torch_that_is_imported_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", theirs)
    leave_out_torch()
    assert sys.modules["torch"] is theirs
