"""Locality of loaded tiles: bytes that are contiguous in memory, and tiles that blocks share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcfuser.chain import BYTES
from mcfuser.lowering.loops import OUTER
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.space.plan import Floats
from mcfuser.space.statement import Load, Loop


def distinct_tiles(
    made: TritonCandidates, s: Load, outer: tuple[Loop, ...], together: Floats
) -> Floats:
    """The number of distinct tiles that `together` blocks load which run at the same time. Blocks
    are numbered with the grid's last loop fastest."""
    axes = {a for index in s.read.indices for a in index.axes}
    tiles, left = np.ones(len(made.tiles)), together
    for loop in reversed([x for x in outer if x.kind in OUTER]):
        iterations = made.sizes.iterations(loop)
        if loop.axis in axes:
            tiles = tiles * np.minimum(iterations, np.maximum(1.0, left))
        left = left / iterations
    return tiles


def contiguous_bytes(made: TritonCandidates, s: Load) -> Floats:
    """Bytes of a tile that are contiguous in memory [candidates]: one row of it."""
    tensor = made.plan.program.chain.tensor(s.read.tensor)
    width = float(BYTES[tensor.dtype])
    strides: Mapping[int, int] = dict(enumerate(tensor.strides or ()))
    for i, index in enumerate(s.read.indices):
        contiguous = strides[i] == 1 if strides else i == len(s.read.indices) - 1
        if contiguous and (a := index.plain) is not None:
            return width * made.sizes.of(a).astype(np.float64)
    return np.full(len(made.tiles), width)
