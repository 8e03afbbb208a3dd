"""Makes a kernel from a tuning record: generated, built, checked and measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import ChainError
from mcfuser.measure.worker import Worker
from mcfuser.search.evolve import EPSILON, MEASURED
from mcfuser.space.statement import Illegal
from mcfuser.tune.age import age, reasons
from mcfuser.tune.budget import Budget
from mcfuser.tune.exchange import TuningRecord
from mcfuser.tune.key import CacheKey, key_here
from mcfuser.tune.progress import unheard
from mcfuser.tune.related import Relative
from mcfuser.tune.tried import schedule
from mcfuser.tune.tuned import MemoryCache, NoCandidate, Tuned, TuneOptions, kernel_name
from mcfuser.tune.tuning import Tuning

RIVALS = MEASURED
"""Candidates that are measured before a record's claim is believed: a generation."""
LONGEST = 60.0
"""Seconds that measuring them may take."""
START = Budget(None, 0.0, "time")
"""The budget of a kernel whose search was not made for what is here: every search is larger, and
begins with this kernel."""


def record_of(tuned: Tuned) -> TuningRecord:
    """What a kept kernel was found as. Raises KeyError or ValueError where it has no cache key."""
    if tuned.made is None:
        raise ValueError("it was kept without its cache key")
    found = schedule(
        tuned.chain, tuned.expression, tuned.tiles, tuned.split, tuned.parts, tuned.shifts,
        tuned.lowering, tuned.measured,
    )  # fmt: skip
    return TuningRecord(
        tuned.chain, tuned.device, found, tuned.space, tuned.made, tuned.budget, tuned.trials
    )


def wanted_key(record: TuningRecord, device: Device, backend: Backend) -> CacheKey:
    """The cache key of a record's kernel, made here. Raises NoCandidate where the record is of
    another device."""
    here = key_here(record.chain.key, device, record.space, record.made.shifts, backend)
    if record.made.device != here.device:
        (why,) = reasons(replace(here, device=record.made.device), here)
        raise NoCandidate(f"a kernel of chain '{record.chain.name}' is refused: {why}")
    return here


def changed(tuned: Tuned) -> str:
    """Why the code generator does not make a kept kernel's source any more, in one clause; empty
    where it does. A kernel of this machine's own key is asked of."""
    device = device_named(tuned.device)
    backend, record = backend_of(device), record_of(tuned)
    with Worker(backend, device) as worker:
        options = TuneOptions(space=record.space, shifts=record.schedule.shifts)
        try:
            tuning = _tuning(record, device, worker, options, math.inf)
            every = tuning.candidates()
            (row,) = every.rows
        except (ChainError, ValueError):
            return "its schedule is none of those that are searched"
        plan, tiles = every.plan(row)
        try:
            kernel = worker.builder.begin(
                record.chain, plan.schedule(tiles), kernel_name(tuned.key), every.settings(row)
            ).kernel()
        except Illegal as illegal:
            return f"its source is refused: {illegal}"
    return "" if kernel.source == tuned.source else "the code generator makes another source"


def _tuning(
    record: TuningRecord, device: Device, worker: Worker, options: TuneOptions, deadline: float
) -> Tuning:
    """The search among a record's schedule alone. Raises ChainError."""
    here = wanted_key(record, device, worker.backend)
    return Tuning(
        here, record.chain, device, MemoryCache(), options, unheard, worker, deadline,
        record.schedule,
    )  # fmt: skip


def rebuilt(record: TuningRecord, device: Device, worker: Worker, deadline: float) -> Tuned:
    """The kernel of a record, generated and built anew, that agrees with float64 here.

    It is measured where the device is at hand; else its schedule is interpreted on a small chain
    and `measured` is None (mcfuser.tune.choice). What it was found with decides only how large its
    search counts: as that of the record unless the record is outdated here (mcfuser.tune.age), else
    as `START`.
    Raises NoCandidate with the reason where it is refused: its device is another one, its schedule
    is not searched here, it cannot be built or is wrong, or no time was left by the `deadline`
    (time.monotonic).
    """
    here = wanted_key(record, device, worker.backend)
    options = TuneOptions(space=record.space, shifts=record.schedule.shifts)
    try:
        tuning = _tuning(record, device, worker, options, deadline)
    except ChainError as error:
        raise NoCandidate(f"chain '{record.chain.name}' fits no kernel: {error}") from None
    if not len(tuning.candidates()):
        raise NoCandidate(
            f"a kernel of chain '{record.chain.name}' is refused: its schedule is none of those "
            "that are searched here"
        )
    made = tuning.run()
    same = age(record.made, here, worker.backend.soft) != "outdated"
    return replace(
        made, budget=record.budget if same else START, trials=record.trials if same else 1
    )


def vetted(record: TuningRecord, device: Device, worker: Worker, deadline: float) -> Tuned:
    """The kernel of a record that others wrote (`rebuilt`), measured beside RIVALS - 1 other
    candidates: those with which a search here would begin.

    How large its search was is believed only where none of them is faster. Else the faster kernel
    is given, with the budget of a search of RIVALS candidates, which larger ones go on from. Where
    no time is left for that, or nothing can be measured, the record's claim counts for nothing.
    Raises NoCandidate as `rebuilt` does.
    """
    made = rebuilt(record, device, worker, deadline)
    if made.measured is None or made.made is None or made.budget == START:
        return made
    timeout = min(LONGEST, max(0.0, deadline - time.monotonic()))
    options = TuneOptions(
        trials=RIVALS, timeout=timeout, space=record.space, shifts=record.schedule.shifts
    )
    beside = _Beside(relative=Relative(record.chain, (record.schedule,)))
    try:
        rival = Tuning(
            made.made, record.chain, device, beside, options, unheard, worker, deadline
        ).run()  # fmt: skip
    except NoCandidate:
        return replace(made, budget=START, trials=1)
    if rival.measured is None or rival.budget.ended == "time":
        return replace(made, budget=START, trials=1)
    return rival if rival.measured < (1 - EPSILON) * made.measured else made


@dataclass
class _Beside(MemoryCache):
    """An empty cache in which a record's schedule is what a search begins with."""

    relative: Relative | None = None

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        return (self.relative,) if self.relative is not None else ()
