"""Evolutionary search (MCFuser Algorithm 1), with no barrier between its generations.

`evolve` is given the estimates and a function that measures, and knows neither devices nor code
generators: a candidate is a row of integers, its genes (plan, tile size of every axis, knobs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from mcfuser.space.candidates import Candidate
from mcfuser.space.plan import Floats, Ints

Measure = Callable[[Sequence[Candidate], bool], Mapping[Candidate, float]]
"""Begins to measure candidates, none of which was begun before, and waits until at least one of
those in flight has ended. Gives the seconds of those that have ended since the last call, infinity
for each that failed. The flag says that these are the last candidates of the search, unless one in
flight turns out to be better than the best."""

POPULATION = 256
"""N: large enough that a space of 10^4 is sampled densely; ranking it takes milliseconds."""
MEASURED = 8
"""n: candidates measured in a generation, as in the paper."""
EPSILON = 0.02
"""The least relative gain that counts as one: repeated timings differ by as much."""
NEAR = 3.0
"""A measurement weighs this factor less for each gene in which it differs from a candidate."""
DOUBT = 0.3
"""The weight of the estimate itself, where a measurement of the same genes weighs 1."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best candidate and its seconds, all measurements, and whether the search converged.

    `best` is None, and `seconds` infinity, where every candidate failed.
    """

    best: Candidate | None
    seconds: float
    measured: Mapping[Candidate, float]
    converged: bool

    def ranked(self, count: int) -> list[Candidate]:
        """The `count` fastest candidates, fastest first; fewer where others failed."""
        done = [c for c, t in self.measured.items() if np.isfinite(t)]
        return sorted(done, key=lambda c: self.measured[c])[:count]


def evolve(
    rows: Ints,
    times: Floats,
    measure: Measure,
    seed: int,
    trials: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    close: Callable[[], bool] = lambda: False,
    in_flight: int = MEASURED,
    ranked: bool = False,
    diversity_key: Callable[[Candidate], object] | None = None,
    known: Mapping[Candidate, float] = MappingProxyType({}),
    first: Sequence[Candidate] = (),
) -> SearchResult:
    """Searches the legal candidates `rows` [candidates, genes], whose estimated seconds are `times`
    [candidates]. Equal seeds and measurements give equal searches.

    The first population is drawn at random or, if `ranked`, holds the best by estimate. The first
    generation takes one candidate of each `diversity_key` before a second one of any; with a key,
    half of all later candidates differ from the best so far in one gene. An estimate is corrected
    by the errors found where candidates with similar genes were measured.

    `known` are the seconds of candidates that an earlier search measured, in that order: the search
    goes on from them. They count as measured, and none of them is measured again. The `first`
    candidates are begun before all others, in their order.

    At most `in_flight` candidates are measured at once; new ones are begun when a quarter of them
    have ended. The search ends when it has converged (a generation that was begun after the last
    gain of EPSILON brought none), after `trials` candidates, when `stop` says so and at least n
    have ended, or when no candidate is left. Once `close` says so no more are begun, and the search
    ends with those in flight.
    """
    search = _Search(rows, times, in_flight, diversity_key, np.random.default_rng(seed))
    search.populate(ranked)
    search.resume(known)
    search.waiting = [c for c in first if c in search.number and c not in search.begun]
    most = min(len(search.number), len(rows) if trials is None else trials)
    while not (len(search.measured) >= min(MEASURED, most) and stop()):
        closed = bool(search.begun) and (stop() or close())
        chosen = [] if closed else search.choose(most)
        if not chosen and not search.under_way:
            break
        last = closed or search.converged or len(search.begun) >= most
        search.take(measure(chosen, last))
    return SearchResult(search.best, search.seconds, search.measured, search.converged)


@dataclass
class _Search:
    """A search's state. A population is an array of row numbers; few candidates are tuples."""

    rows: Ints
    times: Floats
    in_flight: int
    diversity_key: Callable[[Candidate], object] | None
    rng: np.random.Generator
    measured: dict[Candidate, float] = field(default_factory=dict)
    begun: dict[Candidate, None] = field(default_factory=dict)
    best: Candidate | None = None
    seconds: float = float("inf")
    held: float = float("inf")
    """The best seconds when the search last gained EPSILON."""
    since: int = 0
    """The number of candidates begun when the search last gained EPSILON."""
    waiting: list[Candidate] = field(default_factory=list)
    """Candidates that are begun before any other."""
    bred: int = 0
    """The number of candidates begun when the population was last replaced."""

    def __post_init__(self) -> None:
        legal = map(tuple, reversed(self.rows.tolist()))  # of equal rows the first has the number
        last = len(self.rows) - 1
        self.number: dict[Candidate, int] = {c: last - i for i, c in enumerate(legal)}
        self.values = [np.unique(gene) for gene in self.rows.T]

    @property
    def under_way(self) -> int:
        return len(self.begun) - len(self.measured)

    @property
    def first(self) -> int:
        """The size of the first generation."""
        return max(MEASURED, self.in_flight)

    @property
    def enough(self) -> int:
        """The number of candidates begun by which the search has converged, if it gains nothing."""
        return max(self.first, self.since) + MEASURED

    @property
    def converged(self) -> bool:
        """Whether a whole generation was begun since the last gain."""
        return self.best is not None and len(self.begun) >= self.enough

    def populate(self, ranked: bool) -> None:
        order = np.argsort(self.times, kind="stable")
        every = order if ranked else self.rng.permutation(len(self.rows))
        self.population = every[:POPULATION]

    def resume(self, known: Mapping[Candidate, float]) -> None:
        """Takes known results, by generations: when each was begun is not known."""
        legal = [c for c in known if c in self.number]
        for at in range(0, len(legal), self.first):
            generation = legal[at : at + self.first]
            self.begun |= dict.fromkeys(generation)
            self.take({c: known[c] for c in generation})

    def choose(self, most: int) -> list[Candidate]:
        """The candidates to begin now, so that at most `most` are begun in all.

        There are none while more than three quarters of `in_flight` are under way.
        """
        free = self.in_flight - self.under_way
        if self.converged or (self.under_way and 4 * free < self.in_flight):
            return []
        if len(self.begun) - self.bred >= self.first:
            self._breed()
        left = (most if self.best is None else min(most, self.enough)) - len(self.begun)
        count = min(free, max(0, left))
        chosen = self._next(count) if count else []
        self.begun |= dict.fromkeys(chosen)
        return chosen

    def _next(self, count: int) -> list[Candidate]:
        if self.waiting:
            chosen, self.waiting = self.waiting[:count], self.waiting[count:]
            self.begun |= dict.fromkeys(chosen)
            return [*chosen, *(self._next(count - len(chosen)) if count > len(chosen) else ())]
        others = self._fresh(self.population, count) or self._fresh(self._drawn(), count)
        at = len(self.begun)
        if self.diversity_key is None or at < self.first:
            return others
        near = self._fresh(self._neighbours(), (at + count) // 2 - at // 2)
        return list(dict.fromkeys([*near, *others]))[:count]

    def take(self, ended: Mapping[Candidate, float]) -> None:
        self.measured |= ended
        for candidate, seconds in ended.items():
            if seconds < self.seconds:
                self.best, self.seconds = candidate, seconds
        if self.seconds <= (1 - EPSILON) * self.held:
            self.held, self.since = self.seconds, len(self.begun)

    def _fresh(self, where: Ints, count: int) -> list[Candidate]:
        """The first `count` of some rows, by corrected estimate, that were not begun before."""
        order = where[np.argsort(self._corrected(where), kind="stable")]
        fresh = [c for c in dict.fromkeys(self._candidates(order)) if c not in self.begun]
        if self.diversity_key is not None and len(self.begun) < self.first:
            fresh = self._diverse(fresh, self.diversity_key)
        return fresh[:count]

    def _diverse(
        self, fresh: Sequence[Candidate], diversity_key: Callable[[Candidate], object]
    ) -> list[Candidate]:
        """The candidates, reordered: first one of each key of which none was begun."""
        seen = {diversity_key(c) for c in self.begun}
        firsts: dict[object, Candidate] = {}
        for c in fresh:
            if (key := diversity_key(c)) not in seen:
                firsts.setdefault(key, c)
        return list(dict.fromkeys([*firsts.values(), *fresh]))

    def _candidates(self, where: Ints) -> Iterable[Candidate]:
        return map(tuple, self.rows[where].tolist())

    def _neighbours(self) -> Ints:
        """The rows that differ from the best candidate in one gene."""
        differing = (self.rows != np.asarray(self.best)).sum(axis=1)
        return np.flatnonzero(differing == 1)

    def _drawn(self) -> Ints:
        """A new population of rows that were not begun, for when the old one has no such row
        left."""
        fresh = np.ones(len(self.rows), bool)
        fresh[[self.number[c] for c in self.begun]] = False
        self.population = self.rng.permutation(np.flatnonzero(fresh))[:POPULATION]
        return self.population

    def _corrected(self, where: Ints) -> Floats:
        """The estimates [rows], multiplied by the factors by which measurements differed from them.

        The factor of a row is the weighted geometric mean over the measured candidates, those with
        the most genes in common weighing most. A factor common to all would change no order and is
        left out.
        """
        known = [(self.number[c], t) for c, t in self.measured.items() if np.isfinite(t)]
        if not known:
            return self.times[where]
        at, seconds = (np.asarray(column) for column in zip(*known, strict=True))
        with np.errstate(divide="ignore"):
            errors = np.log(seconds / np.maximum(self.times[at], 1e-30))
        at, errors = at[np.isfinite(errors)], errors[np.isfinite(errors)]
        differing = (self.rows[where][:, None] != self.rows[at]).sum(axis=2)
        weights = NEAR ** -differing.astype(np.float64)
        common = errors.mean() if len(errors) else 0.0
        correction = weights @ (errors - common) / (weights.sum(axis=1) + DOUBT)
        corrected: Floats = self.times[where] * np.exp(correction)
        return corrected

    def _breed(self) -> None:
        """The next population: parents drawn with weight 1/t, each with one gene set to a value of
        that gene, where this makes a legal candidate."""
        self.bred = len(self.begun)
        weights = 1.0 / np.maximum(self._corrected(self.population), 1e-30)
        total = weights.sum()
        share = weights / total if total > 0 else None
        children = []
        for parent in self.rng.choice(self.population, POPULATION, p=share).tolist():
            gene = int(self.rng.integers(self.rows.shape[1]))
            child = self.rows[parent].tolist()
            child[gene] = int(self.rng.choice(self.values[gene]))
            children.append(self.number.get(tuple(child), parent))
        self.population = np.asarray(children, np.int64)
