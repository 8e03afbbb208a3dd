"""Evolutionary search (MCFuser Algorithm 1).

It is handed `estimate` and `measure` and knows neither devices nor code generators: a candidate
is a row of numbers (plan, tile of every axis, lowering), so plain arithmetic can test it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Candidate = tuple[int, ...]

POPULATION = 256
"""N: large enough that a space of 10^4 is sampled densely; estimating it takes milliseconds."""
MEASURED = 8
"""n: candidates measured in each generation, as in the paper."""
EPSILON = 0.02
"""Relative change of the best time that ends the search: what repeated timings differ by."""
PATIENCE = 1
"""Generations in a row without such a change."""
NEAR = 3.0
"""How much less a measurement says of a candidate for each gene in which the two differ."""
DOUBT = 0.3
"""How many measurements of the same genes the estimate itself is worth."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate, its seconds, every measurement, and how the search ended."""

    best: Candidate | None
    seconds: float
    measured: Mapping[Candidate, float]
    generations: int
    converged: bool

    def ranked(self, count: int) -> list[Candidate]:
        """The fastest that did not fail, so many at most."""
        done = [c for c, t in self.measured.items() if np.isfinite(t)]
        return sorted(done, key=lambda c: self.measured[c])[:count]


@dataclass
class _State:
    measured: dict[Candidate, float] = field(default_factory=dict)
    best: Candidate | None = None
    seconds: float = float("inf")


def evolve(
    rows: Rows,
    estimate: Callable[[Rows], Floats],
    measure: Callable[[Sequence[Candidate]], Sequence[float]],
    seed: int,
    trials: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    first: Rows | None = None,
    each: int = MEASURED,
    kin: Callable[[Candidate], object] | None = None,
    late: Callable[[bool], Mapping[Candidate, float]] = lambda wait: {},
) -> Found:
    """Searches the legal candidates `rows` [candidates, genes]; equal seeds give equal searches.

    The first population is `first`, or drawn at random; `each` generation measures so many. With
    `kin`, the first one measures a candidate of each kin before any second one, and half of every
    later one is next to the best so far, one gene away. What the estimate was off by where it was
    measured moves it for candidates with the same genes.
    `measure` gives seconds, infinity for a candidate that failed or is late; `late` gives those of
    the latter that have come since, or waits for all of them. The search ends when a
    generation's best differs from the best before by less than EPSILON, PATIENCE times in a row;
    at `trials` measurements; when `stop` says so after a generation; or when nothing is left.
    """
    rng = np.random.default_rng(seed)
    legal = set(map(tuple, rows.tolist()))
    values = [np.unique(gene) for gene in rows.T]
    population = rows[rng.permutation(len(rows))[:POPULATION]] if first is None else first
    state = _State()
    quiet = generations = 0
    while len(population) and quiet < PATIENCE and not (generations and stop()):
        generations += 1
        times = _corrected(population, estimate, state.measured)
        left = _left(trials, state, each)
        apart = kin if generations == 1 else None
        chosen = _best_unmeasured(population, times, state.measured, left, apart)
        if kin is not None and state.best is not None:
            beside = rows[(rows != np.asarray(state.best)).sum(axis=1) == 1]
            near = _corrected(beside, estimate, state.measured)
            first_few = _best_unmeasured(beside, near, state.measured, left // 2)
            chosen = list(dict.fromkeys([*first_few, *chosen]))[: max(0, left)]
        if not chosen and left > 0:
            population = _unmeasured(rows, state.measured, rng)
            times = _corrected(population, estimate, state.measured)
            chosen = _best_unmeasured(population, times, state.measured, left)
        if not chosen:
            break
        before = state.seconds
        _take(state, dict(zip(chosen, measure(chosen), strict=True)))
        ending = _settled(before, state) and quiet + 1 >= PATIENCE
        _take(state, late(ending))
        quiet = quiet + 1 if _settled(before, state) else 0
        population = _mutate(population, times, legal, values, rng)
    _take(state, late(not stop()))
    return Found(state.best, state.seconds, state.measured, generations, quiet >= PATIENCE)


def _settled(before: float, state: _State) -> bool:
    """The best is hardly better than the best before."""
    return bool(np.isfinite(before) and before - state.seconds < EPSILON * before)


def _left(trials: int | None, state: _State, each: int) -> int:
    return each if trials is None else min(each, trials - len(state.measured))


def _corrected(
    rows: Rows, estimate: Callable[[Rows], Floats], measured: Mapping[Candidate, float]
) -> Floats:
    """Estimates times what they were off by, of measured candidates the nearest counting most; what
    they are all off by changes no order and is left out."""
    times = estimate(rows)
    if not measured:
        return times
    genes = np.asarray(list(measured), np.int64)
    ratio = np.asarray(list(measured.values())) / np.maximum(estimate(genes), 1e-30)
    known = np.isfinite(ratio) & (ratio > 0)
    if not known.any():
        return times
    genes, off = genes[known], np.log(ratio[known])
    weights = np.stack([NEAR ** -(rows != g).sum(axis=1).astype(np.float64) for g in genes], axis=1)
    moved: Floats = weights @ (off - off.mean()) / (weights.sum(axis=1) + DOUBT)
    result: Floats = times * np.exp(moved)
    return result


def _best_unmeasured(
    population: Rows,
    times: Floats,
    measured: Mapping[Candidate, float],
    count: int,
    kin: Callable[[Candidate], object] | None = None,
) -> list[Candidate]:
    order = [tuple(int(v) for v in population[i]) for i in np.argsort(times, kind="stable")]
    fresh = [c for c in dict.fromkeys(order) if c not in measured]
    if kin is not None:
        firsts: dict[object, Candidate] = {}
        for c in fresh:
            firsts.setdefault(kin(c), c)
        fresh = list(dict.fromkeys([*firsts.values(), *fresh]))
    return fresh[: max(0, count)]


def _unmeasured(rows: Rows, measured: Mapping[Candidate, float], rng: np.random.Generator) -> Rows:
    """A new population from what nobody has looked at: the old one bred true."""
    fresh = np.asarray([tuple(int(v) for v in r) not in measured for r in rows], bool)
    left: Rows = rows[fresh]
    drawn: Rows = left[rng.permutation(len(left))[:POPULATION]]
    return drawn


def _take(state: _State, found: Mapping[Candidate, float]) -> None:
    for candidate, time in found.items():
        state.measured[candidate] = time
        if time < state.seconds:
            state.best, state.seconds = candidate, time


def _mutate(
    population: Rows,
    times: Floats,
    legal: AbstractSet[Candidate],
    values: Sequence[Rows],
    rng: np.random.Generator,
) -> Rows:
    """The next population: drawn by weight 1/t, each with one gene changed to another of its
    `values` where that is legal."""
    weights = 1.0 / np.maximum(times, 1e-30)
    total = weights.sum()
    share = weights / total if total > 0 else None
    drawn = rng.choice(len(population), POPULATION, p=share)
    children = []
    for parent in population[drawn]:
        gene = int(rng.integers(population.shape[1]))
        child = parent.copy()
        child[gene] = rng.choice(values[gene])
        key = tuple(int(v) for v in child)
        children.append(key if key in legal else tuple(int(v) for v in parent))
    return np.asarray(children, np.int64)
