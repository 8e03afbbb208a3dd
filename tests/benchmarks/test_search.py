"""The search benchmark's clock, which needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest

import search
from landscape import Landscape, read


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return read(search.DATA / "G4.json")


def test_a_row_for_every_candidate_that_is_not_hopeless(landscape) -> None:
    rows, times, seconds = search.rows_of(landscape)
    assert len(rows) == len(times) == len(seconds) > 300
    assert len(np.unique(rows, axis=0)) == len(rows)
    best = min(p.seconds for p in landscape.points if p.seconds)
    assert seconds.min() == best and np.isfinite(times).all()


def test_more_compilers_take_less_time_and_find_as_much(landscape) -> None:
    over, begun, took = search.simulate(landscape, 16, 18, 2)
    few, fewer, longer = search.simulate(landscape, 2, 8, 2)
    assert 1.0 <= over < 1.05 and 1.0 <= few < 1.1
    assert begun > fewer and took < longer
    assert search.simulate(landscape, 16, 18, 2) == (over, begun, took)


def test_candidates_are_compiled_side_by_side_and_measured_one_by_one() -> None:
    clock = search.Clock({(i,): float(i) for i in range(4)}, 2, 0)
    first = clock([(0,), (1,), (2,), (3,)], False)
    assert len(first) == 1 and clock.now > 0 and clock.begun == 4
    seen, before = dict(first), clock.now
    while len(seen) < 4:
        seen |= clock([], True)
        assert clock.now > before
        before = clock.now
    assert seen == {(i,): float(i) for i in range(4)}
