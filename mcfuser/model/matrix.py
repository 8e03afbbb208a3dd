"""Seconds of products on a CPU's matrix unit, and of splitting their operands for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcfuser.chain import Product
from mcfuser.device import Device
from mcfuser.expr import axes
from mcfuser.lowering.tensorir.matrix import (
    PIECES,
    SIDE,
    STEP,
    last_row,
    matrix_products,
    operand_dtypes,
    operand_tiles,
    pairs,
    span,
)
from mcfuser.space.plan import Floats, Ints, Plan, Sizes, repeats, sizes_of
from mcfuser.space.statement import Compute, Load, statements

SPLIT = 8.0
"""Flops that a core could compute while it splits a piece off an element and stores it."""


def matrix_seconds(
    plan: Plan, tiles: Ints, device: Device, vectors: Mapping[str, Floats]
) -> Floats:
    """Core seconds of all blocks, for each row of `tiles` [candidates, axes], that the products
    which the unit takes need more than on `vectors`, by their tiles: less than 0 where they are
    faster."""
    sizes, total = sizes_of(plan, tiles), np.zeros(len(tiles))
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    loads = {s.buffer: outer for s, outer in statements(body) if isinstance(s, Load)}
    peak, unit = (device.throughput(n) / device.units for n in ("float32", "matrix"))
    for s, outer, taken in matrix_products(plan, sizes):
        found = operand_tiles(s)
        assert found is not None
        roles, left, right = found
        dtypes = operand_dtypes(plan.program.chain, named, left, right)
        pieces = [PIECES.get(d, 1) for d in dtypes]
        visits = repeats(sizes, outer)
        split = loads.get(left, outer) if s.domain is None else outer
        elements = repeats(sizes, split) * pieces[0] * sizes.positions(axes(roles.left))
        elements = elements + visits * pieces[1] * sizes.positions(axes(roles.right))
        padded = len(pairs(*pieces)) * _padded(sizes, s, roles)
        seconds = visits * padded / unit + SPLIT * elements / peak
        total += np.where(taken, seconds - vectors[s.buffer], 0.0)
    return total


def _padded(sizes: Sizes, s: Compute, roles: Product) -> Floats:
    """Flops of a visit, in whole tile registers."""
    rows, columns = last_row(roles, sizes.of), sizes.of(s.operator.axes[-1])
    others = sizes.positions(s.operator.axes) / (rows * columns)
    whole = _whole(rows, SIDE) * _whole(columns, span(columns))
    result: Floats = 2 * others * whole * _whole(sizes.positions(roles.depth), STEP)
    return result


def _whole(positions: Floats | Ints, unit: Ints | int) -> Floats:
    """As many positions as whole units have."""
    result: Floats = np.ceil(positions / unit) * unit
    return result
