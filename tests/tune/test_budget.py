"""Which searches would find no more than one that was made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.tune.budget import Budget

counts = st.integers(1, 50)
maybe = st.none() | counts
seconds = st.floats(0.01, 100)
budgets = st.builds(Budget, maybe, seconds, st.sampled_from(["settled", "trials", "time"]))


@pytest.mark.parametrize(
    ("made", "measured", "trials", "seconds", "covered"),
    [
        (Budget(8, 60, "settled"), 5, None, 600, True),
        (Budget(1, 60, "trials"), 1, 1, 60, True),
        (Budget(1, 60, "trials"), 1, 2, 60, False),
        (Budget(1, 60, "trials"), 1, None, 1, False),
        (Budget(None, 5, "time"), 9, None, 5, True),
        (Budget(None, 5, "time"), 9, None, 6, False),
        (Budget(None, 5, "time"), 9, 9, 60, True),
        (Budget(None, 5, "time"), 9, 10, 60, False),
    ],
)
def test_a_larger_search_is_not_stopped(made, measured, trials, seconds, covered: bool) -> None:
    assert made.covers(measured, trials, seconds) is covered


@given(budgets, counts, maybe, seconds)
def test_less_than_what_is_covered_is_covered(made, measured, trials, span) -> None:
    if made.covers(measured, trials, span):
        fewer = max(1, trials - 1) if trials is not None else None
        assert made.covers(measured, fewer, span / 2)
        assert made.covers(measured + 1, trials, span)


@given(budgets, counts)
def test_the_same_again_is_covered(made, measured) -> None:
    if made.ended == "trials" and made.trials is None:
        return  # it could not have ended so
    assert made.covers(measured, made.trials, made.seconds)


def test_it_says_how_the_search_ended() -> None:
    assert str(Budget(1, 60, "trials")) == "cut short by trials=1"
    assert str(Budget(None, 2.5, "time")) == "cut short after 2.5 s"
    assert "nothing better" in str(Budget())
