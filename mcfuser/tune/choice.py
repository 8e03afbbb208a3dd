"""The choice of a kernel without a measurement: the model ranks the candidates.

It is made for a device that is not at hand, and where no time is left to measure. The first
candidate is chosen that compiles, fits the device, and whose schedule is right when interpreted
(mcfuser.tune.proof).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from functools import cache

import numpy as np

from mcfuser.backend import Building, Kernel
from mcfuser.chain import Chain
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.plan import Floats
from mcfuser.space.statement import Illegal
from mcfuser.tune.expected import estimated
from mcfuser.tune.progress import Listener, Progress
from mcfuser.tune.proof import disproof
from mcfuser.tune.related import plausible
from mcfuser.tune.search import Best

SEED = 0
"""The seed of the inputs on which schedules are interpreted."""
ATTEMPTS = 32
"""Candidates that are built before the chain is given up."""
AMONG = 2048
"""Of so many that come next, those are left out that will spill registers as others did: of the
first 32 for the queries, keys and values of a diffusion model, all had tiles of 128 x 256 elements
or nearly, in four warps."""
CHOICES = 4
"""Those that are built however long it takes where no time is left."""
LATE = 4.0
"""Seconds that no time left means, for a chain without a kernel takes many times as long: after
them no others are begun, and the first that is built is as good as those that the model prefers.
Most take the compiler 0.2 to 1.5, those of the largest chains up to 8."""


def chosen(
    chain: Chain,
    candidates: Candidates,
    carried: Sequence[Candidate],
    worker: Worker,
    name: str,
    shifts: bool,
    failed: Counter[str],
    results: Mapping[Candidate, Measured],
    deadline: float,
    listener: Listener,
) -> Best | None:
    """The first candidate by predicted time that can be built, fits the device, and whose schedule
    is right on a small chain; None where this holds for none of the first ATTEMPTS. Where all that
    is wrong with some is that their registers spill, it is the one that spills the least: of 59
    chains on an H200 those that spill at most 64 bytes took 2.4 times as long as the fastest, and
    those that spill none 2.2 (medians), and what TVM makes of a chain several times as long.

    Those that are `carried` over from related chains, whose measured best they are, come before
    the others where the model expects them to take at most TRUSTED times as long as its own first.
    Reasons for which candidates failed are counted in `failed`. Those that failed when they were
    measured (`results`) are left out. After the `deadline` (time.monotonic) the first that is
    built is chosen, and no others are begun. Where it is over already, it is LATE seconds from now,
    and CHOICES are begun in any case before the chain is given up. One that was begun ahead
    (`begin_ahead`) is tried alone.
    """
    if not len(candidates):
        return None
    times = estimated(candidates, worker.backend.estimate)
    late = time.monotonic() >= deadline
    least, limit = (CHOICES, time.monotonic() + LATE) if late else (1, deadline)
    order = _ordered(candidates, times, carried)
    count, tried, rows = min(ATTEMPTS, len(order)), 0, dict[Candidate, int]()
    together = 1 if worker.builder.foreseen(name) else worker.builder.workers
    spilling, made = dict[Candidate, Kernel](), None
    while made is None and tried < count and (tried < least or time.monotonic() < limit):
        listener(Progress("compile", tried, count, failed=sum(failed.values())))
        some = {candidates.candidate(i): i for i in order[:together][: count - tried]}
        spilled = dict[Candidate, Kernel]()
        made = _made(
            chain, candidates, worker, [*some], name, shifts, failed, results, limit, spilled
        )
        order, rows, spilling = order[together:], rows | some, spilling | spilled
        tried, together = tried + len(some), worker.builder.workers
        if made is None and spilled and tried < count:
            order = _lighter(candidates, worker, order, [some[c] for c in spilled])
    if made is None:
        made = _least_spilling(chain, candidates, worker, spilling, shifts)
    if made is None:
        return None
    candidate, kernel = made
    plan, tiles = candidates.plan(candidate)
    settings, measured = candidates.settings(candidate), Measured(None, None)
    predicted = float(times[rows[candidate]])
    return Best(plan, tiles, settings, kernel, measured, predicted, tried, len(candidates))


def _least_spilling(
    chain: Chain,
    candidates: Candidates,
    worker: Worker,
    spilling: Mapping[Candidate, Kernel],
    shifts: bool,
) -> tuple[Candidate, Kernel] | None:
    """Of kernels that are unfit for their registers alone the one that spills the fewest bytes and
    is right."""
    for candidate in sorted(spilling, key=lambda c: int(spilling[c].resources["spills"])):
        kernel = spilling[candidate]
        why = worker.backend.unfit(kernel, worker.device, measured=True)
        why = _wrong(chain, candidates, worker, candidate, shifts) if why is None else why
        if why is None:
            return candidate, kernel
    return None


def _wrong(
    chain: Chain, candidates: Candidates, worker: Worker, candidate: Candidate, shifts: bool
) -> str | None:
    """Why a candidate's schedule is wrong on a small chain; None where it is right."""
    plan, tiles = candidates.plan(candidate)
    return disproof(worker.tiled(chain), plan, tiles, shifts, SEED)


