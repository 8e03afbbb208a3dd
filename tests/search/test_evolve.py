"""Evolutionary search, on plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.search.evolve import EPSILON, MEASURED, POPULATION, Candidate, SearchResult, evolve

Cost = Callable[[Candidate], float]


class Bench:
    """Measures by arithmetic, never the same twice, and remembers what it was asked."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.asked: list[list[Candidate]] = []

    def __call__(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        assert not set(candidates) & set(self.all)
        self.asked.append(list(candidates))
        return {c: self.cost(c) for c in candidates}

    @property
    def all(self) -> list[Candidate]:
        return [c for batch in self.asked for c in batch]


def estimated(rows: np.ndarray, cost: Cost) -> np.ndarray:
    return np.asarray([cost(tuple(row)) for row in rows.tolist()], np.float64)


def grid(*sizes: int) -> np.ndarray:
    return np.asarray(list(every(*(range(n) for n in sizes))), np.int64)


def bowl(middle: Sequence[int]) -> Cost:
    return lambda c: 1.0 + sum((a - b) ** 2 for a, b in zip(c, middle, strict=True))


MIDDLE = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))


@settings(max_examples=50, deadline=None)
@given(MIDDLE, st.integers(0, 10**6))
def test_a_small_space_is_ranked_whole_and_its_optimum_found(middle, seed) -> None:
    rows = grid(6, 6, 6)
    assert len(rows) <= POPULATION
    result = evolve(rows, estimated(rows, bowl(middle)), Bench(bowl(middle)), seed)
    assert (result.best, result.seconds, result.converged) == (middle, 1.0, True)


@settings(max_examples=50, deadline=None)
@given(MIDDLE, st.integers(0, 10**6), st.floats(0, 0.3))
def test_a_rough_estimate_still_finds_the_optimum(middle, seed, noise) -> None:
    cost = bowl(middle)
    wobble = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, 6**3)

    def rough(c: Candidate) -> float:
        return cost(c) * wobble[c[0] * 36 + c[1] * 6 + c[2]]

    result = evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), rough), Bench(cost), seed)
    assert result.best == middle  # the next best is twice as slow, and seven others are measured


@pytest.mark.parametrize("seed", range(5))
def test_a_large_space_is_climbed(seed: int) -> None:
    """16,384 candidates: the optimum is not in the first population, but evolution reaches it."""
    middle = (3, 3, 20, 11)
    cost = bowl(middle)
    rows = grid(4, 4, 32, 32)
    bench = Bench(cost)
    result = evolve(rows, estimated(rows, cost), bench, seed)
    first = min(cost(c) for c in bench.asked[0])
    assert result.converged
    assert result.seconds <= first
    assert result.seconds <= 1.0 + 8.0
    assert len(bench.all) < 0.01 * len(rows)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=60),
    st.integers(0, 10**6),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from(["none", "some", "all"]),
)
def test_what_holds_of_every_search(legal, seed, trials, failing) -> None:
    """Also where candidates are given twice, fail, or are none at all."""
    rows = np.asarray(legal, np.int64).reshape(-1, 3)
    cost = bowl((2, 2, 2))

    def measured(c: Candidate) -> float:
        failed = failing == "all" or (failing == "some" and sum(c) % 3 == 0)
        return float("inf") if failed else cost(c)

    def search() -> tuple[SearchResult, Bench]:
        bench = Bench(measured)
        return evolve(rows, estimated(rows, cost), bench, seed, trials), bench

    result, bench = search()
    assert len(set(bench.all)) == len(bench.all)  # nothing twice
    assert set(bench.all) <= set(legal)  # nothing illegal
    assert all(0 < len(batch) <= MEASURED for batch in bench.asked)
    assert trials is None or len(bench.all) <= trials
    assert dict(result.measured) == {c: measured(c) for c in bench.all}
    works = [c for c in bench.all if np.isfinite(measured(c))]
    if works:
        assert result.best is not None
        assert result.seconds == measured(result.best) == min(measured(c) for c in works)
    else:
        assert (result.best, result.seconds) == (None, float("inf"))
    again, bench_again = search()
    assert again == result  # the seed decides
    assert bench_again.asked == bench.asked


def test_an_empty_space_is_no_error() -> None:
    bench = Bench(lambda c: 1.0)
    result = evolve(np.zeros((0, 4), np.int64), np.zeros(0), bench, 0)
    assert result == SearchResult(None, float("inf"), {}, False)
    assert bench.asked == []


def test_other_seeds_search_otherwise() -> None:
    cost = bowl((3, 3, 20, 11))
    benches = [Bench(cost) for _ in range(4)]
    for seed, bench in enumerate(benches):
        evolve(grid(4, 4, 32, 32), estimated(grid(4, 4, 32, 32), cost), bench, seed)
    assert len({tuple(b.all) for b in benches}) > 1


