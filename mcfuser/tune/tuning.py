"""One search for a chain's kernel, from the chain's space to the record of the kernel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker, offsets
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.tune.budget import Budget, StopReason
from mcfuser.tune.choice import chosen
from mcfuser.tune.expected import all_candidates, listed, pruned
from mcfuser.tune.key import CacheKey
from mcfuser.tune.progress import Listener
from mcfuser.tune.related import carried
from mcfuser.tune.search import FIRST, Best, CandidateSearch, announce
from mcfuser.tune.tried import Tried, TriedLog, results_of, tried
from mcfuser.tune.tuned import CONSTANTS, Cache, NoCandidate, Tuned, TuneOptions, kernel_name

MISTRUSTED = 3
"""Where so many kernels of a chain computed other numbers than it means, and none the right ones,
the model chooses no other one: what is wrong is more likely what they have in common than what a
few share, as warp groups."""


class Tuning:
    """One search for a chain's kernel; the model's choice where there is no device or no time.

    Where `only` is given, that candidate is built and checked like any other, and no other one.
    """

    def __init__(
        self,
        key: CacheKey,
        chain: Chain,
        device: Device,
        cache: Cache,
        options: TuneOptions,
        listener: Listener,
        worker: Worker,
        deadline: float,
        only: Tried | None = None,
    ) -> None:
        self.cache, self.only = cache, only
        self.key, self.chain, self.device, self.options = key, chain, device, options
        self.listener, self.worker, self.deadline = listener, worker, deadline
        self.offsets = offsets(chain) if options.shifts else {}
        announce(worker, chain, options.seed, self.offsets)
        self.space, stages = pruned(chain, device, options, worker.backend)
        self.stages = dict(stages)
        self.failed: Counter[str] = Counter()
        self.stages["distinct"] = self.space.candidates

    def run(self) -> Tuned:
        name, best, results, unusable = kernel_name(self.key.digest), None, {}, False
        why = self.worker.refused(self.deadline)
        if why is not None:
            self.failed[why] += 1
        elif not self._late() or self.cache.tried(self.key.digest):
            log = TriedLog(partial(self.cache.keep_tried, self.key, self.chain, self.device.name))
            search = self._search(name, log)
            try:
                best, results, unusable = search.run(), search.tried, search.unusable
            finally:
                log.flush()
        trusted = sum(r.wrong for r in results.values()) < MISTRUSTED
        if best is None and trusted and (why is not None or unusable or self._late()):
            best = self._choice(name, results)
        if best is None:
            raise self._none()
        self.stages["lowered"] = best.candidates
        return self._kept(best)

    def _search(self, name: str, log: TriedLog) -> CandidateSearch:
        """The search, which goes on from the candidates that were kept under its key."""
        every = self.candidates()
        chain, shifts, estimate = self.chain, self.options.shifts, self.worker.backend.estimate
        known = results_of(chain, every, shifts, self.cache.tried(self.key.digest))
        relatives = self.cache.related(chain, self.device.name) if not known else ()
        return CandidateSearch(
            self.chain,
            every,
            self.worker,
            name,
            self.options.seed,
            self.options.trials,
            self.deadline,
            self.offsets,
            self.failed,
            self.listener,
            known,
            lambda results: log.add(tried(chain, every, shifts, results, estimate)),
            first=carried(chain, every, shifts, relatives, FIRST, self.worker.tiled),
        )

    def _choice(self, name: str, results: Mapping[Candidate, Measured]) -> Best | None:
        every = self.candidates(measured=False)
        relatives = self.cache.related(self.chain, self.device.name)
        return chosen(
            self.chain,
            every,
            carried(self.chain, every, self.options.shifts, relatives, FIRST, self.worker.tiled),
            self.worker,
            name,
            self.options.shifts,
            self.failed,
            results,
            self.deadline,
            self.listener,
        )

    def candidates(self, measured: bool = True) -> Candidates:
        """The candidates of the search, those that need a measurement only if they are
        `measured`."""
        backend, options = self.worker.backend, self.options
        if self.only is None:
            return listed(self.chain, self.device, options, backend, measured)
        every = all_candidates(self.chain, self.device, options, backend)
        only = replace(self.only, seconds=0.0, failed=None)
        rows = list(results_of(self.chain, every, only.shifts, [only]))
        shape = len(rows), every.rows.shape[1]
        return replace(every, rows=np.asarray(rows, np.int64).reshape(shape))

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _none(self) -> NoCandidate:
        reasons = "; ".join(f"{n} x {why}" for why, n in self.failed.most_common(3))
        late = "no time was left to measure one"
        large = "no tiles of its space suit a block, its registers and its shared memory"
        return NoCandidate(
            f"chain '{self.chain.name}' has no kernel for {self.device.name}: "
            f"{reasons or (late if self._late() else large)}"
        )

    def _kept(self, best: Best) -> Tuned:
        return Tuned(
            key=self.key.digest,
            chain=self.chain,
            device=self.device.name,
            expression=str(best.plan.expression),
            tiles=best.tiles,
            lowering=asdict(best.settings),
            source=best.kernel.source,
            binary=best.kernel.binary,
            predicted=best.predicted,
            measured=best.result.seconds,
            error=best.result.error,
            stages=self.stages,
            trials=best.trials,
            space=self.options.space,
            shifts=self.options.shifts,
            split=best.plan.split,
            parts=best.plan.parts,
            failed=dict(self.failed),
            resources=best.kernel.resources,
            versions=dict(_versions()),
            conditions=self._conditions(best),
            launch=best.kernel.launch,
            made=self.key,
            budget=Budget(self.options.trials, self.options.timeout, self._ended(best)),
        )

    def _conditions(self, best: Best) -> Mapping[str, Any]:
        """Those of the measurement; where there was none, the constants that the model had."""
        if best.result.seconds is not None or not self.device.constants_key:
            return best.result.conditions
        return {**best.result.conditions, CONSTANTS: self.device.constants_key}

    def _ended(self, best: Best) -> StopReason:
        """Why the search ended."""
        if self._late():
            return "time"
        limit = self.options.trials
        cut_short = limit is not None and limit <= best.trials < best.candidates
        return "trials" if cut_short and best.result.seconds is not None else "settled"


def _versions() -> Iterator[tuple[str, str]]:
    """The installed packages that a kernel depends on, with their versions; some may be missing."""
    for name in ("apache-tvm", "triton", "mcfuser", "cuda-core"):
        with suppress(PackageNotFoundError):
            yield name, version(name)
