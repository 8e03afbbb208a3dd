"""Schedules: one candidate as an explicit program of statements, all that codegen ever sees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import assert_never

from mcfuser.chain import BYTES, Chain, fixed
from mcfuser.expr import Affine, index_text, text
from mcfuser.space.expression import Expression
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Dim,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    SimpleStatement,
    Statement,
    Store,
    StorePartial,
    loops,
)


@dataclass(frozen=True)
class Schedule:
    """A candidate after placement: the chain it computes, its loops and tiles, buffers and
    statements.

    `parts` is the number of parts of the split loop, 1 if there is none; the last parts may be
    empty.
    """

    chain: Chain
    expression: Expression
    tiles: tuple[tuple[str, int], ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]
    parts: int = 1

    @cached_property
    def _tiles(self) -> dict[str, int]:
        return dict(self.tiles)

    @cached_property
    def _buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.buffers}

    def tile(self, axis: str) -> int:
        """Positions of an axis that one iteration covers: 1 for a batch axis."""
        return self._tiles.get(axis, 1)

    def trips(self, axis: str) -> int:
        return -(-self.chain.size(axis) // self.tile(axis))

    @cached_property
    def split(self) -> Loop | None:
        """The loop whose iterations are parts."""
        return next((loop for loop in loops(self.body) if loop.kind == "split"), None)

    def span(self, axis: str) -> int:
        """Iterations of the serial loop over a split axis that each part runs; the last parts may
        run fewer."""
        return -(-self.trips(axis) // self.parts)

    def iterations(self, loop: Loop, at: Mapping[str, int]) -> range:
        """The iterations that a loop runs, where `at` holds the first position of the current
        iteration of each surrounding loop; for a serial loop over the split axis, also the first
        position of the part."""
        if loop.kind == "split":
            return range(self.parts)
        tile, first, last = self.tile(loop.axis), 0, self.trips(loop.axis)
        if loop.axis in at:
            first = at[loop.axis] // tile
            last = min(last, first + self.span(loop.axis))
        for low in loop.lo:
            first = max(first, self.reach(low, at)[0] // tile)
        for high in loop.hi:
            last = min(last, self.reach(high, at)[1] // tile + 1)
        return range(first, max(first, last))

    def reach(self, index: Affine, at: Mapping[str, int]) -> tuple[int, int]:
        """The least and the greatest value of an index over the current tile of the axes in `at`,
        and over all positions of the others."""
        low = high = index.offset
        for a, c in index.terms:
            first = at.get(a, 0)
            last = first + self.tile(a) - 1 if a in at else self.chain.size(a) - 1
            low += c * (first if c > 0 else last)
            high += c * (last if c > 0 else first)
        return low, high

    def ragged(self, axis: str) -> bool:
        """The last tile reaches past the extent."""
        return self.trips(axis) * self.tile(axis) != self.chain.extent(axis)

    def at(self, extents: Mapping[str, int]) -> Schedule:
        """The same program where run-time extents have these values; all of them must be given.

        Raises ChainError where one is missing or outside its bounds.
        """
        return replace(self, chain=fixed(self.chain, extents))

    def buffer(self, name: str) -> Buffer:
        return self._buffers[name]

    def extent(self, dim: Dim) -> int:
        """Elements that a tile holds along one of its dimensions."""
        span = 1
        for axis, c in dim.index.terms:
            positions = self.trips(axis) * self.tile(axis) if dim.whole else self.tile(axis)
            span += abs(c) * (positions - 1)
        return span

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.extent(d) for d in self._buffers[name].dims)

    def bytes_of(self, name: str) -> int:
        return math.prod(self.shape(name)) * BYTES[self._buffers[name].dtype]

    @property
    def grid(self) -> tuple[tuple[str, int], ...]:
        """The grid loops, outermost first, with their trips."""
        return tuple(
            (loop.axis, self.trips(loop.axis)) for loop in loops(self.body) if loop.kind == "grid"
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self, self.body, 0))


def _lines(schedule: Schedule, body: Sequence[Statement], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for s in body:
        if isinstance(s, Loop):
            yield f"{pad}{s.kind} {s.axis} in {_range(schedule, s)}:"
            yield from _lines(schedule, s.body, depth + 1)
        else:
            yield pad + _line(s)


def _range(schedule: Schedule, s: Loop) -> str:
    if s.kind == "split":
        return f"{schedule.parts} parts of {schedule.span(s.axis)} x {schedule.tile(s.axis)}"
    bounds = [f"{s.axis} >= {index_text(i)}" for i in s.lo]
    bounds += [f"{s.axis} <= {index_text(i)}" for i in s.hi]
    where = f" where {', '.join(bounds)}" if bounds else ""
    split = schedule.split is not None and schedule.split.axis == s.axis
    trips = schedule.span(s.axis) if split else schedule.trips(s.axis)
    return f"{trips} x {schedule.tile(s.axis)}{where}"


def _line(s: SimpleStatement) -> str:
    if isinstance(s, Load):
        return f"{s.buffer} = load {text(s.read)}"
    if isinstance(s, Init):
        return f"{s.buffer} = {s.value!r}"
    if isinstance(s, Compute):
        kind = f"{s.operator.reduce}[{', '.join(s.operator.over)}] " if s.operator.over else ""
        domain = f" where {text(s.domain)}" if s.domain is not None else ""
        return f"{s.buffer} {'<-' if kind else '='} {kind}{text(s.body)}{domain}"
    if isinstance(s, SaveOld):
        return f"{s.old} = {s.buffer}"
    if isinstance(s, Repair):
        return f"{s.buffer} = repair {text(s.h)}"
    if isinstance(s, StorePartial):
        return f"store partial {s.buffer}"
    if isinstance(s, Combine):
        words = "".join(f" after {text(r.h)}" for r in s.repairs)
        return f"{s.buffer} = {s.operator.reduce} over parts of {s.buffer}{words}"
    if isinstance(s, Store):
        return f"store {s.tensor} = {s.buffer}"
    assert_never(s)
