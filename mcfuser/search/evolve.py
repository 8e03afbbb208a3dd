"""Evolutionary search (MCFuser Algorithm 1), with no barrier between its generations.

It is handed estimates and `measure` and knows neither devices nor code generators: a candidate
is a row of numbers (plan, tile of every axis, lowering), so plain arithmetic can test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcfuser.space.candidates import Candidate
from mcfuser.space.plan import Floats, Ints

Measure = Callable[[Sequence[Candidate], bool], Mapping[Candidate, float]]
"""Begins to measure candidates, none of them twice; the flag says that they are the last, unless
one under way is better. Gives seconds of those that have ended since, infinity for one that failed;
waits until one has ended."""

POPULATION = 256
"""N: large enough that a space of 10^4 is sampled densely; ranking it takes milliseconds."""
MEASURED = 8
"""n: candidates measured in a generation, as in the paper."""
EPSILON = 0.02
"""Relative gain that is one: what repeated timings differ by."""
NEAR = 3.0
"""How much less a measurement says of a candidate for each gene in which the two differ."""
DOUBT = 0.3
"""How many measurements of the same genes the estimate itself is worth."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best candidate, its seconds, every measurement, and how the search ended."""

    best: Candidate | None
    seconds: float
    measured: Mapping[Candidate, float]
    converged: bool

    def ranked(self, count: int) -> list[Candidate]:
        """The fastest that did not fail, so many at most."""
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
    room: int = MEASURED,
    ranked: bool = False,
    kin: Callable[[Candidate], object] | None = None,
) -> SearchResult:
    """Searches the legal candidates `rows` [candidates, genes] with estimated `times`
    [candidates]; what a seed and the measurements decide is decided alike every time.

    The first population is drawn at random, or `ranked`: the best by estimate. With `kin`, the
    first generation has a candidate of each kin before any second one, and half of all later ones
    are next to the best so far, one gene away. What the estimate was off by where it was measured
    moves it for candidates with the same genes.
    There is `room` for so many candidates under way at once; new ones are begun when a quarter of
    it is free. The search ends when a generation begun since the best was last better by EPSILON
    has not made it so; at `trials` candidates; when `stop` says so and n have ended; or when
    nothing is left. Once `close` says so no candidate is begun, and those under way are the last.
    """
    search = _Search(rows, times, room, kin, np.random.default_rng(seed))
    search.populate(ranked)
    most = min(len(search.number), len(rows) if trials is None else trials)
    while not (len(search.measured) >= min(MEASURED, most) and stop()):
        closed = bool(search.begun) and (stop() or close())
        chosen = [] if closed else search.choose(most)
        if not chosen and not search.under_way:
            break
        search.take(measure(chosen, closed or search.settled or len(search.begun) >= most))
    return SearchResult(search.best, search.seconds, search.measured, search.settled)


