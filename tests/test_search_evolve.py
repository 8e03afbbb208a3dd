"""Evolutionary search, on plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.search.evolve import EPSILON, MEASURED, POPULATION, Candidate, Found, evolve

Cost = Callable[[Candidate], float]


class Bench:
    """Measures by arithmetic, never the same twice, and remembers what it was asked."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.asked: list[list[Candidate]] = []

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        assert not set(candidates) & set(self.all)
        self.asked.append(list(candidates))
        return [self.cost(c) for c in candidates]

    @property
    def all(self) -> list[Candidate]:
        return [c for batch in self.asked for c in batch]


def estimated(cost: Cost) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: np.asarray([cost(tuple(int(v) for v in row)) for row in rows], np.float64)


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
    found = evolve(rows, estimated(bowl(middle)), Bench(bowl(middle)), seed)
    assert (found.best, found.seconds, found.converged) == (middle, 1.0, True)


@settings(max_examples=50, deadline=None)
@given(MIDDLE, st.integers(0, 10**6), st.floats(0, 0.3))
def test_a_rough_estimate_still_finds_the_optimum(middle, seed, noise) -> None:
    cost = bowl(middle)
    wobble = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, 6**3)

    def rough(c: Candidate) -> float:
        return cost(c) * wobble[c[0] * 36 + c[1] * 6 + c[2]]

    found = evolve(grid(6, 6, 6), estimated(rough), Bench(cost), seed)
    assert found.best == middle  # the next best is twice as slow, and seven others are measured


@pytest.mark.parametrize("seed", range(5))
def test_a_large_space_is_climbed(seed: int) -> None:
    """16,384 candidates: the optimum is not in the first population, but evolution reaches it."""
    middle = (3, 3, 20, 11)
    cost = bowl(middle)
    rows = grid(4, 4, 32, 32)
    bench = Bench(cost)
    found = evolve(rows, estimated(cost), bench, seed)
    first = min(cost(c) for c in bench.asked[0])
    assert found.converged
    assert found.seconds <= first
    assert found.seconds <= 1.0 + 8.0
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

    def search() -> tuple[Found, Bench]:
        bench = Bench(measured)
        return evolve(rows, estimated(cost), bench, seed, trials), bench

    found, bench = search()
    assert len(set(bench.all)) == len(bench.all)  # nothing twice
    assert set(bench.all) <= set(legal)  # nothing illegal
    assert all(0 < len(batch) <= MEASURED for batch in bench.asked)
    assert trials is None or len(bench.all) <= trials
    assert dict(found.measured) == {c: measured(c) for c in bench.all}
    works = [c for c in bench.all if np.isfinite(measured(c))]
    if works:
        assert found.best is not None
        assert found.seconds == measured(found.best) == min(measured(c) for c in works)
    else:
        assert (found.best, found.seconds) == (None, float("inf"))
    again, bench_again = search()
    assert again == found  # the seed decides
    assert bench_again.asked == bench.asked


def test_an_empty_space_is_no_error() -> None:
    bench = Bench(lambda c: 1.0)
    found = evolve(np.zeros((0, 4), np.int64), estimated(lambda c: 1.0), bench, 0)
    assert found == Found(None, float("inf"), {}, 0, False)
    assert bench.asked == []


def test_other_seeds_search_otherwise() -> None:
    cost = bowl((3, 3, 20, 11))
    benches = [Bench(cost) for _ in range(4)]
    for seed, bench in enumerate(benches):
        evolve(grid(4, 4, 32, 32), estimated(cost), bench, seed)
    assert len({tuple(b.all) for b in benches}) > 1


def test_the_first_measured_are_the_best_by_the_estimate() -> None:
    cost = bowl((2, 2, 2))
    bench = Bench(cost)
    evolve(grid(6, 6, 6), estimated(cost), bench, 0)
    expected = sorted(cost(tuple(map(int, row))) for row in grid(6, 6, 6))[:MEASURED]
    assert [cost(c) for c in bench.asked[0]] == expected


def test_the_first_measured_are_no_kin() -> None:
    """All sixteen of the best by the estimate share a gene; eight of each kind come first."""
    cost = bowl((2, 2, 2))
    bench = Bench(cost)
    evolve(grid(6, 6, 6), estimated(cost), bench, 0, kin=lambda c: c[1:])
    assert len({c[1:] for c in bench.asked[0]}) == MEASURED
    assert all(c[0] == 2 for c in bench.asked[0])
    assert len({c[1:] for c in bench.asked[1]}) < len(bench.asked[1])


def test_then_half_are_next_to_the_best() -> None:
    """The estimate knows nothing of the last gene, on which the time depends most."""

    def estimate(c: Candidate) -> float:
        return 10.0 + c[0] + c[1]

    bench = Bench(lambda c: estimate(c) + 5.0 * abs(c[2] - 5))
    found = evolve(grid(6, 6, 6), estimated(estimate), bench, 0, kin=lambda c: c[:2])
    best = min(bench.asked[0], key=bench.cost)
    near = [c for c in bench.asked[1] if sum(a != b for a, b in zip(c, best, strict=True)) == 1]
    assert len(near) >= MEASURED // 2
    assert found.best is not None and found.best[2] == 5


