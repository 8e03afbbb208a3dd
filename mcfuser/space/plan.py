"""Plans: an expression with its dead loops, placed once; counts over arrays of tile sizes.

A plan stands for all candidates whose statements are the same. Everything here is an array over
candidates: no object is made for a candidate that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Chain
from mcfuser.expr import Affine
from mcfuser.space.count import calls
from mcfuser.space.expression import Expression
from mcfuser.space.nesting import Nesting, nesting
from mcfuser.space.place import drawn, finished
from mcfuser.space.program import Program
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Dim,
    Illegal,
    Load,
    Loop,
    Repair,
    SimpleStatement,
    Statement,
    Store,
    StorePartial,
    notation,
    statements,
)

SAMPLES = 16
"""Iterations of an outer loop at which the bounds of an inner loop are evaluated, to estimate the
average number of its iterations."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """An expression with some loops dead, and perhaps one split into parts. `tiles` arrays are
    [candidates, axes]."""

    program: Program
    expression: Expression
    dead: frozenset[str]
    split: str | None = None
    parts: int = 1

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return self.program.axes

    @cached_property
    def nesting(self) -> Nesting:
        """The loops around each operator: plans of one program with equal ones are equal."""
        return nesting(self.program, self.expression, self.dead, self.split)

    @cached_property
    def drawn(self) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
        """The plan's buffers, and its statements before they are finished (place.drawn)."""
        return drawn(self.program, self.nesting)

    @cached_property
    def placed(self) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
        return finished(self.program, *self.drawn)

    @property
    def notation(self) -> str:
        return notation(self.placed[1], self.program.batch)

    def schedule(self, tiles: Mapping[str, int]) -> Schedule:
        buffers, body = self.placed
        kept = tuple((a, tiles[a]) for a in self.axes)
        return Schedule(self.program.chain, self.expression, kept, buffers, body, self.parts)


def splits(plan: Plan) -> tuple[str, ...]:
    """The loops that a plan may split: the rules of placement allow it, and something is reduced
    over them."""
    chain, axes = plan.program.chain, []
    reduced = {a for o in chain.operators for a in o.over}
    for a in plan.expression.axes:
        if a in reduced and a not in plan.dead and a not in plan.expression.grid:
            try:
                _ = replace(plan, split=a, parts=2).drawn
            except Illegal:
                continue
            axes.append(a)
    return tuple(axes)


