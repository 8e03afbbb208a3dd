"""A kernel for a GPU that is not at hand: the model ranks, the compiler has the last word."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mcfuser.backends.cuda.worker import GpuKernel
from mcfuser.backends.lowerings import KINDS, LOWERINGS, every, predict
from mcfuser.chain import Chain
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.device import Device
from mcfuser.measure.worker import Measured
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.prune import Space
from mcfuser.space.statement import Illegal
from mcfuser.tune.gpu_search import Best, too_large
from mcfuser.tune.proof import disproof

SEED = 0
"""Of the inputs on which schedules are interpreted."""
ATTEMPTS = 32
"""Candidates compiled before a chain is given up."""


def predicted(
    chain: Chain, device: Device, space: Space, compilers: Compilers, name: str, shifts: bool,
    failed: Counter[str], deadline: float, tell: Callable[[int, int], None],
) -> Best | None:  # fmt: skip
    """The best by the model among those that compile, fit the device, do not spill, and whose
    schedule is right on a small chain (mcfuser.tune.proof); None where none of the first ATTEMPTS
    does. `failed` counts reasons; what is not compiled at the `deadline` (time.monotonic) is left
    out.

    The parts of a split are combined by a second kernel: one that waits for the last block is
    used only where it was checked.
    """
    found = every(space, device, groups=False)
    rows = found.rows[found.rows[:, -1] < KINDS]
    times = found.each(rows, partial(predict, device))
    order = np.argsort(times, kind="stable")[:ATTEMPTS]
    together = compilers.workers
    for first in range(0, len(order), together):
        if time.monotonic() >= deadline:
            break
        tell(first, len(order))
        some = [tuple(int(v) for v in rows[i]) for i in order[first : first + together]]
        made = _compiled(chain, device, found, compilers, some, name, shifts, failed, deadline)
        if made is not None:
            candidate, kernel = made
            plan, tiles = found.plan(candidate)
            return Best(
                plan, tiles, LOWERINGS[candidate[-1]], kernel, Measured(None, None),
                float(times[order[first + some.index(candidate)]]), first + len(some), len(rows),
            )  # fmt: skip
    return None


def _compiled(
    chain: Chain, device: Device, found: Candidates, compilers: Compilers,
    some: Sequence[Candidate], name: str, shifts: bool, failed: Counter[str], deadline: float,
) -> tuple[Candidate, GpuKernel] | None:  # fmt: skip
    """The first of some candidates that is fit for use."""
    written: list[tuple[Candidate, triton.Source]] = []
    for candidate in some:
        plan, tiles = found.plan(candidate)
        try:
            source = triton.generate(plan.schedule(tiles), name, LOWERINGS[candidate[-1]])
        except Illegal as illegal:
            failed[str(illegal)] += 1
            continue
        written.append((candidate, source))
    binaries = dict(compilers.compile([source for _, source in written], device.arch, deadline))
    best = None
    for i, (candidate, source) in enumerate(written):
        if i not in binaries:
            failed[NO_TIME] += 1
            continue
        binary = binaries[i]
        if isinstance(binary, Illegal) or (why := _unfit(binary, device)) is not None:
            failed[str(binary) if isinstance(binary, Illegal) else str(why)] += 1
        elif best is None:
            plan, tiles = found.plan(candidate)
            if (why := disproof(chain, plan, tiles, shifts, SEED)) is not None:
                failed[why] += 1
            else:
                best = candidate, GpuKernel(chain, source, binary)
    return best


def _unfit(binary: Binary, device: Device) -> str | None:
    """Why a kernel cannot be used, if so."""
    if (why := too_large(binary, device)) is not None:
        return why
    return "its registers spill" if binary.spills else None
