"""A roofline model of GPUs by waves of blocks: flops and traffic of a block, and how blocks queue.

A block's loads overlap its arithmetic, so the slower of both counts.
"""

from __future__ import annotations

import numpy as np

from mcfuser.device import Device
from mcfuser.model.analytical import storage
from mcfuser.space.plan import Floats, Ints, Plan, blocks, traffic, work

OVERLAPPED_LAUNCH = 3e-6
"""Seconds from the call of a GPU's kernel to its first block. Combining the parts of a split loop
is a second launch."""


def overlapped(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Seconds for each row of `tiles` [candidates, axes] where a block's loads overlap its
    arithmetic: the slower of both counts."""
    count, units = blocks(plan, tiles), device.units
    t_mem = traffic(plan, tiles) / count / (device.bandwidth / units)
    t_comp = work(plan, tiles) / count / (device.throughput(storage(plan)) / units)
    launches = 2 if plan.split is not None else 1
    waves: Floats = np.ceil(count / units)
    return waves * np.maximum(t_comp, t_mem) + OVERLAPPED_LAUNCH * launches
