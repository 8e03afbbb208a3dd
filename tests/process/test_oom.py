"""The count of processes that Linux has killed for want of memory."""

from __future__ import annotations

from pathlib import Path

from mcfuser.process.oom import oom_kills


def test_the_count_is_read(tmp_path: Path) -> None:
    told = tmp_path / "vmstat"
    told.write_text("nr_free_pages 12\noom_kill 7\noom_kill_other 3\n")
    assert oom_kills(told) == 7


def test_where_nothing_is_told_nothing_is_known(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "none") is None
    (tmp_path / "old").write_text("nr_free_pages 12\n")
    assert oom_kills(tmp_path / "old") is None