@dataclass
class _Search:
    """A search's state; candidates are known by their row's number where many are handled."""

    rows: Ints
    times: Floats
    room: int
    kin: Callable[[Candidate], object] | None
    rng: np.random.Generator
    measured: dict[Candidate, float] = field(default_factory=dict)
    begun: dict[Candidate, None] = field(default_factory=dict)
    best: Candidate | None = None
    seconds: float = float("inf")
    held: float = float("inf")
    """The best time when it last was better by EPSILON, and"""
    since: int = 0
    """how many candidates had been begun then."""
    bred: int = 0
    """How many had been when the population was last changed."""

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
        """Candidates of the first generation."""
        return max(MEASURED, self.room)

    @property
    def enough(self) -> int:
        """Candidates in all, once a generation was begun since the last gain."""
        return max(self.first, self.since) + MEASURED

    @property
    def settled(self) -> bool:
        """A generation was begun in vain."""
        return self.best is not None and len(self.begun) >= self.enough

    def populate(self, ranked: bool) -> None:
        order = np.argsort(self.times, kind="stable")
        every = order if ranked else self.rng.permutation(len(self.rows))
        self.population = every[:POPULATION]

    def choose(self, most: int) -> list[Candidate]:
        """What to begin now, `most` in all; nothing while three quarters of the room are taken."""
        free = self.room - self.under_way
        if self.settled or (self.under_way and 4 * free < self.room):
            return []
        if len(self.begun) - self.bred >= self.first:
            self._breed()
        left = (most if self.best is None else min(most, self.enough)) - len(self.begun)
        count = min(free, max(0, left))
        chosen = self._some(count) if count else []
        self.begun |= dict.fromkeys(chosen)
        return chosen

    def _some(self, count: int) -> list[Candidate]:
        others = self._fresh(self.population, count) or self._fresh(self._drawn(), count)
        at = len(self.begun)
        if self.kin is None or at < self.first:
            return others
        near = self._fresh(self._beside(), (at + count) // 2 - at // 2)
        return list(dict.fromkeys([*near, *others]))[:count]

    def take(self, ended: Mapping[Candidate, float]) -> None:
        self.measured |= ended
        for candidate, seconds in ended.items():
            if seconds < self.seconds:
                self.best, self.seconds = candidate, seconds
        if self.seconds <= (1 - EPSILON) * self.held:
            self.held, self.since = self.seconds, len(self.begun)

    def _fresh(self, where: Ints, count: int) -> list[Candidate]:
        """The best by corrected estimate that were not begun."""
        order = where[np.argsort(self._corrected(where), kind="stable")]
        fresh = [c for c in dict.fromkeys(self._candidates(order)) if c not in self.begun]
        if self.kin is not None and len(self.begun) < self.first:
            fresh = self._apart(fresh, self.kin)
        return fresh[:count]

    def _apart(
        self, fresh: Sequence[Candidate], kin: Callable[[Candidate], object]
    ) -> list[Candidate]:
        """One of each kind first that none was begun of."""
        seen = {kin(c) for c in self.begun}
        firsts: dict[object, Candidate] = {}
        for c in fresh:
            if (kind := kin(c)) not in seen:
                firsts.setdefault(kind, c)
        return list(dict.fromkeys([*firsts.values(), *fresh]))

    def _candidates(self, where: Ints) -> Iterable[Candidate]:
        return map(tuple, self.rows[where].tolist())

    def _beside(self) -> Ints:
        """All that are one gene away from the best."""
        found: Ints = np.flatnonzero((self.rows != np.asarray(self.best)).sum(axis=1) == 1)
        return found

    def _drawn(self) -> Ints:
        """A new population from what nobody has looked at: the old one bred true."""
        fresh = np.ones(len(self.rows), bool)
        fresh[[self.number[c] for c in self.begun]] = False
        self.population = self.rng.permutation(np.flatnonzero(fresh))[:POPULATION]
        return self.population

    def _corrected(self, where: Ints) -> Floats:
        """Estimates times what they were off by, of measured candidates the nearest counting most;
        what they are all off by changes no order and is left out."""
        known = [(self.number[c], t) for c, t in self.measured.items() if np.isfinite(t)]
        if not known:
            return self.times[where]
        at, seconds = (np.asarray(column) for column in zip(*known, strict=True))
        with np.errstate(divide="ignore"):
            off = np.log(seconds / np.maximum(self.times[at], 1e-30))
        at, off = at[np.isfinite(off)], off[np.isfinite(off)]
        apart = (self.rows[where][:, None] != self.rows[at]).sum(axis=2)
        weights = NEAR ** -apart.astype(np.float64)
        moved = weights @ (off - (off.mean() if len(off) else 0.0)) / (weights.sum(axis=1) + DOUBT)
        found: Floats = self.times[where] * np.exp(moved)
        return found

    def _breed(self) -> None:
        """The next population: drawn by weight 1/t, each with one gene changed to another of its
        values where that is legal."""
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