def _lighter(
    candidates: Candidates, worker: Worker, order: Sequence[int], spilled: Sequence[int]
) -> Sequence[int]:
    """The rows of `order` whose threads hold less than those of any row whose registers spilled;
    all of them, if none of the next does."""
    some = order[:AMONG]
    rows = candidates.rows[[*spilled, *some]]
    held = candidates.estimates(rows, worker.backend.held)
    least = held[: len(spilled)].min()
    left = [i for i, registers in zip(some, held[len(spilled) :], strict=True) if registers < least]
    return [*left, *order[AMONG:]] if left else order


def begin_ahead(
    chain: Chain, candidates: Candidates, carried: Sequence[Candidate], worker: Worker, name: str
) -> None:
    """Begins to build the candidate that `chosen` will try first."""
    if not len(candidates):
        return
    times = estimated(candidates, worker.backend.estimate)
    first = candidates.candidate(_ordered(candidates, times, carried)[0])
    plan, tiles = candidates.plan(first)
    with suppress(Illegal):
        worker.builder.ahead(chain, plan.schedule(tiles), name, candidates.settings(first))


def _ordered(candidates: Candidates, times: Floats, carried: Sequence[Candidate]) -> Sequence[int]:
    """The rows of the candidates in the order in which they are tried."""
    ranked = np.argsort(times, kind="stable").tolist()
    return list(dict.fromkeys((*plausible(candidates, times, carried), *ranked)))


def _made(
    chain: Chain,
    candidates: Candidates,
    worker: Worker,
    some: Sequence[Candidate],
    name: str,
    shifts: bool,
    failed: Counter[str],
    results: Mapping[Candidate, Measured],
    limit: float,
    spilled: dict[Candidate, Kernel],
) -> tuple[Candidate, Kernel] | None:
    """The first of `some` candidates that is fit for use, with its kernel; None if none is. From
    the `limit` on (time.monotonic) it is the first that is built. Those that are not fit and whose
    registers spill are added to `spilled`, with their kernels."""
    begun: dict[Candidate, Building] = {}
    for candidate in some:
        tried = results.get(candidate)
        if tried is not None and tried.failed not in (None, NO_TIME) and not tried.unusable:
            continue
        plan, tiles = candidates.plan(candidate)
        try:
            begun[candidate] = worker.builder.begin(
                chain, plan.schedule(tiles), name, candidates.settings(candidate)
            )
        except Illegal as illegal:
            failed[str(illegal)] += 1

    @cache
    def wrong(candidate: Candidate) -> str | None:
        return _wrong(chain, candidates, worker, candidate, shifts)

    first = next(iter(begun), None)
    if first is not None and not begun[first].done.done():
        wrong(first)  # while it is compiled: most often it is the one that is chosen
    try:
        for candidate in _as_built(begun, worker.builder.longest, limit):
            kernel, why = _finished(begun[candidate], worker)
            if why is not None and kernel is not None and kernel.resources.get("spills"):
                spilled[candidate] = kernel
            why = wrong(candidate) if why is None else why
            if why is None and kernel is not None:
                return candidate, kernel
            failed[str(why)] += 1
    finally:
        worker.builder.abandon()
    return None


def _as_built(
    begun: Mapping[Candidate, Building], longest: float, limit: float
) -> Iterator[Candidate]:
    """Candidates in their order, each when it is built; after the `limit` (time.monotonic) those
    that are built first. None of them is waited for more than `longest` seconds."""
    left = {building.done: candidate for candidate, building in begun.items()}
    while left:
        first = next(iter(left))
        futures.wait([first], min(longest, max(0.0, limit - time.monotonic())))
        if not first.done():
            done = futures.wait(left, longest, futures.FIRST_COMPLETED).done
            first = next((future for future in left if future in done), first)
        yield left.pop(first)


def _finished(building: Building, worker: Worker) -> tuple[Kernel | None, str | None]:
    """A built kernel, and why it must not be chosen; None for either that does not apply."""
    if not building.done.done() or building.done.cancelled():
        return None, NO_TIME
    try:
        kernel = building.kernel()
    except Illegal as illegal:
        return None, str(illegal)
    return kernel, worker.backend.unfit(kernel, worker.device, measured=False)
