"""What a batch says while it goes on."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from mcfuser.batch.remaining import Course, Forecast
from mcfuser.cli.batch_progress import shown

HOURS = {name: Forecast(36000.0, "earlier") for name in "abc"}


def test_where_there_is_no_terminal_each_line_ends_with_the_time_that_is_left() -> None:
    text, course, now = io.StringIO(), Course(HOURS, 1), [0.0]
    console = Console(file=text, soft_wrap=True)
    with shown(console, course, None, lambda: now[0]) as tell:
        tell("[1/3] a cpu: passed (unchanged)")
        course.begun["b"], course.done["a"] = 0.0, None
        tell("[2/3] another one")
        course.done["b"], now[0] = 9000.0, 9000.0
        course.begun["c"] = 9000.0
        tell("[2/3] b cpu: passed, error 1e-07")
        now[0] = 17_999.5
        tell("nearly done")
        course.done["c"] = 1.0
        tell("[3/3] c cpu: passed, error 1e-07")
    assert text.getvalue().splitlines() == [
        "[1/3] a cpu: passed (unchanged)",
        "[2/3] another one; about 20.0 h left",
        "[2/3] b cpu: passed, error 1e-07; about 2.5 h left",
        "nearly done",
        "[3/3] c cpu: passed, error 1e-07",
    ]


def test_no_more_is_left_than_the_batch_may_take() -> None:
    text, course = io.StringIO(), Course(HOURS, 1, {"a": 0.0})
    with shown(Console(file=text, soft_wrap=True), course, 600.0, lambda: 0.0) as tell:
        tell("a line")
    assert text.getvalue() == "a line; about 10 min left\n"


def test_a_terminal_has_a_last_line_that_says_how_far_it_is() -> None:
    text, course = io.StringIO(), Course(HOURS, 1, {"a": time.monotonic()})
    console = Console(file=text, width=80, force_terminal=True, soft_wrap=True)
    with shown(console, course, None) as tell:
        _wait_for(text, "0 of 3 done, about 30.0 h left")
        tell("[1/3] a cpu: passed [not markup]")
        course.done["a"] = None
        _wait_for(text, "1 of 3 done, about 20.0 h left")
    said = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert "\r[1/3] a cpu: passed [not markup]\n" in said
    assert text.getvalue().endswith("\x1b[2K"), "the last line is taken away in the end"


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_said_of_a_time_that_is_not_known(terminal: bool) -> None:
    text, course = io.StringIO(), Course(dict.fromkeys("ab"), 1, {"a": 0.0})
    with shown(Console(file=text, width=80, force_terminal=terminal), course, None) as tell:
        if terminal:
            _wait_for(text, "0 of 2 done")
        tell("a line")
    assert "a line" in text.getvalue() and "left" not in text.getvalue()


def _wait_for(text: io.StringIO, words: str) -> None:
    end = time.monotonic() + 30
    while words not in text.getvalue():
        assert time.monotonic() < end, text.getvalue()
        time.sleep(0.05)
