"""The search on a GPU at hand: candidates are compiled side by side while others are measured.

The fitted model ranks every candidate; Algorithm 1 starts from its best instead of from random
ones, at first with different tiles each, and the finalists are timed again in turns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mcfuser.candidates import Candidate
from mcfuser.chain import Chain
from mcfuser.codegen import triton
from mcfuser.codegen.cubin import Binary
from mcfuser.codegen.pool import LATE, Pending, outcome
from mcfuser.device import Device
from mcfuser.lowerings import LOWERINGS, every, predict
from mcfuser.measure import Measured
from mcfuser.measure_gpu import GpuKernel, GpuWorker
from mcfuser.model.worth import hopeless
from mcfuser.search.evolve import MEASURED, POPULATION, Found, evolve
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space
from mcfuser.space.statement import Illegal
from mcfuser.tuned import Tuned, kernel_name, realise

FINALISTS = 4
"""Candidates timed again in turns: repeated single timings drift by more than they differ."""

PATIENCE = 0.25
"""How long a generation waits for its last compilations, as a multiple of what the others took;
later ones are measured with a later generation."""
SLOWEST = 1.0
"""How long the search waits for the last ones of all, as a multiple of what it has taken."""


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


@dataclass
class GpuSearch:
    """One search on the GPU that `worker` measures on; `failed` counts reasons."""

    chain: Chain
    device: Device
    worker: GpuWorker
    name: str
    seed: int
    trials: int | None
    stop: Callable[[], bool]
    offsets: Mapping[str, float]
    failed: Counter[str]
    tell: Callable[[int, int], None]
    begun: float = field(default_factory=time.monotonic)
    late: dict[Candidate, tuple[triton.Source, Pending]] = field(default_factory=dict)
    kernels: dict[Candidate, GpuKernel] = field(default_factory=dict)
    results: dict[Candidate, Measured] = field(default_factory=dict)

    def run(self, space: Space) -> Best | None:
        """The best candidate of a space, None where every one that was tried failed."""
        self.found = every(space, self.device)
        if not len(self.found):
            return None
        predicted = self.estimate(self.found.rows)
        first = self.found.rows[np.argsort(predicted, kind="stable")[:POPULATION]]
        search = evolve(
            self.found.rows, self.estimate, self.measure, self.seed, self.trials,
            lambda: self.stop() or self.unusable, first,
            max(MEASURED, self.worker.compilers.workers), lambda candidate: candidate[1:-1],
            self.measure_late,
        )  # fmt: skip
        return self._best(search)

    @property
    def unusable(self) -> bool:
        """Nothing could be measured, and the GPU is why."""
        return bool(self.results) and all(r.unusable for r in self.results.values())

    def estimate(self, rows: Ints) -> Floats:
        return self.found.each(rows, partial(predict, self.device))

    def measure(self, candidates: Sequence[Candidate]) -> list[float]:
        """Seconds of each, infinity where it failed or is not compiled yet."""
        sources: dict[Candidate, triton.Source] = {}
        for candidate in candidates:
            plan, tiles = self.found.plan(candidate)
            try:
                sources[candidate] = triton.generate(
                    plan.schedule(tiles), self.name, LOWERINGS[candidate[-1]]
                )
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
        known, late = list(sources), list[tuple[int, Pending]]()
        made = self.worker.compilers.compile(
            list(sources.values()), self.device.arch, PATIENCE, late
        )
        for i, binary in made:
            self._measure(known[i], sources[known[i]], binary)
        self.late |= {known[i]: (sources[known[i]], pending) for i, pending in late}
        return [self._seconds(c) for c in candidates]

    def measure_late(self, wait: bool) -> dict[Candidate, float]:
        """Seconds of candidates that were late and are compiled now; with `wait`, of all of them
        but those that take the compiler far longer than all else has taken."""
        limit = SLOWEST * (time.monotonic() - self.begun) if wait else 0.0
        done = futures.wait([pending for _, pending in self.late.values()], limit).done
        some = {c: both for c, both in self.late.items() if wait or both[1] in done}
        for candidate, (source, pending) in some.items():
            del self.late[candidate]
            if pending in done:
                self._measure(candidate, source, outcome(pending))
            else:
                pending.cancel()
                self.failed[LATE] += 1
        return {c: self._seconds(c) for c in some}

    def _seconds(self, candidate: Candidate) -> float:
        found = self.results.get(candidate)
        return found.seconds or float("inf") if found is not None else float("inf")

    def _measure(
        self, candidate: Candidate, source: triton.Source, binary: Binary | Illegal
    ) -> None:
        if isinstance(binary, Illegal):
            self.failed[str(binary)] += 1
            return
        if (why := too_large(binary, self.device)) is not None:
            self.failed[why] += 1
            return
        kernel = GpuKernel(self.chain, source, binary)
        result = self.worker.measure(self.chain, [[kernel]], self.seed, offsets=self.offsets)[0]
        self.kernels[candidate], self.results[candidate] = kernel, result
        self.tell(len(self.results), len(self.found))
        if result.failed is not None:
            self.failed[result.failed] += 1

    def _best(self, search: Found) -> Best | None:
        ranked = search.ranked(FINALISTS)
        if not ranked:
            return None
        programs = [[self.kernels[c]] for c in ranked]
        again = self.worker.measure(self.chain, programs, self.seed + 1, together=True)
        for r in again:
            if r.failed is not None:
                self.failed[f"as a finalist, {r.failed}"] += 1
        if all(r.unusable for r in again):  # the first figures stand
            again = [self.results[c] for c in ranked]
        timed = [(c, r) for c, r in zip(ranked, again, strict=True) if r.seconds is not None]
        if not timed:
            return None
        best, result = min(timed, key=lambda pair: pair[1].seconds or float("inf"))
        plan, tiles = self.found.plan(best)
        predicted = float(self.estimate(np.asarray([best]))[0])
        return Best(
            plan, tiles, LOWERINGS[best[-1]], self.kernels[best], result, predicted,
            len(search.measured), len(self.found),
        )  # fmt: skip


def too_large(binary: Binary, device: Device) -> str | None:
    """Why a kernel cannot be launched, or is not worth it, if so."""
    if binary.shared > device.fast:
        return f"it needs more shared memory than a block of {device.name} may have"
    return "nearly all its registers spill" if hopeless(binary.spills) else None


def gpu_kernel(tuned: Tuned, chain: Chain) -> GpuKernel:
    """The tuned kernel for a chain that is equal but for its names."""
    lowering = triton.Lowering(**tuned.lowering)
    source = triton.generate(realise(tuned, chain), kernel_name(tuned.key), lowering)
    used = tuned.resources
    binary = Binary(
        tuned.binary, source.name, used["shared"], used["registers"], used["spills"],
        source.threads,
    )  # fmt: skip
    return GpuKernel(chain, source, binary)