def test_the_first_measured_are_the_best_by_the_estimate() -> None:
    cost = bowl((2, 2, 2))
    bench = Bench(cost)
    evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), cost), bench, 0)
    expected = sorted(cost(tuple(map(int, row))) for row in grid(6, 6, 6))[:MEASURED]
    assert [cost(c) for c in bench.asked[0]] == expected


def test_the_first_measured_differ_in_their_diversity_keys() -> None:
    """All sixteen of the best by the estimate share a gene; eight of each kind come first."""
    cost = bowl((2, 2, 2))
    bench = Bench(cost)
    evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), cost), bench, 0, diversity_key=lambda c: c[1:])
    assert len({c[1:] for c in bench.asked[0]}) == MEASURED
    assert all(c[0] == 2 for c in bench.asked[0])
    assert len({c[1:] for c in bench.asked[1]}) < len(bench.asked[1])


def test_then_half_are_next_to_the_best() -> None:
    """The estimate knows nothing of the last gene, on which the time depends most."""

    def estimate(c: Candidate) -> float:
        return 10.0 + c[0] + c[1]

    bench = Bench(lambda c: estimate(c) + 5.0 * abs(c[2] - 5))
    result = evolve(
        grid(6, 6, 6), estimated(grid(6, 6, 6), estimate), bench, 0, diversity_key=lambda c: c[:2]
    )
    best = min(bench.asked[0], key=bench.cost)
    near = [c for c in bench.asked[1] if sum(a != b for a, b in zip(c, best, strict=True)) == 1]
    assert len(near) >= MEASURED // 2
    assert result.best is not None and result.best[2] == 5


def test_few_diversity_keys_are_filled_up_with_equal_ones() -> None:
    bench = Bench(bowl((2, 2, 2)))
    evolve(
        grid(6, 6, 6),
        estimated(grid(6, 6, 6), bowl((2, 2, 2))),
        bench,
        0,
        diversity_key=lambda c: c[0] // 3,
    )
    assert len(bench.asked[0]) == MEASURED


def test_what_the_estimate_was_off_by_moves_it() -> None:
    """It takes the first gene's 1 for the fastest, by little, but that is half as fast: after one
    generation of all three, only the others come."""

    def estimate(c: Candidate) -> float:
        return (10.0 + c[1] + c[2] / 10) * (0.97 if c[0] == 1 else 1.0)

    bench = Bench(lambda c: estimate(c) * (2.0 if c[0] == 1 else 1.0))
    evolve(grid(3, 6, 6), estimated(grid(3, 6, 6), estimate), bench, 0)
    assert {c[0] for c in bench.asked[0]} == {0, 1, 2}
    assert {c[0] for c in bench.asked[1]} == {0, 2}


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**10])
def test_what_the_estimate_is_off_by_everywhere_changes_nothing(unit: float) -> None:
    """Estimates that are all a thousand times the seconds choose the same candidates."""

    def estimate(c: Candidate) -> float:
        return 10.0 + c[0] + 1.7 * c[1] + 2.9 * abs(c[2] - 3)

    def asked(factor: float) -> list[list[Candidate]]:
        bench = Bench(lambda c: estimate(c) * (1.3 if c[2] == 3 else 1.0))
        evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), estimate) * factor, bench, 0, trials=40)
        return bench.asked

    assert asked(unit) == asked(1.0)


def test_a_candidate_with_no_legal_neighbour_stays_in_the_population() -> None:
    """No two of these have a gene in common: the second generation is of the first population."""
    rows = np.repeat(np.arange(20000, dtype=np.int64)[:, None], 3, axis=1)
    bench = Bench(lambda c: 1.0 + 1e-6 * c[0])
    evolve(rows, 1.0 + 1e-6 * rows[:, 0], bench, 0, trials=2 * MEASURED, ranked=True)
    assert len(bench.all) == 2 * MEASURED
    assert max(c[0] for c in bench.all) < POPULATION


def test_a_failed_first_generation_is_not_the_end() -> None:
    """Where all candidates that are predicted best fail, the next generation measures others."""
    cost = bowl((0, 0, 0))

    def measured(c: Candidate) -> float:
        return float("inf") if cost(c) <= 3.0 else cost(c)  # the estimate's best 7

    result = evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), cost), Bench(measured), 0)
    assert np.isfinite(result.seconds)


