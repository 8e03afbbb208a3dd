"""Seconds of convolutions by Winograd's algorithm, beside those of sums over windows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from mcfuser.chain import BYTES
from mcfuser.device import Device
from mcfuser.lowering.tensorir.winograd import TAPS, TRANSFORMS, Rows, convolutions, pieces
from mcfuser.space.plan import Floats, Ints, Plan, repeats, sizes_of

TURN = MappingProxyType({False: 12.0, True: 4.0})
"""Flops that a core could compute while it adds one term to a number of an input's pieces, by
whether pictures have their channels last: vectors along lines gather what they turn."""
BACK = MappingProxyType({False: 10.0, True: 7.0})
"""The same for a term of what numbers are turned back to."""


def winograd_seconds(
    plan: Plan, tiles: Ints, device: Device, out: int, windows: Mapping[str, Floats]
) -> Floats:
    """Core seconds of all blocks, for each row of `tiles` [candidates, axes], that the convolutions
    which Winograd's algorithm can compute in pieces of `out` x `out` results need more with it than
    as sums over `windows`, by their tiles: less than 0 where they are faster. Each visit reads what
    its weights have grown by from memory or the last cache: alone in a process a kernel has them
    nearer, in a model it has not.
    """
    sizes, total = sizes_of(plan, tiles), np.zeros(len(tiles))
    peak, t = device.throughput("float32") / device.units, TRANSFORMS[out]
    for s, outer, roles, picture, taken in convolutions(plan, sizes, out):
        column = max(roles.columns, key=s.operator.axes.index)
        last, many = picture.channels_last, t.numbers * pieces(picture, out, sizes.of)
        turn, back = TURN[last] * _terms(t.turned) / t.span, BACK[last] * _terms(t.back) / t.span
        columns, depth = sizes.of(column), sizes.positions(picture.channels)
        others = [a for a in s.operator.axes if a not in (*picture.rows, column)]
        visits = repeats(sizes, outer) * sizes.positions(others)
        flops = 2 * many * columns * depth + turn * many * depth + back * many * columns
        weights = BYTES["float32"] * (t.numbers - TAPS**2) * columns * depth
        seconds = visits * (flops / peak + device.units * weights / device.bandwidth)
        total += np.where(taken, seconds - windows[s.buffer], 0.0)
    return total


def _terms(matrix: Rows) -> int:
    """The factors of a matrix that are not 0."""
    return sum(1 for row in matrix for factor in row if factor)
