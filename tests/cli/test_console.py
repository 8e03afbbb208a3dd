"""The line of progress."""

from __future__ import annotations

import pytest
from rich.console import Console

from mcfuser.cli import console
from mcfuser.cli.console import progress


def test_a_stage_is_told_once_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "err", Console(stderr=True, soft_wrap=True))
    with progress() as tell:
        for done in range(3):
            tell("measure chain 1", done, 3)
        tell("measure chain 2: again", 1, 1)
        tell("build", 0, 0)
    assert capsys.readouterr().err.splitlines() == [
        "measure chain 1: 2 of 3 candidates", "measure chain 2: again",
    ]  # fmt: skip
