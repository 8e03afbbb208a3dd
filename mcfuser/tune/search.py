"""The search for a chain's best kernel: some candidates are built while others are measured.

The model estimates every candidate. Algorithm 1 (mcfuser.search.evolve) begins new ones as soon as
a builder is free, and the finalists are timed again, interleaved. Where the model is trusted the
first candidates are those that it predicts best, each with other tiles; else they are random. A
search goes on from what earlier ones measured: their times rank candidates, and a finalist among
these is built, checked and timed anew.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field

import numpy as np

from mcfuser.backend import Building, Kernel
from mcfuser.chain import Chain
from mcfuser.measure.request import Measured, failure
from mcfuser.measure.worker import BATCH, Worker, surest
from mcfuser.process.child import NO_TIME
from mcfuser.search.evolve import MEASURED, evolve
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.knobs import KnobSettings
from mcfuser.space.plan import Floats, Plan
from mcfuser.space.statement import Illegal
from mcfuser.tune.expected import estimated
from mcfuser.tune.finalists import confirmed
from mcfuser.tune.progress import Listener, Progress
from mcfuser.tune.related import plausible

FINALISTS = 4
"""Candidates that are timed again, interleaved: times taken one by one drift by more than they
differ."""
SPARE = 8
"""For each SPARE builders one more candidate is in flight, so that no builder waits for one."""
FIRST = MEASURED // 2
"""Candidates that a search takes from related chains: half of the first generation, so that the
other half finds what differs."""
SLOWEST = 0.5
"""The time that a search waits for its last kernels to be built, as a multiple of the time that it
has taken so far."""
LATE = "it took the compiler longer than its peers"
HURRY = 10.0
"""A search with fewer seconds left than this can measure few candidates: it begins with the one
that is predicted best, then with what was best for related chains where the model expects
hardly more than its time here (related.TRUSTED), and asks for few at once."""


@dataclass(frozen=True)
class Best:
    """The best candidate of a search: its plan, tile sizes, knobs, kernel and measurement.

    `predicted` are the model's seconds for it. `trials` candidates were measured, or only built, of
    `candidates`, by this search and those that it went on from.
    """

    plan: Plan
    tiles: Mapping[str, int]
    settings: KnobSettings
    kernel: Kernel
    result: Measured
    predicted: float
    trials: int
    candidates: int


def in_flight(workers: int) -> int:
    """The number of candidates in flight, given the number of builders."""
    return max(MEASURED, workers + workers // SPARE)


def announce(worker: Worker, chain: Chain, seed: int, offsets: Mapping[str, float]) -> None:
    """Has the measuring process make the test cases of a search and of its finalists in advance.

    It does nothing where kernels run on the host, whose timings that work would disturb.
    """
    if worker.backend.on_host:
        return
    worker.announce(chain, seed, False, offsets, varied=False)
    worker.announce(chain, seed + 1, False, {}, varied=True)
    worker.announce(chain, seed + 1, True, {}, varied=False)


@dataclass
class CandidateSearch:
    """One search among the `candidates` of a chain, on the device that `worker` measures on.

    It measures at most `trials` candidates and ends at the `deadline` (time.monotonic). Reasons for
    which candidates failed are counted in `failed`; `listener` is told how many were compiled and
    measured, and the best time so far. Inputs are drawn from `seed`, around `offsets` (by name).
    `known` are the results of earlier searches, in their order; `keep` is called with the results
    of this one as they come in. The `first` candidates are measured before all others.
    """

    chain: Chain
    candidates: Candidates
    worker: Worker
    name: str
    seed: int
    trials: int | None
    deadline: float
    offsets: Mapping[str, float]
    failed: Counter[str]
    listener: Listener
    known: Mapping[Candidate, Measured] = field(default_factory=dict)
    keep: Callable[[Mapping[Candidate, Measured]], None] = lambda results: None
    first: Sequence[Candidate] = ()
    begun: float = field(default_factory=time.monotonic)
    ending: float | None = None
    """When the search began to wait for the few candidates that are its last (time.monotonic)."""
    opening: Sequence[Candidate] = ()
    """The first candidates, as many as are built at once. A search whose time is over ends only
    when they have ended, too."""
    under_way: dict[Candidate, Building] = field(default_factory=dict)
    kernels: dict[Candidate, Kernel] = field(default_factory=dict)
    results: dict[Candidate, Measured] = field(default_factory=dict)

    def run(self) -> Best | None:
        """The best candidate; None where there are no candidates or all that were tried failed."""
        if not len(self.candidates):
            return None
        self._tell()
        builder, trusted = self.worker.builder, self.worker.backend.trusted
        self.failed.update(r.failed for r in self.known.values() if r.failed is not None)
        times, first = self.times, self.first
        if self.hurried:
            rows = [int(np.argmin(times)), *plausible(self.candidates, times, first)]
            first = [self.candidates.candidate(row) for row in dict.fromkeys(rows)]
        try:
            search = evolve(
                self.candidates.rows,
                times,
                self.measure,
                self.seed,
                self.trials,
                lambda: self.late or self.unusable or self.spent,
                lambda: self.due,
                in_flight(builder.workers),
                trusted or self.hurried,
                (lambda candidate: candidate[1:-1]) if trusted else None,
                {c: r.seconds or math.inf for c, r in self.known.items()},
                first,
            )
        finally:
            builder.abandon()
        best = self._best(search.ranked(len(search.measured)))
        return self._best(self._otherwise()) if best is None else best

    @property
    def tried(self) -> dict[Candidate, Measured]:
        """The results of earlier searches and of this one."""
        return {**self.known, **self.results}

    @property
    def times(self) -> Floats:
        """Seconds that the model expects of every candidate."""
        return estimated(self.candidates, self.worker.backend.estimate)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def hurried(self) -> bool:
        return time.monotonic() + HURRY > self.deadline

    @property
    def unusable(self) -> bool:
        """Whether no candidate could be measured, because of the device."""
        return bool(self.results) and all(r.unusable for r in self.results.values())

    @property
    def has_right(self) -> bool:
        """Whether some candidate was measured and computes what the chain does."""
        return any(r.seconds is not None for r in self.tried.values())

    @property
    def due(self) -> bool:
        """Whether the search has taken as long as it may, and some candidate is right."""
        return time.monotonic() - self.begun >= self.worker.builder.enough and self.has_right

    @property
    def spent(self) -> bool:
        """Whether the search is due and its first candidates have ended."""
        return self.due and not any(c in self.under_way for c in self.opening)

    # --- candidates

    def measure(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        """Begins to build candidates; gives the seconds of those that have been built or have
        failed since the last call (search.evolve.Measure). Builds that take too long are given up,
        the `last` ones sooner."""
        self.opening = self.opening or candidates[: max(MEASURED, self.worker.builder.workers)]
        ended = self._begin(candidates)
        candidate_of = {building.done: c for c, building in self.under_way.items()}
        patience = 0.0 if ended else self._patience(last)
        done = futures.wait(candidate_of, patience, futures.FIRST_COMPLETED).done
        given_up = set() if done or ended else set(candidate_of)
        for future in given_up:
            future.cancel()
        return ended | self._ended([candidate_of[f] for f in candidate_of if f in done | given_up])

    def _begin(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """Begins to build candidates; gives infinity for each for which no source can be
        written."""
        refused = {}
        for candidate in candidates:
            plan, tiles = self.candidates.plan(candidate)
            settings = self.candidates.settings(candidate)
            try:
                self.under_way[candidate] = self.worker.builder.begin(
                    self.chain, plan.schedule(tiles), self.name, settings
                )
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
                refused[candidate] = math.inf
        return refused

    def _patience(self, last: bool) -> float:
        """Seconds to wait for the next kernel.

        That is more than the longest build may take. It is less once some candidate is right and
        the last ones keep at most a quarter of the builders busy.
        """
        builder = self.worker.builder
        few = last and self.has_right and len(self.under_way) <= max(1, builder.workers // 4)
        self.ending = (self.ending or time.monotonic()) if few else None
        now = time.monotonic()
        end = now + 2.0 * builder.longest
        if self.ending is not None:
            end = self.ending + SLOWEST * (self.ending - self.begun)
        return max(0.0, min(end, self.deadline) - now)

    def _ended(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """The seconds of candidates that were built or given up; infinity for each that failed."""
        made = {candidate: self._built(candidate) for candidate in candidates}
        built = {c: kernel for c, kernel in made.items() if isinstance(kernel, Kernel)}
        ended = {c: failure(why) for c, why in made.items() if isinstance(why, str)}
        self.kernels |= built
        self.failed.update(r.failed for r in ended.values() if r.failed is not None)
        self._tell()  # before they are measured, which takes a while
        results = self.worker.measure(
            self.chain,
            [[kernel] for kernel in built.values()],
            self.seed,
            offsets=self.offsets,
            deadline=self.deadline,
            batch=self.worker.device.units if self.hurried else BATCH,
        )
        measured = dict(zip(built, results, strict=True))
        self.results |= measured
        self.failed.update(r.failed for r in measured.values() if r.failed is not None)
        ended |= measured
        self._tell()
        self.keep({c: r for c, r in ended.items() if r.failed != LATE})
        return {c: ended[c].seconds or math.inf for c in candidates}

    def _tell(self) -> None:
        right = (r.seconds for r in self.tried.values() if r.seconds is not None)
        self.listener(
            Progress(
                "measure",
                len(self.tried),
                len(self.candidates),
                len(self.kernels),
                sum(self.failed.values()),
                min(right, default=None),
            )
        )

    def _built(self, candidate: Candidate) -> Kernel | str:
        """The kernel of a candidate, or the reason where the build failed or was given up, or the
        kernel does not fit the device."""
        building = self.under_way.pop(candidate)
        if not building.done.done() or building.done.cancelled():
            return LATE
        try:
            kernel = building.kernel()
        except Illegal as illegal:
            return str(illegal)
        return self.worker.backend.unfit(kernel, self.worker.device, measured=True) or kernel

    # --- finalists

    def _best(self, ranked: Sequence[Candidate]) -> Best | None:
        """The fastest finalist of candidates that were measured, the fastest first.

        The next candidates become finalists where all of the first ones are wrong on other inputs.
        """
        timed = list[tuple[Candidate, Measured]]()
        while ranked and not timed:
            some, ranked = ranked[:FINALISTS], ranked[FINALISTS:]
            self._build_known(some)
            finalists = {c: (self.kernels[c], self.results[c]) for c in some if c in self.kernels}
            timed = confirmed(
                self.worker, self.chain, finalists, self.seed, self.deadline, self.failed
            )
        if not timed:
            return None
        best, result = surest(timed)
        plan, tiles = self.candidates.plan(best)
        alone = np.asarray([best])
        (predicted,) = self.candidates.estimates(alone, self.worker.backend.estimate)
        return Best(
            plan,
            tiles,
            self.candidates.settings(best),
            self.kernels[best],
            result,
            float(predicted),
            sum(r.failed != NO_TIME for r in self.tried.values()),
            len(self.candidates),
        )

    def _otherwise(self) -> list[Candidate]:
        """Candidates that compute otherwise than all that were measured, which were wrong on other
        inputs: with the default of each knob for which all of those had another value, such as
        another algorithm. They are built and measured here; the fastest comes first."""
        wrong = [
            self.candidates.settings(c) for c, r in self.tried.items() if r.seconds is not None
        ]
        table = self.candidates.table
        special = [
            k for k in table.knobs if all(getattr(s, k.name) != k.default for s in wrong)
        ]  # fmt: skip
        if not wrong or not special or self.late:
            return []
        plain = [
            n for n, s in enumerate(table.settings)
            if all(getattr(s, k.name) == k.default for k in special)
        ]  # fmt: skip
        rows = np.flatnonzero(np.isin(self.candidates.rows[:, -1], plain))
        promising = rows[np.argsort(self.times[rows], kind="stable")[:FINALISTS]]
        chosen = [self.candidates.candidate(row) for row in promising]
        self._measure_all(chosen, True)
        results = ((c, self.results.get(c)) for c in chosen)
        seconds = {c: r.seconds for c, r in results if r is not None and r.seconds is not None}
        return sorted(seconds, key=seconds.__getitem__)

    def _measure_all(self, candidates: Sequence[Candidate], last: bool) -> None:
        """Builds and measures candidates, and waits for all of them."""
        self.measure(candidates, last)
        while self.under_way:
            self.measure((), last)
        self.worker.builder.abandon()

    def _build_known(self, finalists: Sequence[Candidate]) -> None:
        """Builds, checks and times those of the finalists that an earlier search measured.

        One that fails now is left without a kernel.
        """
        earlier = [c for c in finalists if c not in self.kernels]
        if not earlier:
            return
        self._measure_all(earlier, False)
        for candidate in earlier:
            if candidate in self.results and self.results[candidate].seconds is None:
                del self.kernels[candidate]
