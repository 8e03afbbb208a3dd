"""Seconds of convolutions by Winograd's algorithm, beside those of sums over windows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mcfuser.device import Device
from mcfuser.lowering.tensorir.winograd import SPAN, convolutions, pieces
from mcfuser.space.count import calls
from mcfuser.space.plan import Floats, Ints, Plan, Sizes, repeats, sizes_of

TURN = 24.0
"""Flops that a core could compute while it turns one number of an input's pieces."""
BACK = 16.0
"""The same for one number that is turned back."""


def winograd_seconds(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Core seconds of all blocks, for each row of `tiles` [candidates, axes], that the convolutions
    which Winograd's algorithm can compute need more with it than without: less than 0 where they
    are faster."""
    sizes, total = sizes_of(plan, tiles), np.zeros(len(tiles))
    peak = device.throughput("float32") / device.units
    for s, outer, roles, picture, taken in convolutions(plan, sizes):
        column = max(roles.columns, key=s.operator.axes.index)
        many = SPAN * SPAN * pieces(picture, sizes.of)
        columns, depth = sizes.of(column), _positions(sizes, picture.channels)
        others = [a for a in s.operator.axes if a not in (*picture.rows, column)]
        flops = 2 * many * columns * depth - (calls(s.body) + 1) * (
            _positions(sizes, (*picture.rows, *picture.window)) * columns * depth
        )
        turned = TURN * many * depth + BACK * many * columns
        each = _positions(sizes, others) * (flops + turned)
        total += np.where(taken, repeats(sizes, outer) * each / peak, 0.0)
    return total


def _positions(sizes: Sizes, names: Iterable[str]) -> Floats:
    """Positions of the tiles at hand of these axes."""
    total = sizes.one.astype(np.float64)
    for a in names:
        total = total * sizes.of(a)
    return total
