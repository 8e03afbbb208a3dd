"""Tuning one chain: space, rules, model, search, measurement; the result is kept in a cache."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mcfuser.algebra.hoist import shifted
from mcfuser.backends.cuda.worker import GpuWorker
from mcfuser.backends.lowerings import cpu_lowerings, declared
from mcfuser.chain import Chain
from mcfuser.codegen import tensorir, triton
from mcfuser.codegen.cuda import cubin
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.measure.rounds import Turns
from mcfuser.measure.worker import BATCH, Kernel, Measured, Worker, offsets, smaller, surest, turns
from mcfuser.model import roofline
from mcfuser.process.child import NO_TIME
from mcfuser.search.evolve import evolve
from mcfuser.space.candidates import Candidate, Candidates, candidates
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space
from mcfuser.space.statement import Illegal
from mcfuser.tune.budget import Budget, Ended
from mcfuser.tune.expected import pruned
from mcfuser.tune.gpu_search import GpuSearch, announce, gpu_kernel
from mcfuser.tune.key import CacheKey, cache_key
from mcfuser.tune.predicted import predicted
from mcfuser.tune.proof import disproof
from mcfuser.tune.recall import Launchable, better, recall, serves
from mcfuser.tune.tuned import (
    Anew,
    Cache,
    NoCandidate,
    Options,
    Progress,
    Tuned,
    kernel_name,
    names_of,
)

FINALISTS = 3
"""Candidates timed again in turns: repeated single timings drift by more than they differ."""
HURRY = 10.0
"""Seconds within which few candidates can be measured: the model's favourites come first then, and
few are built before the first is timed."""
CHOICES = 4
"""The model's favourites that are proven, one after the other, where no time is left to measure."""


def tune(
    chain: Chain,
    device: Device,
    cache: Cache,
    options: Options,
    progress: Progress = lambda stage, done, total: None,
    worker: Worker | GpuWorker | None = None,
    deadline: float | None = None,
    give_up: float = math.inf,
) -> Tuned:
    """The best kernel for a chain, from the cache or by search; on a GPU that is not at hand the
    model alone chooses, and a machine that has the GPU searches again. A kept kernel of a search
    that was cut short is searched again under a larger budget, and the faster of both is kept.

    `deadline` is on time.monotonic(); what was measured by then decides. Where nothing was, the
    model chooses (the kernel's `measured` is None), and a later search measures; from
    `give_up` on there is no time for that either. The options' timeout is this chain's nominal
    share of the time: what a later search is compared with. Raises NoCandidate where nothing legal
    was found or no time was left. Where a shift was hoisted out of a sum and every candidate loses
    too many digits on data far from zero, the space without shifts is searched.
    """
    key = key_of(chain, device, options)
    cache = Anew(cache) if options.retune else cache
    launchable: Launchable = kernel_of if device.kind == "cpu" else gpu_kernel
    known, missed = recall(cache, key, chain, launchable)
    if known is not None and serves(known, options):
        return known
    if known is not None and time.monotonic() > min(give_up, deadline or math.inf):
        return known
    if time.monotonic() > give_up:
        raise NoCandidate(f"chain '{chain.name}' has no kernel: no time was left to choose one")
    deadline = deadline if deadline is not None else time.monotonic() + options.timeout
    with ExitStack() as stack:
        if worker is None:
            worker = worker_for(device)
            stack.callback(worker.stop)
        if isinstance(worker, GpuWorker):
            worker.warm()
            if known is not None and _predicted_again(known, options, worker, deadline):
                return known
        try:
            found = _searched(key, chain, device, options, progress, worker, deadline)
        except NoCandidate:
            if known is None:
                raise
            return known

        def in_turns(some: Sequence[Tuned]) -> Turns:
            return compare(worker, chain, [[(t, chain)] for t in some], options.seed, deadline, 0)

        if known is not None:
            found = better(known, found, in_turns)
    found = replace(found, missed=missed)
    cache.put(found)
    return found


def key_of(chain: Chain, device: Device, options: Options) -> CacheKey:
    """Equal for chains that differ in names only, on equal devices, with the same knobs, compilers
    and sources."""
    return cache_key(chain.key, device, options.space, options.shifts, declared(device))


