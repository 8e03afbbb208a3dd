"""Plans: an expression with its dead loops, placed once; counts over arrays of tile sizes.

A plan stands for all candidates whose statements are the same. Everything here is an array over
candidates: no object is made for a candidate that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcfuser.algebra.fold import fold
from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import rolls
from mcfuser.chain import BYTES, Chain
from mcfuser.space.count import calls
from mcfuser.space.expression import Expression, loop_axes
from mcfuser.space.place import Program, place
from mcfuser.space.schedule import (
    Buffer,
    Compute,
    Dim,
    Load,
    Loop,
    Repair,
    Schedule,
    Statement,
    Store,
    notation,
    statements,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def program(chain: Chain) -> Program:
    """The chain made ready for placement: sums hoisted, maps folded, repairs derived."""
    ready = fold(hoist(chain))
    return Program(ready, rolls(ready))


@dataclass(frozen=True)
class Plan:
    """An expression with some loops dead. `tiles` arrays are [candidates, axes]."""

    program: Program
    expression: Expression
    dead: frozenset[str]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return loop_axes(self.program.chain)

    @cached_property
    def placed(self) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
        return place(self.program, self.expression, self.dead)

    @property
    def notation(self) -> str:
        return notation(self.placed[1], self.program.batch)

    def schedule(self, tiles: Mapping[str, int]) -> Schedule:
        buffers, body = self.placed
        kept = tuple((a, tiles[a]) for a in self.axes)
        return Schedule(self.program.chain, self.expression, kept, buffers, body)


@dataclass(frozen=True)
class Sizes:
    """Tile extents and trips by axis, one entry a candidate."""

    chain: Chain
    tile: Mapping[str, Ints]
    one: Ints

    def of(self, axis: str) -> Ints:
        return self.tile.get(axis, self.one)

    def trips(self, axis: str) -> Ints:
        return -(-self.chain.size(axis) // self.of(axis))

    def span(self, dim: Dim, around: Collection[str] = ()) -> Ints:
        """Elements along a tile's dimension; of a whole one, only those inside loops at hand."""
        total = self.one
        for axis, c in dim.index.terms:
            positions = self.of(axis)
            if dim.whole and axis not in around:
                positions = positions * self.trips(axis)
            total = total + abs(c) * (positions - 1)
        return total


def sizes_of(plan: Plan, tiles: Ints) -> Sizes:
    columns = {a: tiles[:, i] for i, a in enumerate(plan.axes)}
    return Sizes(plan.program.chain, columns, np.ones(len(tiles), np.int64))


def repeats(sizes: Sizes, outer: tuple[Loop, ...]) -> Floats:
    total = sizes.one.astype(np.float64)
    for loop in outer:
        total = total * sizes.trips(loop.axis)
    return total


def elements(sizes: Sizes, buffer: Buffer, around: Collection[str] = ()) -> Floats:
    total = sizes.one.astype(np.float64)
    for dim in buffer.dims:
        total = total * sizes.span(dim, around)
    return total


def traffic(plan: Plan, tiles: Ints) -> Floats:
    """Bytes moved by all loads and stores, padding included (MCFuser eq. 3, times W)."""
    sizes = sizes_of(plan, tiles)
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    total = np.zeros(len(tiles))
    for s, outer in statements(body):
        if isinstance(s, (Load, Store)):
            buffer = named[s.buffer]
            width = BYTES[plan.program.chain.tensor(buffer.tensor).dtype]
            around = [loop.axis for loop in outer]
            total += width * elements(sizes, buffer, around) * repeats(sizes, outer)
    return total


def work(plan: Plan, tiles: Ints) -> Floats:
    """Flops of all computes and repairs, padding included (MCFuser eq. 4, times P)."""
    sizes = sizes_of(plan, tiles)
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    total = np.zeros(len(tiles))
    for s, outer in statements(body):
        if isinstance(s, Compute):
            space = sizes.one.astype(np.float64)
            for axis in s.operator.related:
                space = space * sizes.of(axis)
            each = calls(s.body) + (s.operator.reduce != "none")
            total += each * space * repeats(sizes, outer)
        elif isinstance(s, Repair):
            around = [loop.axis for loop in outer]
            total += calls(s.h) * elements(sizes, named[s.buffer], around) * repeats(sizes, outer)
    return total


def footprint(plan: Plan, tiles: Ints) -> Ints:
    """Bytes of fast memory that a block asks for: the sum of its tiles (MCFuser eq. 1).

    A map is computed in the registers of what it reads, so its tile counts only when kept whole.
    """
    sizes = sizes_of(plan, tiles)
    total = np.zeros(len(tiles))
    maps = {o.out for o in plan.program.chain.operators if o.reduce == "none"}
    for buffer in plan.placed[0]:
        if buffer.tensor in maps and not any(d.whole for d in buffer.dims):
            continue
        width = BYTES[plan.program.chain.tensor(buffer.tensor).dtype]
        total += width * elements(sizes, buffer)
    return total.astype(np.int64)


def blocks(plan: Plan, tiles: Ints) -> Ints:
    """Blocks of the grid, batch axes included."""
    sizes = sizes_of(plan, tiles)
    total = sizes.one
    grid = {*plan.expression.grid} - plan.dead
    for axis in (*plan.program.batch, *sorted(grid)):
        total = total * sizes.trips(axis)
    return total