@pytest.mark.parametrize("in_flight", [1, 3, MEASURED, 20])
def test_a_gain_below_epsilon_ends_the_search_and_a_larger_one_does_not(in_flight: int) -> None:
    rows = np.arange(400, dtype=np.int64).reshape(-1, 1)
    first = max(in_flight, MEASURED)

    def begun(step: float) -> int:
        """Candidates until the search converges; a candidate is faster the later it is begun."""
        order: list[Candidate] = []

        def measured(candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
            order.extend(candidates)
            return {c: (1 - step) ** (order.index(c) // MEASURED) for c in candidates}

        result = evolve(rows, 1.0 + rows[:, 0], measured, 0, trials=first * 6, in_flight=in_flight)
        assert result.converged == (len(result.measured) < first * 6)
        return len(result.measured)

    assert begun(EPSILON / 4) == first + MEASURED
    assert begun(EPSILON * 2) == first * 6


def test_gains_below_epsilon_add_up() -> None:
    rows = np.arange(400, dtype=np.int64).reshape(-1, 1)
    times = iter((1 - EPSILON / 4) ** i for i in range(400))

    def measured(candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        return dict(zip(candidates, times, strict=False))

    result = evolve(rows, 1.0 + rows[:, 0], measured, 0, trials=100, in_flight=1)
    assert len(result.measured) == 100


@pytest.mark.parametrize("in_flight", [1, MEASURED, 20])
def test_stop_ends_the_search_once_a_generation_is_measured(in_flight: int) -> None:
    cost, rows = bowl((3, 3, 20, 11)), grid(4, 4, 32, 32)
    bench = Bench(cost)
    result = evolve(rows, estimated(rows, cost), bench, 0, stop=lambda: True, in_flight=in_flight)
    assert (len(bench.asked), result.converged) == (1, False)
    assert len(bench.all) == in_flight


def test_what_fails_at_once_is_no_generation() -> None:
    """A deadline that is over leaves time for as many as are measured in a generation."""
    cost = bowl((3, 3, 20, 11))

    def duration(c: Candidate) -> float:
        return 0.5 if sum(c) % 2 else 5.0

    rows = grid(4, 4, 32, 32)
    bench = Concurrent(lambda c: cost(c) if duration(c) > 1 else float("inf"), duration)
    result = evolve(rows, estimated(rows, cost), bench, 0, stop=lambda: True, in_flight=IN_FLIGHT)
    assert result.best is not None and len(result.measured) >= MEASURED


def test_estimates_may_be_infinite_for_some() -> None:
    cost = bowl((2, 2, 2))
    rows = grid(6, 6, 6)
    times = estimated(rows, lambda c: float("inf") if c[0] == 0 else cost(c))
    result = evolve(rows, times, Bench(cost), 0)
    assert result.best == (2, 2, 2)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_estimates_may_be_infinite_for_all() -> None:
    cost = bowl((2, 2, 2))
    result = evolve(grid(6, 6, 6), estimated(grid(6, 6, 6), lambda c: float("inf")), Bench(cost), 0)
    assert result.best is not None


class Concurrent(Bench):
    """Measures candidates side by side, each of which takes as long as `duration` says."""

    def __init__(self, cost: Cost, duration: Cost, seed: int = 0) -> None:
        super().__init__(cost)
        self.duration, self.now = duration, 0.0
        self.running: dict[Candidate, float] = {}
        self.most, self.least = 0, 10**6
        self.lasts: list[bool] = []

    def __call__(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        super().__call__(candidates, last)
        self.running |= {c: self.now + self.duration(c) for c in candidates}
        self.most, self.lasts = max(self.most, len(self.running)), [*self.lasts, last]
        if not last:
            self.least = min(self.least, len(self.running))
        self.now = min(self.running.values())
        ended = [c for c, end in self.running.items() if end <= self.now]
        for c in ended:
            del self.running[c]
        return {c: self.cost(c) for c in ended}


IN_FLIGHT = 12


def search_concurrently(seed: int, duration: Cost, **more: Any) -> tuple[SearchResult, Concurrent]:
    cost, rows = bowl((3, 3, 20, 11)), grid(4, 4, 32, 32)
    bench = Concurrent(cost, duration)
    rough = estimated(rows, lambda c: cost(c) * (1 + 0.3 * ((c[2] * 7 + c[3]) % 5)))
    return evolve(rows, rough, bench, seed, in_flight=IN_FLIGHT, **more), bench


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0.1, 30.0), min_size=7, max_size=7))
def test_many_are_under_way_until_the_end(seed: int, durations: list[float]) -> None:
    """However long each takes: three quarters of the places are always taken, everything that was
    begun is waited for, and the seed and the durations decide."""

    def duration(c: Candidate) -> float:
        return durations[sum(c) % 7]

    result, bench = search_concurrently(seed, duration)
    assert bench.most == IN_FLIGHT and bench.least > 3 * IN_FLIGHT // 4
    assert set(result.measured) == set(bench.all) and not bench.running
    assert result.converged and bench.lasts[-1]
    again, other = search_concurrently(seed, duration)
    assert again == result and other.asked == bench.asked


def test_one_that_takes_long_holds_up_nothing() -> None:
    """While it runs, others are begun; a search that stops before it has ended has no use of it."""
    first = search_concurrently(0, lambda c: 1.0)[1].asked[0][0]

    def duration(c: Candidate) -> float:
        return 1e6 if c == first else 1.0 + sum(c) % 5

    result, bench = search_concurrently(0, duration)
    assert first in result.measured and len(bench.all) >= IN_FLIGHT + MEASURED
    asked = iter(range(10**6))
    stopped, bench = search_concurrently(0, duration, stop=lambda: next(asked) > 4)
    assert first in bench.running and first not in stopped.measured and stopped.best is not None


def test_a_search_that_is_closed_begins_nothing_and_waits_for_what_it_has_begun() -> None:
    first = search_concurrently(0, lambda c: 1.0)[1].asked[0][0]

    def duration(c: Candidate) -> float:
        return 1e6 if c == first else 1.0 + sum(c) % 5

    asked = iter(range(10**6))
    result, bench = search_concurrently(0, duration, close=lambda: next(asked) > 1)
    assert first in result.measured and set(result.measured) == set(bench.all) and not bench.running
    began = [bool(candidates) for candidates in bench.asked]
    assert began[0] and not any(began[3:]) and bench.lasts == [False] * 3 + [True] * len(began[3:])


def test_a_search_goes_on_from_what_came_late() -> None:
    """The last to end is better than all others: what is next to it is measured as well."""
    cost, rows, late = bowl((5, 5, 5)), grid(6, 6, 6), (5, 5, 0)
    bench = Concurrent(cost, lambda c: 1e6 if c == late else 1.0)
    times = estimated(rows, lambda c: 0.5 if c == late else 100.0 + c[0] + c[1])
    result = evolve(rows, times, bench, 0, in_flight=IN_FLIGHT, diversity_key=lambda c: c)
    near = [c for c in bench.all if sum(a != b for a, b in zip(c, late, strict=True)) == 1]
    assert len(near) >= 4 and result.seconds < cost(late)


def test_a_search_goes_on_from_what_another_one_measured() -> None:
    """Nothing is measured twice, and what is known counts: towards the limit, and to the best."""
    rows, cost = grid(6, 6, 6), bowl((1, 4, 2))
    times = estimated(rows, lambda c: 1.0)
    whole = evolve(rows, times, Bench(cost), 0)
    first = dict(list(whole.measured.items())[:20])
    assert len(whole.measured) > 20
    bench = Bench(cost)
    rest = evolve(rows, times, bench, 0, known=first)
    assert list(rest.measured)[:20] == list(first)
    new = [c for c in rest.measured if c not in first]
    assert new and sum(len(some) for some in bench.asked) == len(new)
    assert rest.seconds <= min(first.values())
    idle = Bench(cost)
    same = evolve(rows, times, idle, 0, known=whole.measured)
    assert same.converged and same.best == whole.best
    assert sum(len(some) for some in idle.asked) <= 8
    few = evolve(rows, times, Bench(cost), 0, trials=20, known=first)
    assert few.measured == first
    strange = evolve(rows, times, Bench(cost), 0, trials=8, known={(9, 9, 9): 1e-9})
    assert strange.best != (9, 9, 9) and len(strange.measured) == 8


def test_the_first_candidates_are_measured_before_all_others() -> None:
    rows, cost = grid(6, 6, 6), bowl((1, 4, 2))
    misled = estimated(rows, bowl((5, 0, 5)))
    bench = Bench(cost)
    seeds = [(1, 4, 3), (9, 9, 9), (2, 4, 2), (1, 4, 3)]
    led = evolve(rows, misled, bench, 0, trials=40, first=seeds)
    assert bench.asked[0][:2] == [(1, 4, 3), (2, 4, 2)] and len(bench.asked[0]) == MEASURED
    alone = Bench(cost)
    left = evolve(rows, misled, alone, 0, trials=40)
    reached = [
        next((i for i, c in enumerate(b.all) if cost(c) <= 2.0), len(b.all)) for b in (bench, alone)
    ]
    assert led.seconds <= left.seconds and reached[0] < 2 < reached[1]
    known = {c: cost(c) for c in bench.all[:8]}
    again = Bench(cost)
    evolve(rows, misled, again, 0, trials=12, first=seeds, known=known)
    assert not set(seeds) & set(again.all), "they were measured before"
