"""The time of kernels whose warp groups each keep a pace of their own, where a product is late.

    t = once + queue * (dots * product + arithmetic * operation + turns * turn)

One block runs on a multiprocessor at a time. Its tensor cores and its other units wait for each
other in part only, which the constants know and the terms do not.
"""

from __future__ import annotations

import numpy as np

from mcfuser.device import Device
from mcfuser.model.loops import inner, serial
from mcfuser.model.resources import Lowered
from mcfuser.model.terms import terms
from mcfuser.space.plan import Floats, repeats

ONCE = 4.64e-6
"""Seconds of a launch, barriers, and registers that warps hand over;"""
PRODUCT = 1.94e-11
"""of the share of a row tile that a warp's part of a product takes (`terms`: group_all),"""
OPERATION = 4.99e-12
"""of an operation on an element (simple_all),"""
TURN = 1.86e-7
"""and of a turn: what waits for a tile or another group. Fitted to 285 kernels of 12 attentions
of 512 to 8,192 tokens on an H200; of a chain that the fit did not see, the ratio of measured and
estimated time deviates by 6 to 14 %."""


def estimate(made: Lowered, device: Device) -> Floats:
    """Seconds for each candidate; `made` has the warps of two groups."""
    found = terms(made, device)
    turns = np.zeros(found.size)
    for loop, outer in serial(made.body):
        turns += repeats(made.sizes, inner(outer)) * made.sizes.turns(loop)
    each = PRODUCT * found.of("group_all") + OPERATION * found.of("simple_all") + TURN * turns
    queue = np.ceil(found.blocks / device.units) + found.peak - 1
    result: Floats = ONCE + queue * each
    return result
