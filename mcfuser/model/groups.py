"""The time of kernels whose warp groups each keep a pace of their own, where a product is late.

    t = queue * (block + dots * product + arithmetic * operation + turns * turn)

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

BLOCK = 4.24e-6
"""Seconds of a block: barriers, registers that warps hand over, the first tiles and the output;"""
PRODUCT = 3.03e-11
"""of the share of a row tile that a warp's part of a product takes (`terms`: group_all),"""
OPERATION = 4.53e-12
"""of an operation on an element (simple_all),"""
TURN = 1.6e-7
"""and of a turn: what waits for a tile or another group. Fitted to 306 kernels of 12 attentions
of 512 to 8,192 tokens on an H200; of chains that the fit did not see, measured over estimated time
deviates by 12 %."""


def estimate(made: Lowered, device: Device) -> Floats:
    """Seconds for each candidate; `made` has the warps of two groups."""
    found = terms(made, device)
    turns = np.zeros(found.size)
    for loop, outer in serial(made.body):
        turns += repeats(made.sizes, inner(outer)) * made.sizes.turns(loop)
    each = BLOCK + PRODUCT * found.of("group_all") + OPERATION * found.of("simple_all")
    result: Floats = found.queue(device.units) * (each + TURN * turns)
    return result
