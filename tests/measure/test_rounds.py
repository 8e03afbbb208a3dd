"""Interleaved timings: what rounds show, how sure that is, and when there are enough of them."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.measure.rounds import (
    CONFIDENT,
    EQUAL,
    MARGIN,
    RoundLimits,
    certainty,
    comparison,
    fastest,
    interval,
    is_decided,
    ratios,
    round_limits,
    time_interleaved,
)

positive = st.floats(1e-6, 1e3)
several = st.lists(positive, min_size=1, max_size=30)


@given(several, positive)
def test_certainty_is_of_one_side(found: list[float], limit: float) -> None:
    above = certainty(found, limit)
    below = certainty([1 / r for r in found], 1 / limit)
    assert 0 <= above <= 1 and above + below <= 1 + 1e-9
    assert above <= certainty(found, limit / 2)


@given(several)
def test_the_interval_holds_the_median_and_narrows(found: list[float]) -> None:
    low, high = interval(found)
    ordered = sorted(found)
    assert low <= ordered[len(found) // 2] <= high
    assert (low, high) == (ordered[0], ordered[-1]) if len(found) < 7 else low >= ordered[0]


def test_seven_rounds_that_agree_are_sure_and_six_of_seven_are_not() -> None:
    assert certainty([1.1] * 7, 1.0) >= CONFIDENT > certainty([1.1] * 6 + [0.9], 1.0)
    assert certainty([], 1.0) == 0.0


@given(st.integers(0, 1000), st.floats(1.2, 4.0), st.integers(2, 5))
def test_drift_that_a_round_shares_hides_nothing(seed: int, factor: float, programs: int) -> None:
    rng = random.Random(seed)
    drift = [rng.choice([1.0, 1.0, 5.0, 30.0]) for _ in range(9)]
    costs = [1.0, *(factor * (1 + i) for i in range(programs - 1))]
    order = list(range(programs))
    rng.shuffle(order)
    times = [[costs[i] * d for d in drift] for i in order]
    assert fastest(times) == order.index(0)
    assert is_decided(times, None)
    assert comparison(times, order.index(0))["sure"] >= CONFIDENT


@pytest.mark.parametrize("factor", [1.0, 1.005, 1.3])
@pytest.mark.parametrize("baseline", [0, 1])
def test_a_quiet_machine_needs_no_more_rounds(factor: float, baseline: int) -> None:
    rng = random.Random(1)
    times = [[f * rng.uniform(1, 1.004) for _ in range(7)] for f in (1.0, factor)]
    assert is_decided(times, baseline) and is_decided(times, None)


def test_the_fastest_is_so_in_most_rounds_however_long_those_are() -> None:
    """By a hundredth in four rounds of seven; in the others, of middling length, by far not."""
    drift = [10.0, 20.0, 40.0, 50.0, 30.0, 31.0, 32.0]
    shares = [0.99] * 4 + [1.3] * 3
    times = [[d * s for d, s in zip(drift, shares, strict=True)],
             [d * (2 - s) for d, s in zip(drift, shares, strict=True)]]  # fmt: skip
    assert fastest(times) == 0 and fastest(times[::-1]) == 1


def test_what_is_within_noise_is_not_settled() -> None:
    rng = random.Random(2)
    times = [[rng.uniform(1, 2) for _ in range(7)] for _ in range(2)]
    assert not is_decided(times, None) and not is_decided(times, 0)
    assert is_decided(times[:1], None) and is_decided([], None) and is_decided(times[:1], 0)


def test_the_interval_leaves_out_no_more_than_it_may() -> None:
    """Of 13 ratios the second lies below the median with 0.17 % doubt, the third with 1.1 %: each
    end may have 1 %."""
    assert interval([*map(float, range(13))]) == (1.0, 11.0)
    assert interval([*map(float, range(7))]) == (0.0, 6.0)


def test_of_many_rounds_the_quietest_are_compared() -> None:
    """Two thirds of the rounds are interrupted, for as long as anything takes."""
    rng = random.Random(3)

    def one(cost: float) -> list[float]:
        return [cost * (1.0 if rng.random() < 1 / 3 else rng.uniform(1, 50)) for _ in range(70)]

    times = [one(1.2), one(1.0)]
    assert interval(ratios(*times)) == (pytest.approx(1.2), pytest.approx(1.2))
    assert fastest(times) == 1 and is_decided(times, 0) and is_decided(times, None)


class Clock:
    """Time that passes with every run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[int] = []

    def run(self, name: int, costs) -> float:
        self.order.append(name)
        cost = next(costs)
        self.now += cost
        return cost

    def __call__(self) -> float:
        return self.now