def test_few_kinds_are_filled_up_with_kin() -> None:
    bench = Bench(bowl((2, 2, 2)))
    evolve(grid(6, 6, 6), estimated(bowl((2, 2, 2))), bench, 0, kin=lambda c: c[0] // 3)
    assert len(bench.asked[0]) == MEASURED


def test_what_the_estimate_was_off_by_moves_it() -> None:
    """It takes the first gene's 1 for the fastest, by little, but that is half as fast: after one
    generation of all three, only the others come."""

    def estimate(c: Candidate) -> float:
        return (10.0 + c[1] + c[2] / 10) * (0.97 if c[0] == 1 else 1.0)

    bench = Bench(lambda c: estimate(c) * (2.0 if c[0] == 1 else 1.0))
    evolve(grid(3, 6, 6), estimated(estimate), bench, 0)
    assert {c[0] for c in bench.asked[0]} == {0, 1, 2}
    assert {c[0] for c in bench.asked[1]} == {0, 2}


def test_a_failed_first_generation_is_not_the_end() -> None:
    """Where the estimate's favourites all fail, the next generation measures others."""
    cost = bowl((0, 0, 0))

    def measured(c: Candidate) -> float:
        return float("inf") if cost(c) <= 3.0 else cost(c)  # the estimate's best 7

    found = evolve(grid(6, 6, 6), estimated(cost), Bench(measured), 0)
    assert np.isfinite(found.seconds)


def test_a_gain_below_epsilon_ends_the_search_and_a_larger_one_does_not() -> None:
    rows = np.arange(200, dtype=np.int64).reshape(-1, 1)

    def generations(step: float) -> int:
        order: dict[Candidate, float] = {}

        def measured(candidates: Sequence[Candidate]) -> list[float]:
            best = (1 - step) ** (len(order) // MEASURED)
            order.update(dict.fromkeys(candidates, best))
            return [best] * len(candidates)

        found = evolve(rows, estimated(lambda c: 1.0 + c[0]), measured, 0, trials=MEASURED * 6)
        return found.generations if found.converged else -found.generations

    assert generations(EPSILON / 2) == 2
    assert generations(EPSILON * 2) < -2


def test_stop_ends_the_search_after_a_generation() -> None:
    cost = bowl((3, 3, 20, 11))
    bench = Bench(cost)
    found = evolve(grid(4, 4, 32, 32), estimated(cost), bench, 0, stop=lambda: True)
    assert (found.generations, found.converged) == (1, False)
    assert len(bench.all) == MEASURED


def test_estimates_may_be_infinite_for_some() -> None:
    cost = bowl((2, 2, 2))
    found = evolve(
        grid(6, 6, 6), estimated(lambda c: float("inf") if c[0] == 0 else cost(c)), Bench(cost), 0
    )
    assert found.best == (2, 2, 2)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_estimates_may_be_infinite_for_all() -> None:
    cost = bowl((2, 2, 2))
    found = evolve(grid(6, 6, 6), estimated(lambda c: float("inf")), Bench(cost), 0)
    assert found.best is not None


class Late(Bench):
    """Measures some candidates only when it is waited for, or `after` so many generations."""

    def __init__(self, cost: Cost, slow: Callable[[Candidate], bool], after: int) -> None:
        super().__init__(cost)
        self.slow, self.after = slow, after
        self.waited = 0

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        times = super().__call__(candidates)
        return [float("inf") if self.slow(c) else t for c, t in zip(candidates, times, strict=True)]

    def late(self, wait: bool) -> dict[Candidate, float]:
        self.waited += wait
        come = self.asked if wait else self.asked[: -self.after]
        return {c: self.cost(c) for batch in come for c in batch if self.slow(c)}


@pytest.mark.parametrize("after", [1, 100])
def test_candidates_that_come_late_count(after: int) -> None:
    """The best is one of them, and the search ends only once it has been waited for."""
    cost = bowl((2, 2, 2))
    bench = Late(cost, lambda c: c[0] == 2, after)
    found = evolve(grid(6, 6, 6), estimated(cost), bench, 0, late=bench.late)
    assert (found.best, found.seconds) == ((2, 2, 2), 1.0)
    assert bench.waited > 0 and all(found.measured[c] == cost(c) for c in bench.all)


def test_a_search_goes_on_from_what_came_late() -> None:
    """What is next to a late one that is better than all others is measured as well."""
    cost = bowl((5, 5, 5))
    bench = Late(cost, lambda c: c == (5, 5, 0), 100)
    estimate = estimated(lambda c: 0.5 if c == (5, 5, 0) else 100.0 + c[0] + c[1])
    found = evolve(grid(6, 6, 6), estimate, bench, 0, kin=lambda c: c, late=bench.late)
    beside = [c for c in bench.all if sum(a != b for a, b in zip(c, (5, 5, 0), strict=True)) == 1]
    assert len(beside) >= 4 and found.seconds < cost((5, 5, 0))


def test_a_search_that_is_stopped_waits_for_nothing() -> None:
    cost = bowl((2, 2, 2))
    bench = Late(cost, lambda c: True, 100)
    found = evolve(grid(6, 6, 6), estimated(cost), bench, 0, stop=lambda: True, late=bench.late)
    assert bench.waited == 0 and found.best is None
