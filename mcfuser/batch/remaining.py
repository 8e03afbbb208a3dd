"""How long a batch will still take, judged by what its entries took before and take now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from pathlib import Path
from typing import Literal, get_args

from mcfuser.batch import state
from mcfuser.batch.run import Done, Work

Basis = Literal["earlier", "timeout"]
"""What a forecast goes by: what the entry took when it was last done, or its `timeout`."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The seconds that an entry may take, as judged before the batch began."""

    seconds: float
    basis: Basis


@dataclass
class Course:
    """How far a batch is, of which `jobs` entries are done at once.

    `forecasts` has all entries, by their folders and in their order, None where nothing is known of
    one. `begun` has when an entry was begun (time.monotonic), and `done` the seconds that it took,
    None where it was not compiled.
    """

    forecasts: Mapping[str, Forecast | None]
    jobs: int
    begun: dict[str, float] = field(default_factory=dict)
    done: dict[str, float | None] = field(default_factory=dict)

    def begin(self, work: Work) -> None:
        """Notes that an entry is begun now; any thread may call it."""
        self.begun[work.entry.folder] = time.monotonic()

    def end(self, done: Done) -> None:
        """Notes that an entry is done."""
        compiled = not done.unchanged and done.outcome.compiled
        self.done[done.entry.folder] = done.outcome.seconds if compiled else None


def course_of(given: Sequence[Work], folder: Path, jobs: int) -> Course:
    """The course of a batch that has not begun, whose earlier outcomes are kept below `folder`."""
    return Course({w.entry.folder: _forecast(w, folder / w.entry.folder) for w in given}, jobs)


def seconds_left(course: Course, now: float) -> float | None:
    """The seconds from `now` (time.monotonic) until every entry is done, as estimated.

    None where nothing is known of an entry that is left, and until an entry is begun: those that
    are unchanged come first. An entry takes its forecast, times the pace at which the others of
    this batch have kept theirs; one without a forecast takes the mean of the others.
    """
    begun, done = dict(course.begun), dict(course.done)  # other threads add to them
    if not begun:
        return None
    expected = _expectation(course.forecasts, done)
    ends, waiting = [0.0] * course.jobs, list[float]()
    for name, forecast in course.forecasts.items():
        if name in done:
            continue
        seconds = expected(forecast)
        if seconds is None:
            return None
        if name in begun:
            heapreplace(ends, max(0.0, seconds - (now - begun[name])))
        else:
            waiting.append(seconds)
    for seconds in waiting:  # the next one is begun where one ends first
        heapreplace(ends, ends[0] + seconds)
    return max(ends)


def _expectation(
    forecasts: Mapping[str, Forecast | None], done: Mapping[str, float | None]
) -> Callable[[Forecast | None], float | None]:
    """Gives the seconds that an entry with a forecast, or without, takes from its beginning, as far
    as they can be told from the entries that are done."""
    took = {name: seconds for name, seconds in done.items() if seconds is not None}
    mean = sum(took.values()) / len(took) if took else None
    paces = {basis: _pace(basis, forecasts, took) for basis in get_args(Basis)}

    def expected(forecast: Forecast | None) -> float | None:
        return mean if forecast is None else forecast.seconds * paces[forecast.basis]

    return expected


def _pace(
    basis: Basis, forecasts: Mapping[str, Forecast | None], took: Mapping[str, float]
) -> float:
    """What entries took, as a multiple of their forecasts on a basis; 1 where none has one."""
    like = {name: f.seconds for name, f in forecasts.items() if f is not None and f.basis == basis}
    foretold = sum(like[name] for name in took if name in like)
    return sum(took[name] for name in took if name in like) / foretold if foretold > 0 else 1.0


def _forecast(work: Work, folder: Path) -> Forecast | None:
    earlier = state.last(folder)
    if earlier is not None and earlier.compiled:
        return Forecast(earlier.seconds, "earlier")
    timeout = work.entry.options.timeout
    return Forecast(timeout, "timeout") if timeout is not None else None
