"""Which candidates are feasible on a GPU: before they are compiled, and before they are
measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.lowering.loops import pipelined, serial
from mcfuser.lowering.triton.instructions import HOPPER
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.space.plan import Ints, Plan

HELD = 285.0
"""Estimated registers of a thread above which a candidate certainly spills too much."""
SPILLED = 1024
"""Bytes that a thread may spill to memory in a kernel that is measured."""
GATHERED = 256.0
"""Elements of all parts together that a thread can hold while it combines them."""
WRITTEN_OUT = 2048.0
"""Multiplications of float32 products that a thread may write out in an iteration. Of 179 kernels
compiled for sm_90 (Triton 3.9, 2026-11-24), all 55 with more spill, 39 of them more than SPILLED
bytes, and they took 2.7 seconds to compile, up to half a minute; the others took 0.9, and 86 of
these 124 do not spill."""
LARGEST = 256.0
"""Elements of a reduction that a thread can have at once: sums of 32 x 262,144 elements take 38
registers with as many (Triton 3.9 for sm_90, 2026-11-28)."""
MAPPED = 128.0
"""Elements of a map that a thread can have at once: a norm's quotients with an activation take 178
registers with as many, and spill 1,496 bytes in 4 seconds of compilation with twice as many."""
FEW = 4
"""Elements of its largest product that a thread should have: with fewer, warps have no work."""


def spills_too_much(spills: int) -> bool:
    """Whether a kernel that spills so many bytes a thread is not measured: of 71 such kernels among
    6,433 measured, the best took 2.4 times as long as the fastest kernel of its chain."""
    return spills > SPILLED


def feasible(
    plan: Plan, tiles: Ints, warps: Ints, stages: Ints, device: Device,
    dot: NDArray[np.str_] | None = None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Which candidates [candidates] are feasible: they do not certainly spill, a block has their
    shared memory, no warp is without work, and there are no more stages than iterations, or two.

    Instructions of warp groups need a loop of several iterations that is pipelined in at least two
    stages: without, Triton 3.6 lets a later load overwrite a tile that an unfinished product still
    reads. On an H200, 43 of
    277 kernels with one stage were wrong or faulted, 5 of 92 without iterations, and none of 2,124
    others.
    """
    hopper = device.arch == HOPPER
    made = TritonCandidates(plan, tiles, warps, stages, warps < 0, hopper, dot=dot)
    iterations = np.ones(len(tiles))
    for loop, _ in serial(made.facts.body):
        if pipelined(loop):
            iterations = np.maximum(iterations, made.sizes.iterations(loop))
    busy = warps == 1
    for d in made.dots.values():
        busy |= d.rows * d.columns >= FEW * 32 * warps
    if not made.dots:
        held = (made.largest <= LARGEST) & (made.largest_map <= MAPPED)
        return np.asarray((stages <= iterations) & held)
    grouped = np.any([d.grouped for d in made.dots.values()], axis=0)
    staged = (stages <= np.maximum(iterations, 2)) & (~grouped | ((stages > 1) & (iterations > 1)))
    fits = (made.registers <= HELD) & (made.shared <= device.fast) & (made.gathered <= GATHERED)
    fits &= made.multiplied <= WRITTEN_OUT
    return np.asarray(fits & staged & busy)
