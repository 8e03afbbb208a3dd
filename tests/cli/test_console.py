"""Progress: a line that says what is left on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from mcfuser.cli import console
from mcfuser.cli.console import progress, until
from mcfuser.tune.progress import ChainPlace, Note, Progress


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_is_told_once_it_is_over_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "err", Console(stderr=True, soft_wrap=True))
    clock = Clock()
    with progress(clock) as tell:
        tell(Progress("start"))
        for done in range(300):
            clock.now = done / 100
            tell(Progress("measure", done, 300, best=2e-6, chain=ChainPlace(1, 2, "a"), left=70.0))
        tell(Note("chain 1 of 2: decided"))
        clock.now = 4.0
        tell(Progress("measure", 1, 1, chain=ChainPlace(2, 2, "ffn")))
        clock.now = 6.5
        tell(Progress("build"))
    assert capsys.readouterr().err.splitlines() == [
        "measure chain 1 of 2: 299 of 300 candidates, best 2.0 us, 4.0 s, about 70 s left",
        "measure chain 2 of 2, 2.5 s",
    ]


def shown(monkeypatch: pytest.MonkeyPatch, width: int, told: Progress, **more: bool) -> str:
    """What a terminal of that width has on it while the last stage is under way."""
    text, clock = io.StringIO(), Clock()
    terminal = Console(file=text, width=width, force_terminal=True, soft_wrap=True, **more)  # type: ignore[arg-type]
    monkeypatch.setattr(console, "err", terminal)
    with progress(clock) as tell:
        tell(Progress(told.stage, 0, told.total, chain=told.chain))
        clock.now = 10.0
        tell(told)
        time.sleep(0.2)  # the line is drawn several times a second
    return text.getvalue()


def test_a_terminal_shows_what_is_left_and_no_more_than_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ChainPlace(2, 5, "encoder.layer.0.attention.self.MatMul_12")
    told = Progress("measure", 3, 40, failed=2, best=1.25e-6, chain=place, left=600.0)
    wide = shown(monkeypatch, 160, told)
    assert (
        "measure chain 2 of 5: 3 of 40 candidates, about 10 min left, best 1.2 us, 2 failed, "
        f"'{place.name}'"
    ) in wide
    narrow = shown(monkeypatch, 70, told)
    assert "3 of 40 candidates, about 10 min left" in narrow
    assert "encoder" not in narrow and "failed" not in narrow


def test_work_that_is_done_one_by_one_is_expected_to_go_on_as_it_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "verify: 5 of 25, about 40 s left" in shown(monkeypatch, 80, Progress("verify", 5, 25))
    searched = shown(monkeypatch, 80, Progress("measure", 5, 25))
    assert "5 of 25 candidates" in searched and "left" not in searched


def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Progress("verify", 5, 25)
    assert "\x1b[32m" in shown(monkeypatch, 80, told)
    assert "\x1b[3" not in shown(monkeypatch, 80, told, no_color=True)


def test_a_listener_tells_the_time_until_an_end_where_nothing_better_is_known() -> None:
    heard: list[Progress | Note] = []
    tell = until(time.monotonic() + 50, heard.append)
    tell(Progress("measure", 1, 9))
    tell(Progress("build", left=2.0))
    tell(Note("decided"))
    measured, built, note = heard
    assert isinstance(measured, Progress) and 40 < (measured.left or 0) <= 50
    assert built == Progress("build", left=2.0) and note == Note("decided")
