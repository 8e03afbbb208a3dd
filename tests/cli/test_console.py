"""The line of progress."""

from __future__ import annotations

import pytest
from rich.console import Console

from mcfuser.cli import console
from mcfuser.cli.console import progress
from mcfuser.tune.progress import ChainPlace, Note, Progress


def test_a_stage_is_told_once_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "err", Console(stderr=True, soft_wrap=True))
    with progress() as tell:
        for done in range(3):
            tell(Progress("measure", done, 3, chain=ChainPlace(1, 2, "attention")))
        tell(Note("chain 1 of 2: decided"))
        tell(Progress("measure", 1, 1, chain=ChainPlace(2, 2, "ffn")))
        tell(Progress("build"))
    assert capsys.readouterr().err.splitlines() == [
        "measure chain 1 of 2: 2 of 3 candidates", "measure chain 2 of 2",
    ]  # fmt: skip