@dataclass(frozen=True)
class Sizes:
    """Tile extents and trips by axis, one entry a candidate."""

    chain: Chain
    tile: Mapping[str, Ints]
    one: Ints
    split: str | None = None
    parts: int = 1
    known: dict[tuple[object, ...], Floats] = field(default_factory=dict, compare=False, repr=False)
    """The results of `taken_share`."""

    def of(self, axis: str) -> Ints:
        return self.tile.get(axis, self.one)

    def positions(self, names: Iterable[str]) -> Floats:
        """Positions of the tiles at hand of these axes, each once."""
        return self.product(self.of(a) for a in set(names))

    def product(self, counts: Iterable[Ints]) -> Floats:
        """The product of some counts [candidates]; one of none."""
        total = self.one.astype(np.float64)
        for count in counts:
            total = total * count
        return total

    def at_hand(self, axis: str, around: Collection[str]) -> Ints:
        """Positions inside loops over some axes: those of a tile, or all where no loop goes over
        the axis."""
        return self.of(axis) if axis in around else np.asarray(self.chain.size(axis))

    def trips(self, axis: str) -> Ints:
        return -(-self.chain.size(axis) // self.of(axis))

    def iterations(self, loop: Loop) -> Floats:
        """Iterations of a loop [candidates] for one iteration of the loops around it, on average
        over the loops that its bounds depend on; of a split loop, the number of parts."""
        if loop.kind == "split":
            return np.full(len(self.one), float(self.parts))
        trips = self.trips(loop.axis)
        each = -(-trips // self.parts) if loop.axis == self.split else trips
        result: Floats = each * self.taken_share(loop)
        return result

    def taken_share(self, loop: Loop) -> Floats:
        """The share of a loop's iterations that its bounds admit [candidates], on average over
        samples of the axes that they depend on."""
        key = loop.axis, loop.lo, loop.hi
        if key not in self.known:
            self.known[key] = self.taken_shares(loop).mean(axis=1)
        return self.known[key]

    def taken_shares(self, loop: Loop) -> Floats:
        """The share that the bounds admit, for each sample [candidates, samples]."""
        if not loop.lo and not loop.hi:
            return self.one.astype(np.float64)[:, None]
        trips, tile = self.trips(loop.axis)[:, None], self.of(loop.axis)[:, None]
        first, last = np.zeros_like(trips), trips
        for low in loop.lo:
            first = np.maximum(first, self._reach(low, False) // tile)
        for high in loop.hi:
            last = np.minimum(last, self._reach(high, True) // tile + 1)
        result: Floats = np.maximum(last - first, 0) / trips
        return result

    def _reach(self, index: Affine, greatest: bool) -> Ints:
        """The least or greatest value of an index, [candidates, samples] of its axes'
        iterations."""
        total = np.full((len(self.one), SAMPLES), index.offset)
        for i, (a, c) in enumerate(index.terms):
            at = (np.arange(SAMPLES) * (2 * i + 1) % SAMPLES + 0.5) / SAMPLES
            start = (at * self.trips(a)[:, None]).astype(np.int64) * self.of(a)[:, None]
            last = start + self.of(a)[:, None] - 1
            total = total + c * (last if (c > 0) == greatest else start)
        return total

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
    one = np.ones(len(tiles), np.int64)
    return Sizes(plan.program.chain, columns, one, plan.split, plan.parts)


def repeats(sizes: Sizes, outer: tuple[Loop, ...]) -> Floats:
    total = sizes.one.astype(np.float64)
    for loop in outer:
        total = total * sizes.iterations(loop)
    return total


def elements(sizes: Sizes, buffer: Buffer, around: Collection[str] = ()) -> Floats:
    return sizes.product(sizes.span(dim, around) for dim in buffer.dims)


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
        elif isinstance(s, (StorePartial, Combine)):
            around = [loop.axis for loop in outer]
            taken = [named[n] for n in shared(s)]
            each = sum((4 * elements(sizes, b, around) for b in taken), np.zeros(len(tiles)))
            total += (
                each * repeats(sizes, outer) * (1 if isinstance(s, StorePartial) else plan.parts)
            )
    return total


def shared(s: StorePartial | Combine) -> tuple[str, ...]:
    """The reductions whose partial results a statement stores or loads, four bytes an element."""
    others = (r.new for r in s.repairs) if isinstance(s, Combine) else ()
    return (s.buffer, *others)


def work(plan: Plan, tiles: Ints) -> Floats:
    """Flops of all computes and repairs, padding included (MCFuser eq. 4, times P)."""
    sizes = sizes_of(plan, tiles)
    total = np.zeros(len(tiles))
    for s, outer in statements(plan.placed[1]):
        total += flops(plan, sizes, s, [loop.axis for loop in outer]) * repeats(sizes, outer)
    return total


def flops(plan: Plan, sizes: Sizes, s: SimpleStatement, around: Collection[str]) -> Floats:
    """Flops of one visit of a statement inside loops over these axes, padding included."""
    if isinstance(s, Compute):
        space = sizes.positions(s.operator.related)
        return (calls(s.body) + (s.operator.reduce != "none")) * space
    if not isinstance(s, (Repair, Combine)):
        return np.zeros(len(sizes.one))
    size = elements(sizes, next(b for b in plan.placed[0] if b.name == s.buffer), around)
    if isinstance(s, Repair):
        return calls(s.h) * size
    return plan.parts * (1 + sum(calls(r.h) for r in s.repairs)) * size


def footprint(plan: Plan, tiles: Ints) -> Ints:
    """Bytes of fast memory that a block asks for: the sum of its tiles (MCFuser eq. 1).

    A map is computed in the registers of what it reads, so its tile counts only when kept whole.
    """
    sizes = sizes_of(plan, tiles)
    total = np.zeros(len(tiles))
    maps = {o.out for o in plan.program.chain.operators if o.reduce == "none"}
    for buffer in plan.drawn[0]:
        if buffer.tensor in maps and not any(d.whole for d in buffer.dims):
            continue
        width = BYTES[plan.program.chain.tensor(buffer.tensor).dtype]
        total += width * elements(sizes, buffer)
    return total.astype(np.int64)


def blocks(plan: Plan, tiles: Ints) -> Ints:
    """Blocks of the grid, batch axes and parts included."""
    sizes = sizes_of(plan, tiles)
    total = sizes.one * plan.parts
    grid = {*plan.expression.grid} - plan.dead
    for axis in (*plan.program.batch, *sorted(grid)):
        total = total * sizes.trips(axis)
    return total