def _predicted_again(known: Tuned, options: Options, worker: GpuWorker, deadline: float) -> bool:
    """The GPU is not at hand, and the model could choose nothing better than what is kept."""
    told = known.measured is not None
    enough = told or known.budget.covers(known.trials, options.trials, options.timeout)
    return enough and worker.refused(deadline) is not None


def _searched(
    key: CacheKey, chain: Chain, device: Device, options: Options, progress: Progress,
    worker: Worker | GpuWorker, deadline: float,
) -> Tuned:  # fmt: skip
    try:
        return _Tuning(key, chain, device, options, progress, worker, deadline).run()
    except ChainError as error:
        raise NoCandidate(f"chain '{chain.name}' fits no kernel: {error}") from None
    except NoCandidate:
        if not options.shifts or not shifted(chain):
            raise
        plain = replace(options, shifts=False)
        return _Tuning(key, chain, device, plain, progress, worker, deadline).run()


def worker_for(device: Device) -> Worker | GpuWorker:
    """What measures for a device; a GPU's tells when asked that there is none."""
    return Worker(device.units) if device.kind == "cpu" else GpuWorker(device)


def compare(
    worker: Worker | GpuWorker,
    chain: Chain,
    programs: Sequence[Sequence[tuple[Tuned, Chain]]],
    seed: int,
    deadline: float = math.inf,
    baseline: int | None = None,
) -> Turns:
    """Programs that compute a chain, timed in turns in one process until it is sure whether one is
    faster than the `baseline`; what the model says where the device is not at hand, and what the
    searches found where that is not done by the `deadline` (time.monotonic)."""
    if isinstance(worker, GpuWorker):
        predicted = Turns(tuple(sum(t.predicted for t, _ in pairs) for pairs in programs))
        if worker.refused(deadline) is not None:
            return predicted
        launched = [[gpu_kernel(*pair) for pair in pairs] for pairs in programs]
        found = worker.measure(
            chain, launched, seed + 2, together=True, deadline=deadline, baseline=baseline
        )
        foreseen = all(t.measured is None for pairs in programs for t, _ in pairs)
        if foreseen and any(m.unusable for m in found):
            return predicted
    else:
        called = [[kernel_of(*pair) for pair in pairs] for pairs in programs]
        found = worker.measure(
            chain, called, seed + 2, together=True, deadline=deadline, baseline=baseline
        )
    if any(m.failed == NO_TIME for m in found):
        return Turns(tuple(sum(t.seconds for t, _ in pairs) for pairs in programs))
    return turns(found)


def kernel_of(tuned: Tuned, chain: Chain) -> Kernel:
    """The tuned kernel's function, as it was measured, for a chain that is equal but for its names.

    Raises KeyError, TypeError or ValueError where the kept record cannot be read.
    """
    names = names_of(tuned, chain)
    return Kernel(chain, tensorir.from_record(tuned.launch, tuned.source, tuned.chain, *names))


