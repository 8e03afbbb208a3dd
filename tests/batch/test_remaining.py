"""How long a batch will still take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mcfuser.batch import state
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.remaining import Course, Forecast, course_of, seconds_left
from mcfuser.batch.run import Done, Target, Work
from mcfuser.batch.zoo import BatchOptions, Entry

EARLIER = {name: Forecast(float(n), "earlier") for name, n in (("a", 100), ("b", 60), ("c", 20))}


def test_what_entries_took_before_is_what_they_take_until_one_is_done() -> None:
    course = Course(EARLIER, 1, {"a": 10.0})
    assert seconds_left(course, 10.0) == 180
    assert seconds_left(course, 40.0) == 150
    assert seconds_left(course, 1000.0) == 80, "a takes longer than before"


def test_the_pace_of_this_batch_counts() -> None:
    course = Course(EARLIER, 1, {"a": 0.0, "b": 300.0}, {"a": 300.0})
    assert seconds_left(course, 300.0) == 3 * 60 + 3 * 20
    assert seconds_left(course, 330.0) == 3 * 60 - 30 + 3 * 20
    limits = {"d": Forecast(60.0, "timeout"), "e": Forecast(60.0, "timeout")}
    course = Course({**EARLIER, **limits}, 1, {"b": 0.0}, {"a": 300.0, "d": 6.0})
    assert seconds_left(course, 0.0) == 3 * (60 + 20) + 6, "each basis has a pace of its own"


def test_an_entry_of_which_nothing_is_known_takes_the_mean_of_the_others() -> None:
    unknown = dict.fromkeys("abc")
    course = Course(unknown, 1, {"a": 0.0})
    assert seconds_left(course, 5.0) is None
    course = Course(unknown, 1, {"a": 0.0, "b": 8.0}, {"a": 8.0})
    assert seconds_left(course, 10.0) == 6 + 8
    course = Course({**EARLIER, "d": None}, 1, {"a": 0.0})
    assert seconds_left(course, 5.0) is None, "it may take longer than all others together"


def test_entries_are_done_side_by_side() -> None:
    course = Course(EARLIER, 2, {"a": 0.0, "b": 0.0})
    assert seconds_left(course, 0.0) == 100
    assert seconds_left(course, 10.0) == 90
    course = Course({**EARLIER, "d": Forecast(70.0, "earlier")}, 2, {"a": 0.0, "b": 0.0})
    assert seconds_left(course, 0.0) == 60 + 20 + 70, "c and d follow b"


def test_nothing_is_said_before_an_entry_is_begun_and_nothing_is_left_in_the_end() -> None:
    """Those that are unchanged come first, and take no time."""
    course = Course(EARLIER, 1, {}, {"a": None})
    assert seconds_left(course, 0.0) is None
    course.begun["b"] = 0.0
    assert seconds_left(course, 0.0) == 80
    done = Course(EARLIER, 1, {"b": 0.0}, {"a": None, "b": 1.0, "c": 1.0})
    assert seconds_left(done, 0.0) == 0


def work(name: str, timeout: float | None = None) -> Work:
    options = BatchOptions(0, None, timeout, 60.0, None)
    return Work(Entry(name, Path(name), "cpu", (), options), "key", Target("cpu", None))


def test_a_forecast_is_an_earlier_time_or_else_the_timeout(tmp_path: Path) -> None:
    given = [work("known", 5.0), work("limited", 5.0), work("failed"), work("new")]
    for one, outcome in zip(given, (Outcome("disagreed", "why", 40.0), None,
                                    Outcome("failed", "why", 40.0)), strict=False):  # fmt: skip
        (tmp_path / one.entry.folder).mkdir()
        if outcome is not None:
            state.keep(tmp_path / one.entry.folder, "another key", outcome)
    found = course_of(given, tmp_path, 3)
    assert (found.jobs, [*found.forecasts.values()]) == (
        3, [Forecast(40.0, "earlier"), Forecast(5.0, "timeout"), None, None],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "unchanged", "seconds"),
    [
        (Outcome("passed", None, 4.0), False, 4.0),
        (Outcome("slower", "why", 4.0), False, 4.0),
        (Outcome("passed", None, 4.0), True, None),
        (Outcome("failed", "why", 4.0), False, None),
        (Outcome("not run", "why"), False, None),
    ],
)
def test_only_what_was_compiled_now_tells_how_long_others_take(
    outcome: Outcome, unchanged: bool, seconds: float | None
) -> None:
    one = work("a")
    course = course_of([one], Path("none"), 1)
    before = time.monotonic()
    course.begin(one)
    assert before <= course.begun[one.entry.folder] <= time.monotonic()
    course.end(Done(one.entry, "key", "cpu", outcome, unchanged))
    assert course.done == {one.entry.folder: seconds}
