"""The benchmark of a batch, with pretended models."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import batch_zoo
from tests.support import zoo


def test_what_a_batch_compiles_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = zoo.Zoo(tmp_path)
    pretended.holds(tiny="good", small="good")

    def started(self: batch_zoo.Zoo) -> subprocess.Popen[str]:
        return pretended.start()

    monkeypatch.setattr("batch_zoo.Zoo.started", started)
    monkeypatch.setattr("batch_zoo.SIZES", {"tiny": 1, "small": 2})
    one = batch_zoo.Zoo(tmp_path, 1)
    killed = one.killed()
    assert killed["compiled"] >= 1 and killed["exit"] == -9
    first = one.ran()
    assert first["exit"] == 0 and first["states"] == ["passed", "passed"]
    assert len(first["compiled"]) == 2 - killed["compiled"]
    assert one.ran()["compiled"] == []
