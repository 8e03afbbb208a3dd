"""The search on a GPU at hand: candidates are compiled side by side while others are measured.

The fitted model ranks every candidate; Algorithm 1 starts from its best instead of from random
ones, at first with different tiles each, begins others as soon as a compiler is free, and the
finalists are timed again in turns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mcfuser.backends.cuda.worker import GpuKernel, GpuWorker
from mcfuser.backends.lowerings import LOWERINGS, every, predict
from mcfuser.chain import Chain
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Pending
from mcfuser.device import Device
from mcfuser.measure.worker import Measured, smaller, surest
from mcfuser.model.worth import hopeless
from mcfuser.process.child import NO_TIME
from mcfuser.search.evolve import MEASURED, Found, evolve
from mcfuser.space.candidates import Candidate
from mcfuser.space.plan import Plan
from mcfuser.space.prune import Space
from mcfuser.space.statement import Illegal
from mcfuser.tune.tuned import Tuned, names_of

FINALISTS = 4
"""Candidates timed again in turns: repeated single timings drift by more than they differ."""

SPARE = 8
"""One source waits for so many compilers, lest one of them does."""
SLOWEST = 0.5
"""How long the search waits for its last compilations, as a multiple of what it has taken."""
LATE = "it took the compiler longer than its peers"
COMPILING = 50.0
"""Seconds times compilers that a search may take: most settle before that, and those that do not
gain a few percent at most."""
WAITING = 16.0
"""Seconds that it may take at most, however few compilers there are."""


@dataclass(frozen=True)
class Best:
    """What the search found, and how."""

    plan: Plan
    tiles: Mapping[str, int]
    lowering: triton.Lowering
    kernel: GpuKernel
    result: Measured
    predicted: float
    trials: int
    candidates: int


def room(compilers: int) -> int:
    """Candidates under way at once, beside so many compilers."""
    return max(MEASURED, compilers + compilers // SPARE)


def announce(worker: GpuWorker, chain: Chain, seed: int, offsets: Mapping[str, float]) -> None:
    """Has the inputs made that a search will measure candidates on, and then its finalists."""
    worker.ahead(chain, seed, False, offsets)
    worker.ahead(chain, seed + 1, False, {}, varied=True)
    worker.ahead(chain, seed + 1, True, {})


@dataclass
class GpuSearch:
    """One search on the GPU that `worker` measures on; `failed` counts reasons."""

    chain: Chain
    device: Device
    worker: GpuWorker
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
    """The model's favourites, as many as compile at once: those are waited for, as patiently as
    for the last."""
    under_way: dict[Candidate, tuple[triton.Source, Pending]] = field(default_factory=dict)
    kernels: dict[Candidate, GpuKernel] = field(default_factory=dict)
    results: dict[Candidate, Measured] = field(default_factory=dict)

    def run(self, space: Space) -> Best | None:
        """The best candidate of a space, None where every one that was tried failed."""
        self.found = every(space, self.device)
        if not len(self.found):
            return None
        times = self.found.each(self.found.rows, partial(predict, self.device))
        try:
            search = evolve(
                self.found.rows, times, self.measure, self.seed, self.trials,
                lambda: self.late or self.unusable or self.spent, lambda: self.due,
                room(self.worker.compilers.workers), True, lambda candidate: candidate[1:-1],
            )  # fmt: skip
        finally:
            self.worker.compilers.abandon()
        return self._best(search)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def unusable(self) -> bool:
        """Nothing could be measured, and the GPU is why."""
        return bool(self.results) and all(r.unusable for r in self.results.values())

    @property
    def right(self) -> bool:
        """Something that was measured is."""
        return any(r.seconds is not None for r in self.results.values())

    @property
    def due(self) -> bool:
        """It has taken as long as a search may, and something is right."""
        if time.monotonic() - self.begun < min(WAITING, COMPILING / self.worker.compilers.workers):
            return False
        return self.right

    @property
    def spent(self) -> bool:
        """The same, and the model's favourites have ended."""
        return self.due and not any(c in self.under_way for c in self.opening)

    def measure(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        """Begins to compile candidates, and gives seconds of those that were compiled or failed
        since. Those that take the compiler too long are given up, the `last` ones soon."""
        self.opening = self.opening or candidates[: max(MEASURED, self.worker.compilers.workers)]
        ended = self._begin(candidates)
        candidate_of = {pending: c for c, (_, pending) in self.under_way.items()}
        patience = 0.0 if ended else self._patience(last)
        done = futures.wait(candidate_of, patience, futures.FIRST_COMPLETED).done
        given_up = set[Pending]() if done or ended else set(candidate_of)
        for pending in given_up:
            pending.cancel()
        return ended | {candidate_of[p]: self._ended(candidate_of[p]) for p in done | given_up}

    def _begin(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """Begins to compile candidates; gives those that no source can be generated of."""
        failed = {}
        for candidate in candidates:
            plan, tiles = self.found.plan(candidate)
            try:
                source = triton.generate(plan.schedule(tiles), self.name, LOWERINGS[candidate[-1]])
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
                failed[candidate] = float("inf")
                continue
            pending = self.worker.compilers.begin(source, self.device.arch)
            self.under_way[candidate] = source, pending
        return failed

    def _patience(self, last: bool) -> float:
        """Seconds to wait for a compilation: more than any of them may take, and less where
        something is right and the last ones keep no more than a quarter of the compilers busy."""
        compilers = self.worker.compilers
        few = last and self.right and len(self.under_way) <= max(1, compilers.workers // 4)
        self.ending = (self.ending or time.monotonic()) if few else None
        now = time.monotonic()
        end = now + 2.0 * compilers.longest
        if self.ending is not None:
            end = self.ending + SLOWEST * (self.ending - self.begun)
        return max(0.0, min(end, self.deadline) - now)

    def _ended(self, candidate: Candidate) -> float:
        """Seconds of a candidate whose compilation has ended, infinity where it failed."""
        source, pending = self.under_way.pop(candidate)
        if not pending.done() or pending.cancelled():
            self.failed[LATE] += 1
            return float("inf")
        binary = self.worker.compilers.outcome(pending, source, self.device.arch)
        if isinstance(binary, Illegal):
            self.failed[str(binary)] += 1
            return float("inf")
        if (why := too_large(binary, self.device)) is not None:
            self.failed[why] += 1
            return float("inf")
        kernel = GpuKernel(self.chain, source, binary)
        result = self.worker.measure(
            self.chain, [[kernel]], self.seed, offsets=self.offsets, deadline=self.deadline
        )[0]
        self.kernels[candidate], self.results[candidate] = kernel, result
        self.tell(len(self.results), len(self.found))
        if result.failed is not None:
            self.failed[result.failed] += 1
        return result.seconds or float("inf")

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
        predicted = self.found.each(np.asarray([best]), partial(predict, self.device))
        return Best(
            plan, tiles, LOWERINGS[best[-1]], self.kernels[best], result, float(predicted[0]),
            len(search.measured), len(self.found),
        )  # fmt: skip

    def _again(self, ranked: Sequence[Candidate]) -> list[tuple[Candidate, Measured]]:
        """Finalists that are right on other inputs, of varied signs and scales, and at other
        extents where these are known at run time only; timed in turns on whole tensors. The first
        figures stand where there is no time for that, or the GPU cannot be measured on any more."""
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


def too_large(binary: Binary, device: Device) -> str | None:
    """Why a kernel cannot be launched, or is not worth it, if so."""
    if binary.shared > device.fast:
        return f"it needs more shared memory than a block of {device.name} may have"
    return "nearly all its registers spill" if hopeless(binary.spills) else None


def gpu_kernel(tuned: Tuned, chain: Chain) -> GpuKernel:
    """The tuned kernel for a chain that is equal but for its names: the kept binary, launched as
    it was when it was measured.

    Raises KeyError, TypeError or ValueError where the kept launches cannot be read.
    """
    source = triton.from_record(tuned.launch, tuned.source, *names_of(tuned, chain))
    used = tuned.resources
    binary = Binary(
        tuned.binary, source.name, used["shared"], used["registers"], used["spills"],
        source.threads,
    )  # fmt: skip
    return GpuKernel(chain, source, binary)