class _Tuning:
    """One search, on the CPU here, on a GPU by `GpuSearch` or `predicted`."""

    def __init__(
        self,
        key: CacheKey,
        chain: Chain,
        device: Device,
        options: Options,
        progress: Progress,
        worker: Worker | GpuWorker,
        deadline: float,
    ) -> None:
        self.key, self.chain, self.device, self.options = key, chain, device, options
        self.progress, self.worker, self.deadline = progress, worker, deadline
        self.offsets = offsets(chain) if options.shifts else {}
        if isinstance(worker, GpuWorker):
            announce(worker, chain, options.seed, self.offsets)
        self.found, self.stages = pruned(chain, device, options)
        self.lowerings = cpu_lowerings(device) if device.kind == "cpu" else ()
        self.failed: Counter[str] = Counter()
        self.done: dict[Candidate, Measured] = {}
        self.stages["distinct"] = self.found.candidates * max(1, len(self.lowerings))

    def run(self) -> Tuned:
        if not isinstance(self.worker, GpuWorker):
            return self._measured()
        return self._on_gpu(self.worker)

    def _on_gpu(self, worker: GpuWorker) -> Tuned:
        """Measured where the GPU is at hand and has room, else chosen by the model alone."""
        name, best = kernel_name(self.key.digest), None
        if (why := worker.refused(self.deadline)) is not None:
            self.failed[why] += 1
        else:
            search = GpuSearch(
                self.chain, self.device, worker, name, self.options.seed, self.options.trials,
                self.deadline, self.offsets, self.failed,
                lambda done, total: self.progress("measure", done, total),
            )  # fmt: skip
            best = search.run(self.found)
        if best is None and (why is not None or search.unusable):
            best = predicted(
                self.chain, self.device, self.found, worker.compilers, name, self.options.shifts,
                self.failed, self.deadline,
                lambda done, total: self.progress("compile", done, total),
            )  # fmt: skip
        if best is None:
            raise self._none()
        self.stages["lowered"] = best.candidates
        binary = best.kernel.binary
        return self._kept(
            best.plan, best.tiles, best.predicted, asdict(best.lowering), best.kernel.source.text,
            triton.to_record(best.kernel.source), binary.cubin, best.result, best.trials,
            _resources(binary),
        )  # fmt: skip

    def _measured(self) -> Tuned:
        self.every = _every(self.found, len(self.lowerings))
        times = self._estimate(self.every.rows)
        search = evolve(
            self.every.rows, times, self._measure, self.options.seed, self.options.trials,
            self._late, ranked=self._hurried,
        )  # fmt: skip
        ranked = search.ranked(len(search.measured))
        if not ranked and self._late():
            return self._chosen(times)
        return self._tuned(ranked)

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def _hurried(self) -> bool:
        return time.monotonic() + HURRY > self.deadline

    def _estimate(self, rows: Ints) -> Floats:
        return self.every.each(
            rows, lambda plan, tiles, _: roofline.estimate(plan, tiles, self.device)
        )

    def _kernel(self, candidate: Candidate) -> Kernel:
        plan, tiles = self.every.plan(candidate)
        source = tensorir.generate(plan.schedule(tiles), "kernel", self.lowerings[candidate[-1]])
        return Kernel(self.chain, source)

    def _measure(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        """Seconds of candidates, infinity where one failed."""
        programs: dict[Candidate, list[Kernel]] = {}
        for candidate in candidates if not self._late() else ():
            try:
                programs[candidate] = [self._kernel(candidate)]
            except Illegal as illegal:
                self.failed[str(illegal)] += 1
        assert isinstance(self.worker, Worker)
        results = self.worker.measure(
            self.chain, list(programs.values()), self.options.seed, deadline=self.deadline,
            offsets=self.offsets, batch=self.device.units if self._hurried else BATCH,
        )  # fmt: skip
        for candidate, result in zip(programs, results, strict=True):
            self.done[candidate] = result
            if result.failed is not None:
                self.failed[result.failed] += 1
        self.progress("measure", len(self.done), self.stages["distinct"])
        seconds = {c: self.done[c].seconds for c in programs}
        return {c: seconds.get(c) or float("inf") for c in candidates}

    def _tuned(self, ranked: Sequence[Candidate]) -> Tuned:
        best, result = self._final(ranked)
        return self._made(best, result, sum(r.failed != NO_TIME for r in self.done.values()))

    def _chosen(self, times: Floats) -> Tuned:
        """The model's favourite among those that nothing is known against: its schedule is right
        on a small chain (mcfuser.tune.proof), but it was not measured."""
        for row in np.argsort(times, kind="stable")[:CHOICES]:
            candidate = tuple(int(v) for v in self.every.rows[row])
            tried = self.done.get(candidate)
            if tried is not None and tried.failed != NO_TIME:
                continue
            plan, tiles = self.every.plan(candidate)
            why = disproof(self.chain, plan, tiles, self.options.shifts, self.options.seed)
            if why is None:
                return self._made(candidate, Measured(None, None), 0)
            self.failed[why] += 1
        raise self._none()

    def _made(self, best: Candidate, result: Measured, trials: int) -> Tuned:
        plan, tiles = self.every.plan(best)
        predicted = float(self._estimate(np.asarray([best]))[0])
        source = self._kernel(best).source
        return self._kept(
            plan, tiles, predicted, asdict(self.lowerings[best[-1]]), source.text,
            tensorir.to_record(source), b"", result, trials, {},
        )  # fmt: skip

    def _none(self) -> NoCandidate:
        reasons = "; ".join(f"{n} x {why}" for why, n in self.failed.most_common(3))
        late = "no time was left to measure one"
        large = "no tiles of its space suit a block, its registers and its shared memory"
        return NoCandidate(
            f"chain '{self.chain.name}' has no kernel for {self.device.name}: "
            f"{reasons or (late if self._late() else large)}"
        )

    def _kept(
        self, plan: Plan, tiles: Mapping[str, int], predicted: float, lowering: Mapping[str, Any],
        source: str, launch: Mapping[str, Any], binary: bytes, result: Measured, trials: int,
        resources: Mapping[str, int],
    ) -> Tuned:  # fmt: skip
        return Tuned(
            key=self.key.digest,
            chain=self.chain,
            device=self.device.name,
            expression=str(plan.expression),
            tiles=tiles,
            lowering=lowering,
            source=source,
            binary=binary,
            predicted=predicted,
            measured=result.seconds,
            error=result.error,
            stages=self.stages,
            trials=trials,
            space=self.options.space,
            shifts=self.options.shifts,
            split=plan.split,
            parts=plan.parts,
            failed=dict(self.failed),
            resources=resources,
            versions=dict(_versions()),
            conditions=result.conditions,
            launch=launch,
            made=self.key,
            budget=Budget(self.options.trials, self.options.timeout, self._ended(trials, result)),
        )

    def _ended(self, trials: int, result: Measured) -> Ended:
        """What ended the search, in which so many candidates were measured or compiled."""
        if self._late():
            return "time"
        most, every = self.options.trials, self.stages.get("lowered", self.stages["distinct"])
        cut = most is not None and most <= trials < every and result.seconds is not None
        return "trials" if cut else "settled"

    def _final(self, ranked: Sequence[Candidate]) -> tuple[Candidate, Measured]:
        """The fastest of the first finalists that are right on other inputs, of varied signs and
        scales and none of it far from zero; timed in turns."""
        while ranked:
            some, ranked = ranked[:FINALISTS], ranked[FINALISTS:]
            timed = self._again(some)
            if timed:
                return surest(timed)
        raise self._none()

    def _again(self, some: Sequence[Candidate]) -> list[tuple[Candidate, Measured]]:
        """Those that are not wrong, with what was measured last: what their search measured where
        there is no time to measure all of them again."""
        assert isinstance(self.worker, Worker)
        programs = [[self._kernel(c)] for c in some]
        ask = partial(
            self.worker.measure, self.chain, programs, self.options.seed + 1,
            deadline=self.deadline,
        )  # fmt: skip
        rounds = [ask(varied=True), *(ask(extents=e) for e in smaller(self.chain))]
        rounds.append(ask(together=True))
        wrong = {c for found in rounds for c in self._wrong(some, found)}
        done = all(r.failed != NO_TIME for r in rounds[-1])
        last = dict(zip(some, rounds[-1], strict=True)) if done else self.done
        return [(c, last[c]) for c in some if c not in wrong]

    def _wrong(self, some: Sequence[Candidate], found: Sequence[Measured]) -> set[Candidate]:
        """Those that failed, but for want of time; why is counted."""
        bad = {
            c: r.failed for c, r in zip(some, found, strict=True) if r.failed not in (None, NO_TIME)
        }
        self.failed.update(f"as a finalist, {why}" for why in bad.values())
        return set(bad)


def _versions() -> Iterator[tuple[str, str]]:
    """Of what a kernel depends on, as far as it is installed: measuring on a GPU needs no TVM."""
    for name in ("apache-tvm", "triton", "mcfuser", "cuda-core"):
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _resources(binary: cubin.Binary) -> dict[str, int]:
    return {
        "shared": binary.shared, "registers": binary.registers, "spills": binary.spills,
    }  # fmt: skip


def _every(found: Space, lowerings: int) -> Candidates:
    """The candidates of a pruned space, each under every lowering."""

    def choose(plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
        which = np.tile(np.arange(len(tiles)), lowerings)
        return which, np.repeat(np.arange(lowerings), len(tiles))

    return candidates(found, choose)
