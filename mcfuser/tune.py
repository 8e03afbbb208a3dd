"""Tuning one chain: space, rules, model, search, measurement; the result is kept in a cache."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from mcfuser.chain import Chain, products
from mcfuser.codegen import cubin, tensorir, triton
from mcfuser.device import Device, device_named
from mcfuser.measure import Kernel, Measured, Worker
from mcfuser.model import analytical, roofline
from mcfuser.search.evolve import Candidate, Found, evolve
from mcfuser.space.plan import Floats, Plan
from mcfuser.space.prune import Space, distinct, prune, space
from mcfuser.space.schedule import Illegal, Schedule
from mcfuser.tuned import (
    Cache,
    NoCandidate,
    Options,
    Progress,
    Tuned,
    kernel_name,
    plan_of,
    realise,
    tuned_key,
)

FINALISTS = 3
"""Candidates timed again in turns: repeated single timings drift by more than they differ."""

ATTEMPTS = 32
"""Candidates compiled for a device that is not at hand before its chain is given up."""


def tune(
    chain: Chain,
    device: Device,
    cache: Cache,
    options: Options,
    progress: Progress = lambda stage, done, total: None,
    worker: Worker | None = None,
    deadline: float | None = None,
) -> Tuned:
    """The best kernel for a chain, from the cache or by search.

    `deadline` is on time.monotonic(); what was measured by then decides. Raises NoCandidate where
    nothing legal was found.
    """
    key = tuned_key(chain, device, options)
    if (known := cache.get(key)) is not None:
        return known
    deadline = deadline if deadline is not None else time.monotonic() + options.timeout
    with ExitStack() as stack:
        if device.kind == "cpu" and worker is None:
            worker = stack.enter_context(Worker(device.units))
        tuning = _Tuning(key, chain, device, options, progress, worker, deadline)
        found = tuning.run()
    cache.put(found)
    return found


def compare(
    worker: Worker | None,
    chain: Chain,
    fused: Tuned,
    alone: Sequence[Chain],
    pieces: Sequence[Tuned],
    seed: int,
) -> tuple[float, float]:
    """Seconds of the fused kernel and of its operators unfused, timed in turns in one process;
    what the model says where the device is not at hand."""
    if worker is None:
        device = device_named(fused.device)
        each = [_with_launch(p, part, device) for p, part in zip(pieces, alone, strict=True)]
        return _with_launch(fused, chain, device), sum(each)
    one = [kernel_of(fused, chain)]
    many = [kernel_of(p, part) for p, part in zip(pieces, alone, strict=True)]
    first, second = worker.measure(chain, [one, many], seed + 2, together=True)
    return first.seconds or float("inf"), second.seconds or float("inf")


def _with_launch(tuned: Tuned, chain: Chain, device: Device) -> float:
    """Predicted seconds, the launch included: equation (2) leaves out what fusing saves most."""
    plan, tiles = plan_of(tuned, chain)
    row = np.asarray([[tiles[a] for a in plan.axes]])
    return float(roofline.estimate(plan, row, device)[0])


def kernel_of(tuned: Tuned, chain: Chain) -> Kernel:
    """The tuned kernel's function for a chain that is equal but for its names."""
    lowering = tensorir.Lowering(**tuned.lowering)
    return Kernel(chain, tensorir.generate(realise(tuned, chain), "kernel", lowering))


