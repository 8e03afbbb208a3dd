"""A kernel that nobody measures: the model ranks, the compiler and a proof have the last word.

This is what is left for a device that is not at hand, and where no time is left to measure.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures

import numpy as np

from mcfuser.backend import Building, Kernel
from mcfuser.chain import Chain
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.statement import Illegal
from mcfuser.tune.proof import disproof
from mcfuser.tune.search import Best

SEED = 0
"""Of the inputs on which schedules are interpreted."""
ATTEMPTS = 32
"""Candidates that are built before a chain is given up,"""
CHOICES = 4
"""and where no time is left."""


def chosen(
    chain: Chain, found: Candidates, worker: Worker, name: str, shifts: bool,
    failed: Counter[str], results: Mapping[Candidate, Measured], deadline: float,
    tell: Callable[[int, int], None],
) -> Best | None:  # fmt: skip
    """The best by the model among candidates that are built, fit the device, and whose schedule is
    right on a small chain (mcfuser.tune.proof); None where none of the first ones is.

    `failed` counts reasons. Candidates that were found wrong before (`results`) are left out, and
    so is what is not built at the `deadline` (time.monotonic).
    """
    if not len(found):
        return None
    times = found.estimates(found.rows, worker.backend.estimate)
    attempts = ATTEMPTS if time.monotonic() < deadline else CHOICES
    order = np.argsort(times, kind="stable")[:attempts]
    together = worker.builder.workers
    for first in range(0, len(order), together):
        if first and time.monotonic() >= deadline and attempts == ATTEMPTS:
            break
        tell(first, len(order))
        some = [found.candidate(i) for i in order[first : first + together]]
        made = _made(chain, found, worker, some, name, shifts, failed, results, deadline)
        if made is not None:
            candidate, kernel = made
            plan, tiles = found.plan(candidate)
            seconds = float(times[order[first + some.index(candidate)]])
            return Best(
                plan, tiles, found.settings(candidate), kernel, Measured(None, None), seconds,
                first + len(some), len(found),
            )  # fmt: skip
    return None


def _made(
    chain: Chain, found: Candidates, worker: Worker, some: Sequence[Candidate], name: str,
    shifts: bool, failed: Counter[str], results: Mapping[Candidate, Measured], deadline: float,
) -> tuple[Candidate, Kernel] | None:  # fmt: skip
    """The first of some candidates that is fit for use."""
    begun: dict[Candidate, Building] = {}
    for candidate in some:
        tried = results.get(candidate)
        if tried is not None and tried.failed not in (None, NO_TIME) and not tried.unusable:
            continue
        plan, tiles = found.plan(candidate)
        try:
            begun[candidate] = worker.builder.begin(
                chain, plan.schedule(tiles), name, found.settings(candidate)
            )
        except Illegal as illegal:
            failed[str(illegal)] += 1
    every = [building.done for building in begun.values()]
    if futures.wait(every, max(0.0, deadline - time.monotonic())).not_done:
        worker.builder.abandon()
    for candidate, building in begun.items():
        kernel, why = _finished(building, worker)
        if why is None:
            plan, tiles = found.plan(candidate)
            why = disproof(chain, plan, tiles, shifts, SEED)
        if why is None and kernel is not None:
            return candidate, kernel
        failed[str(why)] += 1
    return None


def _finished(building: Building, worker: Worker) -> tuple[Kernel | None, str | None]:
    """The kernel, or why nobody should choose it."""
    if not building.done.done() or building.done.cancelled():
        return None, NO_TIME
    try:
        kernel = building.kernel()
    except Illegal as illegal:
        return None, str(illegal)
    return kernel, worker.backend.unfit(kernel, worker.device, measured=False)
