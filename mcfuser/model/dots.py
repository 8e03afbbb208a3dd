"""Seconds of products of small whole numbers, of short dot products, beside float32's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcfuser.device import Device
from mcfuser.expr import axes
from mcfuser.lowering.tensorir.dots import PAIR, QUAD, dot_products, lies_in_bytes, longest
from mcfuser.space.plan import Floats, Ints, Plan, repeats, sizes_of
from mcfuser.space.statement import Load, statements

PACE: Mapping[int, float] = {PAIR: 1.55, QUAD: 4.2}
"""How much faster dot products are computed than float32 numbers are multiplied, by their length:
128 x 384 times 384 x 1536 took 0.45 ms in pairs and 0.71 in float32 (an EPYC with AVX2, two cores,
2026-11-26), 0.170 in fours and 0.724 in float32 (a Xeon with VNNI, two cores, 2026-11-27)."""
COPY = 4.0
"""Flops that a core could compute while it copies an element of the left operand."""


def dot_seconds(plan: Plan, tiles: Ints, device: Device, floats: Mapping[str, Floats]) -> Floats:
    """Core seconds of all blocks, for each row of `tiles` [candidates, axes], that products need
    more as dot products than as `floats`, by their tiles: less than 0 where they are faster."""
    sizes, total = sizes_of(plan, tiles), np.zeros(len(tiles))
    loads = {s.buffer: outer for s, outer in statements(plan.placed[1]) if isinstance(s, Load)}
    peak = device.throughput("float32") / device.units
    for s, outer, roles, left, lengths in dot_products(plan, sizes, longest(device)):
        copied = repeats(sizes, loads.get(left, outer)) * sizes.positions(axes(roles.left))
        ready = lies_in_bytes(plan.program.chain, roles)
        for length, pace in PACE.items():
            copies = 0.0 if ready and length == QUAD else COPY * copied / peak
            saved = floats[s.buffer] * (1 - 1 / pace)
            total += np.where(lengths == length, copies - saved, 0.0)
    return total
