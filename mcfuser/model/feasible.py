"""Which candidates are worth a look: before they are compiled, and before they are measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.lowering.loops import pipelined, serial
from mcfuser.lowering.triton.instructions import HOPPER
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.space.plan import Ints, Plan

HELD = 285.0
"""Estimated registers above which spilling costs more than any candidate is worth."""
SPILLED = 1024
"""Bytes that a thread keeps outside its registers above which a kernel is not worth measuring."""
GATHERED = 256.0
"""Elements of all parts together that a thread can hold while it combines them."""
FEW = 4
"""Elements of its largest product that a thread should have: with fewer, warps have no work."""


def spills_too_much(spills: int) -> bool:
    """The compiler gave up on registers: of 71 such kernels among 6,433 measured, the best took 2.4
    times as long as the best of its landscape."""
    return spills > SPILLED


def feasible(
    plan: Plan, tiles: Ints, warps: Ints, stages: Ints, device: Device
) -> NDArray[np.bool_]:
    """Which candidates are worth a look: no certain spilling, shared memory that a block may have,
    no warps without work, no more stages than iterations or two.

    Group instructions need a loop with iterations to pipeline, in two stages at least: without,
    Triton 3.6 lets a later load overwrite what an unfinished product still reads. On an H200, 43 of
    277 kernels with one stage were wrong or faulted, 5 of 92 without iterations, and none of 2,124
    others.
    """
    made = TritonCandidates(plan, tiles, warps, stages, warps < 0, device.arch == HOPPER)
    iterations = np.ones(len(tiles))
    for loop, _ in serial(made.facts.body):
        if pipelined(loop):
            iterations = np.maximum(iterations, made.sizes.iterations(loop))
    busy = warps == 1
    for dot in made.dots.values():
        busy |= dot.rows * dot.columns >= FEW * 32 * warps
    if not made.dots:
        return np.asarray(stages <= iterations)
    grouped = np.any([d.grouped for d in made.dots.values()], axis=0)
    staged = (stages <= np.maximum(iterations, 2)) & (~grouped | ((stages > 1) & (iterations > 1)))
    fits = (made.registers <= HELD) & (made.shared <= device.fast) & (made.gathered <= GATHERED)
    return np.asarray(fits & staged & busy)
