"""Commands whose exit status is the answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mcfuser.process.command import run_command
from mcfuser.process.death import Death

WORK = "tests.support.process_work"


def ran(tmp_path: Path, *words: str, seconds: float = 3600.0, **more: object) -> Death | None:
    return run_command(WORK, words, tmp_path / "output", tmp_path / "errors", seconds, **more)


def test_success_and_failure(tmp_path: Path) -> None:
    assert ran(tmp_path, "status", "0") is None
    assert ran(tmp_path, "status", "7") == Death("death", 7, "the last words\n" * 2)
    assert (tmp_path / "errors").read_text() == "the last words\n" * 2


def test_it_has_nothing_to_read_and_prints_to_its_file(tmp_path: Path) -> None:
    assert ran(tmp_path, "echo") is None
    death = ran(tmp_path, "sleep", seconds=2.0)
    assert death is not None and death.why == "time"
    assert (tmp_path / "output").read_text().strip().isdigit()


def test_a_check_ends_it(tmp_path: Path) -> None:
    end = time.monotonic() + 0.3

    def check() -> None:
        if time.monotonic() > end:
            raise KeyError

    with pytest.raises(KeyError):
        ran(tmp_path, "sleep", check=check)
