"""Seconds of products of small whole numbers that are multiplied in pairs, beside float32's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcfuser.device import Device
from mcfuser.expr import axes
from mcfuser.lowering.tensorir.paired import paired_products
from mcfuser.space.plan import Floats, Ints, Plan, repeats, sizes_of
from mcfuser.space.statement import Load, statements

PACE = 1.55
"""How much faster pairs are multiplied than float32 numbers: 128 x 384 times 384 x 1536 took 0.45
ms, and 0.71 in float32 (an EPYC with AVX2, two cores, 2026-11-26)."""
COPY = 4.0
"""Flops that a core could compute while it copies an element of the left operand."""


def paired_seconds(plan: Plan, tiles: Ints, device: Device, floats: Mapping[str, Floats]) -> Floats:
    """Core seconds of all blocks, for each row of `tiles` [candidates, axes], that products need
    more in pairs than as `floats`, by their tiles: less than 0 where they are faster."""
    sizes, total = sizes_of(plan, tiles), np.zeros(len(tiles))
    loads = {s.buffer: outer for s, outer in statements(plan.placed[1]) if isinstance(s, Load)}
    peak = device.throughput("float32") / device.units
    for s, outer, roles, left, taken in paired_products(plan, sizes):
        copied = repeats(sizes, loads.get(left, outer)) * sizes.positions(axes(roles.left))
        saved = floats[s.buffer] * (1 - 1 / PACE)
        total += np.where(taken, COPY * copied / peak - saved, 0.0)
    return total
