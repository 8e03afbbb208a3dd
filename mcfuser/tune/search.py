"""The search for a chain's best kernel: some candidates are built while others are measured.

The model estimates every candidate; Algorithm 1 begins others as soon as a builder is free, and
the finalists are timed again in turns. Where the model is trusted the first candidates are its
best ones, with different tiles each; else they are random.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mcfuser.backend import Building, Kernel
from mcfuser.chain import Chain
from mcfuser.measure.request import Measured, smaller
from mcfuser.measure.worker import BATCH, Worker, surest
from mcfuser.process.child import NO_TIME
from mcfuser.search.evolve import MEASURED, Found, evolve
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.knobs import KnobSettings
from mcfuser.space.plan import Floats, Plan
from mcfuser.space.statement import Illegal

FINALISTS = 4
"""Candidates timed again in turns: repeated single timings drift by more than they differ."""
SPARE = 8
"""One source waits for so many builders, lest one of them does."""
SLOWEST = 0.5
"""How long the search waits for its last kernels to be built, as a multiple of what it has
taken."""
LATE = "it took the compiler longer than its peers"
HURRY = 10.0
"""Seconds within which few candidates can be measured: the model's best come first then, and few
are asked for at once."""


@dataclass(frozen=True)
class Best:
    """What a search found, and how: `trials` candidates were measured or built, of `candidates`."""

    plan: Plan
    tiles: Mapping[str, int]
    settings: KnobSettings
    kernel: Kernel
    result: Measured
    predicted: float
    trials: int
    candidates: int


def in_flight(workers: int) -> int:
    """Candidates under way at once, beside so many builders."""
    return max(MEASURED, workers + workers // SPARE)


def announce(worker: Worker, chain: Chain, seed: int, offsets: Mapping[str, float]) -> None:
    """Has the inputs made that a search will measure candidates on, and then its finalists; not on
    a host that is itself what is timed."""
    if worker.backend.on_host:
        return
    worker.ahead(chain, seed, False, offsets)
    worker.ahead(chain, seed + 1, False, {}, varied=True)
    worker.ahead(chain, seed + 1, True, {})


@dataclass
class Search:
    """One search on the device that `worker` measures on; `failed` counts reasons."""

    chain: Chain
    found: Candidates
    worker: Worker
    name: str
    seed: int
    trials: int | None
    deadline: float
    offsets: Mapping[str, float]
    failed: Counter[str]
    tell: Callable[[int, int], None]
    begun: float = field(default_factory=time.monotonic)
    ending: float | None = None
    """When it was first waited for a few that are the last."""
    opening: Sequence[Candidate] = ()
    """The first candidates, as many as are built at once: those are waited for, as patiently as
    for the last."""
    under_way: dict[Candidate, Building] = field(default_factory=dict)
    kernels: dict[Candidate, Kernel] = field(default_factory=dict)
    results: dict[Candidate, Measured] = field(default_factory=dict)

    def run(self) -> Best | None:
        """The best candidate, None where every one that was tried failed."""
        if not len(self.found):
            return None
        builder, trusted = self.worker.builder, self.worker.backend.trusted
        try:
            search = evolve(
                self.found.rows, self.times, self.measure, self.seed, self.trials,
                lambda: self.late or self.unusable or self.spent, lambda: self.due,
                in_flight(builder.workers), trusted or self.hurried,
                (lambda candidate: candidate[1:-1]) if trusted else None,
            )  # fmt: skip
        finally:
            builder.abandon()
        return self._best(search)

    @property
    def times(self) -> Floats:
        """Seconds that the model expects of every candidate."""
        return self.found.estimates(self.found.rows, self.worker.backend.estimate)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def hurried(self) -> bool:
        return time.monotonic() + HURRY > self.deadline

    @property
    def unusable(self) -> bool:
        """Nothing could be measured, and the device is why."""
        return bool(self.results) and all(r.unusable for r in self.results.values())

    @property
    def right(self) -> bool:
        """Something that was measured is."""
        return any(r.seconds is not None for r in self.results.values())

    @property
    def due(self) -> bool:
        """It has taken as long as a search may, and something is right."""
        return time.monotonic() - self.begun >= self.worker.builder.enough and self.right

    @property
    def spent(self) -> bool:
        """The same, and the first candidates have ended."""
        return self.due and not any(c in self.under_way for c in self.opening)

    # --- candidates

    def measure(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        """Begins to build candidates, and gives seconds of those that were built or failed since.
        Those that take the builder too long are given up, the `last` ones soon."""
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
        """Begins to build candidates; gives those that no source can be written of."""
        refused = {}
        for candidate in candidates:
            plan, tiles = self.found.plan(candidate)
            settings = self.found.settings(candidate)
            try:
                self.under_way[candidate] = self.worker.builder.begin(
                    self.chain, plan.schedule(tiles), self.name, settings
                )
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
                refused[candidate] = math.inf
        return refused

    def _patience(self, last: bool) -> float:
        """Seconds to wait for a kernel: more than any of them may take, and less where something is
        right and the last ones keep no more than a quarter of the builders busy."""
        builder = self.worker.builder
        few = last and self.right and len(self.under_way) <= max(1, builder.workers // 4)
        self.ending = (self.ending or time.monotonic()) if few else None
        now = time.monotonic()
        end = now + 2.0 * builder.longest
        if self.ending is not None:
            end = self.ending + SLOWEST * (self.ending - self.begun)
        return max(0.0, min(end, self.deadline) - now)

    def _ended(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """Seconds of candidates that were built or given up, infinity where one failed."""
        built = {}
        for candidate in candidates:
            kernel = self._built(candidate)
            if kernel is not None:
                built[candidate] = kernel
        results = self.worker.measure(
            self.chain, [[kernel] for kernel in built.values()], self.seed, offsets=self.offsets,
            deadline=self.deadline, batch=self.worker.device.units if self.hurried else BATCH,
        )  # fmt: skip
        for candidate, result in zip(built, results, strict=True):
            self.kernels[candidate], self.results[candidate] = built[candidate], result
            if result.failed is not None:
                self.failed[result.failed] += 1
        self.tell(len(self.results), len(self.found))
        seconds = {c: self.results[c].seconds for c in built}
        return {c: seconds.get(c) or math.inf for c in candidates}

    def _built(self, candidate: Candidate) -> Kernel | None:
        """A candidate's kernel; None, with the reason counted, where there is none to measure."""
        building = self.under_way.pop(candidate)
        if not building.done.done() or building.done.cancelled():
            self.failed[LATE] += 1
            return None
        try:
            kernel = building.kernel()
        except Illegal as illegal:
            self.failed[str(illegal)] += 1
            return None
        why = self.worker.backend.unfit(kernel, self.worker.device, measured=True)
        if why is not None:
            self.failed[why] += 1
            return None
        return kernel

    # --- finalists

    def _best(self, search: Found) -> Best | None:
        """The fastest of the first finalists that are right on other inputs as well."""
        ranked = search.ranked(len(search.measured))
        timed = list[tuple[Candidate, Measured]]()
        while ranked and not timed:
            some, ranked = ranked[:FINALISTS], ranked[FINALISTS:]
            timed = self._again(some)
        if not timed:
            return None
        best, result = surest(timed)
        plan, tiles = self.found.plan(best)
        predicted = self.found.estimates(np.asarray([best]), self.worker.backend.estimate)
        trials = sum(r.failed != NO_TIME for r in self.results.values())
        return Best(
            plan, tiles, self.found.settings(best), self.kernels[best], result,
            float(predicted[0]), trials, len(self.found),
        )  # fmt: skip

    def _again(self, ranked: Sequence[Candidate]) -> list[tuple[Candidate, Measured]]:
        """Finalists that are right on other inputs, of varied signs and scales, and at other
        extents where these are known at run time only; timed in turns on whole tensors. The first
        figures stand where there is no time for that, or the device cannot be measured on any
        more."""
        programs = [[self.kernels[c]] for c in ranked]
        ask = partial(
            self.worker.measure, self.chain, programs, self.seed + 1, deadline=self.deadline
        )
        rounds = [ask(varied=True), *(ask(extents=e) for e in smaller(self.chain))]
        rounds.append(ask(together=True))
        found = []
        done = all(r.failed != NO_TIME and not r.unusable for r in rounds[-1])
        for candidate, *told in zip(ranked, *rounds, strict=True):
            bad = (r for r in told if r.failed not in (None, NO_TIME) and not r.unusable)
            wrong = next(bad, None)
            last = told[-1] if done else self.results[candidate]
            if wrong is not None:
                self.failed[f"as a finalist, {wrong.failed}"] += 1
            elif last.seconds is not None:
                found.append((candidate, last))
        return found