def timed(costs, bounds: RoundLimits) -> tuple[list[list[float]], Clock]:
    clock = Clock()
    runs = [lambda i=i, c=c: clock.run(i, c) for i, c in enumerate(costs)]
    return time_interleaved(runs, bounds, clock), clock


def noise(seed: int, low: float, high: float):
    rng = random.Random(seed)
    return (rng.uniform(low, high) for _ in count())


def test_rounds_end_when_it_is_settled() -> None:
    times, clock = timed([noise(1, 1, 1.001), noise(2, 2, 2.001)], RoundLimits(7, 50, 1e9))
    assert [len(t) for t in times] == [7, 7]
    assert clock.order[:6] == [0, 1, 1, 0, 0, 1], "another one is first in every round"


def test_noise_is_measured_longer_up_to_a_bound() -> None:
    times, _ = timed([noise(1, 1, 3), noise(2, 1, 3)], RoundLimits(7, 50, 1e9))
    assert 7 < len(times[0]) == len(times[1]) <= 50
    short, _ = timed([noise(1, 1, 3), noise(2, 1, 3)], RoundLimits(7, 50, 0.0))
    assert len(short[0]) == 7, "the first rounds are always run"
    alone, _ = timed([noise(1, 1, 3)], RoundLimits(7, 7, 1e9))
    assert len(alone[0]) == 7


def decisions(most: int) -> list[bool]:
    """Whether a program that takes 5 % less is found to be faster, on a machine on which every
    third time is up to twice as long."""
    made = []
    for seed in range(40):
        rng = random.Random(seed)

        def one(cost: float, rng=rng):
            return (cost * (rng.uniform(1.0, 2.0) if rng.random() < 1 / 3 else 1.0)
                    for _ in count())  # fmt: skip

        times, _ = timed([one(0.9), one(1.0)], RoundLimits(7, most, 1e9, 1))
        made.append(certainty(ratios(times[1], times[0]), 1 / MARGIN) >= CONFIDENT)
    return made


def test_more_rounds_make_more_choices_sure() -> None:
    assert sum(decisions(7)) < sum(decisions(49))


def test_of_equal_programs_none_is_surely_faster() -> None:
    wrong = 0
    for seed in range(200):
        times, _ = timed([noise(seed, 1, 2), noise(seed + 1000, 1, 2)], RoundLimits(7, 49, 1e9, 1))
        wrong += certainty(ratios(times[1], times[0]), 1 / MARGIN) >= CONFIDENT
    assert wrong <= 200 * 0.05
    assert EQUAL > 1


def test_a_comparison_says_how_sure_the_chosen_one_is_and_how_far_the_next_one() -> None:
    times = [[1.0] * 7, [1.25] * 7, [1.5] * 7]
    assert comparison(times, 0) == {
        "rounds": 7, "sure": round(certainty([1.25] * 7, 1.0), 4), "next": [1.25, 1.25],
    }  # fmt: skip
    assert comparison([*times[:2], [0.9] * 7], 0)["sure"] == 0.0
    assert comparison(times[:1], 0) == {}


def test_rounds_end_half_a_second_before_the_deadline_or_when_their_time_is_over() -> None:
    assert round_limits(7, 50, 3.0, None, 1, 100.0) == RoundLimits(7, 50, 103.0, 1)
    assert round_limits(7, 50, 3.0, 110.0, None, 100.0) == RoundLimits(7, 50, 103.0, None)
    assert round_limits(7, 50, 3.0, 102.0, None, 100.0) == RoundLimits(7, 50, 101.5, None)


def test_undecided_rounds_end_when_their_time_is_over() -> None:
    now = iter(range(100))  # each look at the clock is a second later
    runs = [iter([1.0, 2.0] * 50).__next__, iter([2.0, 1.0] * 50).__next__]
    times = time_interleaved(runs, RoundLimits(2, 64, 5.0, None), lambda: next(now))
    assert [len(t) for t in times] == [2 + 5, 2 + 5]
