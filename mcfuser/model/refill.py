"""Bytes that cores read into their private caches from beyond them: from the last one, or memory.

A loop over an axis that an array lacks reads the same elements again. They are still in the private
cache where all that one iteration touches fits in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from mcfuser.chain import BYTES, Chain, strides_of
from mcfuser.expr import Read, axes
from mcfuser.lowering.tensorir.box import box_spans
from mcfuser.space.plan import Floats, Plan, Sizes, elements
from mcfuser.space.statement import Load, Loop, statements


@dataclass(frozen=True)
class _Reading:
    """A load: the bytes of its tile [candidates], the loops around it, and its axes."""

    tile: Floats
    outer: tuple[Loop, ...]
    axes: frozenset[str]

    def distinct(self, sizes: Sizes, depth: int) -> Floats:
        """Bytes that it reads, each once, in one iteration of the loop at this depth."""
        total = self.tile
        for loop in self.outer[depth + 1 :]:
            if loop.axis in self.axes:
                total = total * sizes.iterations(loop)
        return total


def refilled(plan: Plan, sizes: Sizes, cache: int) -> Floats:
    """Bytes that all blocks together read from beyond private caches of so many bytes
    [candidates]."""
    readings = _readings(plan, sizes)
    held = _held(plan, sizes)
    total = np.zeros(len(sizes.one))
    for reading in readings:
        moved = reading.tile
        for depth in reversed(range(len(reading.outer))):
            loop = reading.outer[depth]
            iterations = sizes.iterations(loop)
            if loop.axis not in reading.axes:
                around = reading.outer[: depth + 1]
                inside = [r for r in readings if r.outer[: depth + 1] == around]
                touched = sum((r.distinct(sizes, depth) for r in inside), held)
                iterations = 1 + (iterations - 1) * outgrown(touched, cache)
            moved = moved * iterations
        total += moved
    return total


def outgrown(nbytes: Floats, cache: int) -> Floats:
    """The part of so many bytes that is not in a cache when it is needed again, something else
    being there too."""
    part: Floats = np.clip(nbytes / cache - 0.5, 0.0, 1.0)
    return part


def _readings(plan: Plan, sizes: Sizes) -> list[_Reading]:
    found = []
    for s, outer in statements(plan.placed[1]):
        if isinstance(s, Load):
            tile = _loaded(plan.program.chain, sizes, s.read, outer)
            found.append(_Reading(tile, outer, frozenset(axes(s.read))))
    return found


def _loaded(chain: Chain, sizes: Sizes, read: Read, outer: tuple[Loop, ...]) -> Floats:
    """Bytes of a tile of an input, each element once: windows overlap."""
    tile = partial(sizes.at_hand, around={loop.axis for loop in outer})
    tensor = chain.tensor(read.tensor)
    if tensor.padding:
        return BYTES[tensor.dtype] * sizes.product(box_spans(chain, read, tile))
    counts = [sum((abs(c) * (tile(a) - 1) for a, c in i.terms), sizes.one) for i in read.indices]
    each, reach = sizes.product(counts), sizes.product(())
    for count, stride in zip(counts, strides_of(chain, read.tensor), strict=True):
        if not isinstance(stride, int):
            return BYTES[tensor.dtype] * each
        reach = reach + (count - 1) * stride
    return BYTES[tensor.dtype] * np.minimum(each, reach)


def _held(plan: Plan, sizes: Sizes) -> Floats:
    """Bytes of the tiles that a block computes."""
    chain = plan.program.chain
    loaded = {s.buffer for s, _ in statements(plan.placed[1]) if isinstance(s, Load)}
    computed = [b for b in plan.placed[0] if b.name not in loaded]
    tiles = (BYTES[chain.tensor(b.tensor).dtype] * elements(sizes, b) for b in computed)
    return sum(tiles, np.zeros(len(sizes.one)))
