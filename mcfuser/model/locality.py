"""Locality of loaded tiles: bytes that are contiguous in memory, and tiles that blocks share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcfuser.chain import BYTES, digits, strides_of
from mcfuser.expr import Affine
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


def spacing(made: TritonCandidates, name: str, indices: Sequence[Affine]) -> tuple[Floats, Floats]:
    """The elements of a tensor's tile that are evenly spaced in memory, and from one to the next
    how many elements there are [candidates]; the tile's dimensions have these `indices`.

    They lie along the dimension whose stride is the shortest, and go on along the next one where
    that begins as far on as this one ends.
    """
    chain, one = made.plan.program.chain, np.ones(len(made.tiles))
    count, apart = one, one
    going, ended = np.zeros(len(one), bool), np.zeros(len(one), bool)
    dims = zip(strides_of(chain, name), chain.shape(name), indices, strict=True)
    rows = [(digits(stride, n)[-1], index.plain) for stride, n, index in dims]
    for last, a in sorted(rows, key=lambda row: row[0].stride):
        if a is None or not last.stride:
            continue
        lanes = np.minimum(made.sizes.of(a), last.extent)
        begins = ~going & ~ended & (lanes > 1)
        follows = going & (last.stride == count * apart)
        ended = ended | (begins | follows) & (lanes < last.extent) | going & ~follows
        apart = np.where(begins, last.stride, apart)
        count = np.where(begins | follows, count * lanes, count)
        going = (going | begins) & ~ended
    return count, apart


def contiguous_bytes(made: TritonCandidates, name: str, indices: Sequence[Affine]) -> Floats:
    """Bytes of a tensor's tile that are contiguous in memory [candidates]: one row of it, whose
    dimensions have these `indices`."""
    chain = made.plan.program.chain
    width = float(BYTES[chain.tensor(name).dtype])
    for stride, n, index in zip(strides_of(chain, name), chain.shape(name), indices, strict=True):
        last = digits(stride, n)[-1]
        if last.stride == 1 and (a := index.plain) is not None:
            return width * np.minimum(made.sizes.of(a), last.extent)
    return np.full(len(made.tiles), width)