def cpu_lowerings(device: Device) -> tuple[tensorir.Lowering, ...]:
    """Register micro-tiles that fill the accumulators without spilling: 12 to 24 of the 32
    registers of AVX-512, at most 12 of 16 on narrower ones."""
    shapes = ((8, 2), (6, 4), (8, 3)) if device.bits == 512 else ((6, 2), (4, 3))
    return tuple(tensorir.Lowering(r, v, max(device.bits, 128) // 32) for r, v in shapes)


def gpu_lowering(schedule: Schedule) -> triton.Lowering:
    """Eight warps where a block's largest product gives each of four more than 64 x 32 of it; two
    stages of loads in flight. Without a GPU there is nothing to choose by but such a rule."""
    areas = [math.prod(schedule.tile(a) for a in o.axes) for o in products(schedule.chain)]
    return triton.Lowering(warps=8 if max(areas, default=0) > 4 * 64 * 32 else 4, stages=2)


class _Tuning:
    """One search: rows of genes (expression, tiles.., lowering) and what they stand for."""

    def __init__(
        self,
        key: str,
        chain: Chain,
        device: Device,
        options: Options,
        progress: Progress,
        worker: Worker | None,
        deadline: float,
    ) -> None:
        self.key, self.chain, self.device, self.options = key, chain, device, options
        self.progress, self.worker, self.deadline = progress, worker, deadline
        whole = space(chain, options.space)
        pruned, steps = prune(whole, device)
        self.stages = {"space": whole.candidates} | {s.rule: s.candidates for s in steps}
        self.found = distinct(pruned)
        self.lowerings = cpu_lowerings(device) if device.kind == "cpu" else ()
        self.model = roofline.estimate if device.kind == "cpu" else analytical.estimate
        self.failed: Counter[str] = Counter()
        self.done: dict[Candidate, Measured] = {}

        self.rows, self.plans = _rows(self.found, max(1, len(self.lowerings)))
        self.stages["distinct"] = len(self.rows)

    def run(self) -> Tuned:
        return self._measured() if self.worker is not None else self._predicted()

    def _predicted(self) -> Tuned:
        """The best by the model alone among those that compile, fit and do not spill."""
        order = np.argsort(self._estimate(self.rows), kind="stable")
        together = os.cpu_count() or 1
        for first in range(0, min(ATTEMPTS, len(order)), together):
            if first and time.monotonic() > self.deadline:
                break
            self.progress("compile", first, min(ATTEMPTS, len(order)))
            made = self._compiled([self._candidate(i) for i in order[first : first + together]])
            if made is not None:
                candidate, lowering, source, binary = made
                return self._result(
                    candidate, asdict(lowering), source.text, binary.cubin, Measured(None, None),
                    first + together, _resources(binary),
                )  # fmt: skip
        raise self._none()

    def _candidate(self, row: Any) -> Candidate:
        return tuple(int(v) for v in self.rows[row])

    def _compiled(
        self, candidates: Sequence[Candidate]
    ) -> tuple[Candidate, triton.Lowering, triton.Source, cubin.Binary] | None:
        """The first of some candidates that compiles, fits the device and does not spill."""
        written: list[tuple[Candidate, triton.Lowering, triton.Source]] = []
        for candidate in candidates:
            plan, tiles = self._plan(candidate)
            schedule = plan.schedule(tiles)
            lowering = gpu_lowering(schedule)
            try:
                source = triton.generate(schedule, kernel_name(self.key), lowering)
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
                continue
            written.append((candidate, lowering, source))
        sources = [source for _, _, source in written]
        binaries = cubin.compile_all(sources, self.device.arch, len(sources))
        best = None
        for one, binary in zip(written, binaries, strict=True):
            if why := _unfit(binary, self.device):
                self.failed[why] += 1
            elif best is None and isinstance(binary, cubin.Binary):
                best = (*one, binary)
        return best

    def _measured(self) -> Tuned:
        search = evolve(
            self.rows, self._estimate, self._measure, self.options.seed, self.options.trials,
            lambda: time.monotonic() > self.deadline,
        )  # fmt: skip
        return self._tuned(search)

    def _plan(self, candidate: Sequence[int]) -> tuple[Plan, dict[str, int]]:
        tiles = dict(zip(self.found.axes, (int(v) for v in candidate[1:-1]), strict=True))
        return self.plans[int(candidate[0]), self.found.dead(tiles)], tiles

    def _estimate(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
        times = np.empty(len(rows))
        groups: dict[Plan, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(self._plan(row)[0], []).append(i)
        for plan, where in groups.items():
            times[where] = self.model(plan, rows[where, 1:-1], self.device)
        return times

    def _kernel(self, candidate: Candidate) -> Kernel:
        plan, tiles = self._plan(candidate)
        source = tensorir.generate(plan.schedule(tiles), "kernel", self.lowerings[candidate[-1]])
        return Kernel(self.chain, source)

    def _measure(self, candidates: Sequence[Candidate]) -> list[float]:
        programs: dict[Candidate, list[Kernel]] = {}
        for candidate in candidates:
            try:
                programs[candidate] = [self._kernel(candidate)]
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
        assert self.worker is not None
        deadline = self.deadline if self.done else None  # the first generation always runs
        results = self.worker.measure(
            self.chain, list(programs.values()), self.options.seed, deadline=deadline
        )
        for candidate, result in zip(programs, results, strict=True):
            self.done[candidate] = result
            if result.failed is not None:
                self.failed[result.failed] += 1
        self.progress("measure", len(self.done), self.stages["distinct"])
        return [
            self.done[c].seconds or float("inf") if c in self.done else float("inf")
            for c in candidates
        ]

    def _tuned(self, search: Found) -> Tuned:
        ranked = sorted(
            (c for c, t in search.measured.items() if np.isfinite(t)),
            key=lambda c: search.measured[c],
        )
        if not ranked:
            raise self._none()
        best, result = self._final(ranked[:FINALISTS])
        lowering = asdict(self.lowerings[best[-1]])
        text = self._kernel(best).source.text
        return self._result(best, lowering, text, b"", result, len(search.measured), {})

    def _none(self) -> NoCandidate:
        reasons = "; ".join(f"{n} x {why}" for why, n in self.failed.most_common(3))
        return NoCandidate(
            f"chain '{self.chain.name}' has no kernel for {self.device.name}: "
            f"{reasons or 'no time was left to measure one'}"
        )

    def _result(
        self,
        best: Candidate,
        lowering: Mapping[str, int],
        source: str,
        binary: bytes,
        result: Measured,
        trials: int,
        resources: Mapping[str, int],
    ) -> Tuned:
        plan, tiles = self._plan(best)
        return Tuned(
            key=self.key,
            chain=self.chain,
            device=self.device.name,
            expression=str(plan.expression),
            tiles=tiles,
            lowering=lowering,
            source=source,
            binary=binary,
            predicted=float(self._estimate(np.asarray([best]))[0]),
            measured=result.seconds,
            error=result.error,
            stages=self.stages,
            trials=trials,
            space=self.options.space,
            failed=dict(self.failed),
            resources=resources,
            versions={n: version(n) for n in ("apache-tvm", "triton", "mcfuser")},
        )

    def _final(self, ranked: Sequence[Candidate]) -> tuple[Candidate, Measured]:
        """The best of the finalists, timed in turns."""
        first = ranked[0]
        if len(ranked) == 1 or time.monotonic() > self.deadline:
            return first, self.done[first]
        assert self.worker is not None
        programs = [[self._kernel(c)] for c in ranked]
        results = self.worker.measure(self.chain, programs, self.options.seed + 1, together=True)
        timed = [(c, r) for c, r in zip(ranked, results, strict=True) if r.seconds is not None]
        if not timed:
            return first, self.done[first]
        return min(timed, key=lambda pair: pair[1].seconds or float("inf"))


def _unfit(binary: cubin.Binary | Illegal, device: Device) -> str | None:
    """Why a candidate cannot be used, if so."""
    if isinstance(binary, Illegal):
        return str(binary)
    if binary.shared > device.fast:
        return f"it needs more shared memory than a block of {device.name} may have"
    return "its registers spill" if binary.spills else None


def _resources(binary: cubin.Binary) -> dict[str, int]:
    return {
        "shared": binary.shared, "registers": binary.registers, "spills": binary.spills,
    }  # fmt: skip


def _rows(
    found: Space, lowerings: int
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], dict[tuple[int, frozenset[str]], Plan]]:
    """Every candidate as a row (expression, tiles.., lowering), and the plans behind them."""
    tables = found.tables or ()
    expressions = list(dict.fromkeys(p.expression for p, _ in tables))
    parts, plans = [], {}
    for plan, tiles in tables:
        at = expressions.index(plan.expression)
        plans[at, plan.dead] = plan
        for lowering in range(lowerings):
            ends = np.full((len(tiles), 1), at), np.full((len(tiles), 1), lowering)
            parts.append(np.hstack([ends[0], tiles, ends[1]]))
    return np.vstack(parts), plans
