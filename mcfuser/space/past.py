"""The values that the buffers of a schedule hold past the ends of axes, as ranges.

Loaded tiles are zero past the end of an axis. A buffer may be filled with a number. A maximum over
positions inside an axis is above the lowest number in every row, or may be that number itself. The
range of anything computed follows by interval arithmetic (`algebra.ranges`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mcfuser.algebra.ranges import ANY, FINITE, ORDINARY, ZERO, ValueRange, value
from mcfuser.chain import LOWEST, Chain
from mcfuser.expr import DISCRETE, Affine, Expr, Read, reads
from mcfuser.space.bounds import bounds
from mcfuser.space.program import Program
from mcfuser.space.statement import Buffer, Combine, Compute, Fill, Load, Loop, Repair, Statement

Around = tuple[Loop, ...]


@dataclass(frozen=True)
class Placement:
    """The statements of a schedule before they are marked, with the loops around each."""

    program: Program
    buffers: Mapping[str, Buffer]
    every: tuple[tuple[Statement, Around], ...]

    @property
    def chain(self) -> Chain:
        return self.program.chain

    @cached_property
    def loads(self) -> dict[str, Load]:
        return {s.buffer: s for s, _ in self.every if isinstance(s, Load)}

    @cached_property
    def computes(self) -> dict[str, Compute]:
        return {s.buffer: s for s, _ in self.every if isinstance(s, Compute)}

    @cached_property
    def around(self) -> dict[str, Around]:
        """The loops around what computes each buffer."""
        return {s.buffer: outer for s, outer in self.every if isinstance(s, Compute)}

    @cached_property
    def repaired(self) -> frozenset[str]:
        return frozenset(s.buffer for s, _ in self.every if isinstance(s, Repair))

    @cached_property
    def combined(self) -> frozenset[str]:
        """The sums that combine the partial results of parts. These are loaded as zero past the
        end, and a repair of a sum leaves zero as it is (algebra.roll)."""
        every = (s for s, _ in self.every if isinstance(s, Combine))
        return frozenset(s.buffer for s in every if s.operator.reduce == "sum")

    def extends(self, name: str, a: str) -> bool:
        """A buffer has different elements along an axis."""
        if name in self.loads:
            return _moves(self.chain, self.loads[name].read, a)
        return any(a in d.index.axes for d in self.buffers[name].dims)

    @cached_property
    def sources(self) -> dict[str, frozenset[str]]:
        """The buffers that each computed one is computed from."""
        every = self.computes.items()
        return {name: frozenset(r.tensor for r in reads(s.body)) for name, s in every}

    def readers(self, name: str) -> list[Compute]:
        return [s for b, s in self.computes.items() if name in self.sources[b]]

    def below(self, source: str) -> list[Compute]:
        """The computations that read a buffer, directly or through results that vary along one of
        its axes."""
        along = {a for d in self.buffers[source].dims for a in d.index.axes}
        readers, names = list[Compute](), {source}
        for s in self.computes.values():
            if self.sources[s.buffer] & names:
                readers.append(s)
                if any(self.extends(s.buffer, a) for a in along):
                    names.add(s.buffer)
        return readers

    def above(self, source: str) -> list[Compute]:
        """The computation of a buffer, and those of all buffers that it needs, last first."""
        needed, names = list[Compute](), {source}
        for s in reversed(self.computes.values()):
            if s.buffer in names:
                needed.append(s)
                names |= self.sources[s.buffer]
        return needed


def _moves(chain: Chain, r: Read, a: str) -> bool:
    """Different positions of the axis are different elements of the tensor."""
    strides = chain.tensor(r.tensor).strides
    factors = [dict(i.terms).get(a, 0) for i in r.indices]
    if strides is not None:
        along = [(c, n) for c, n in zip(factors, strides, strict=True) if c]
        moved = sum(c * n for c, n in along if isinstance(n, int))
        return moved != 0 or any(not isinstance(n, int) for _, n in along)
    return any(factors) and (min(factors) >= 0 or max(factors) <= 0)


@dataclass(frozen=True)
class PastEnds:
    """Ranges of values past the ends of axes, given the buffers that are filled."""

    placed: Placement
    fills: Mapping[str, Fill]
    ranges: dict[tuple[str, str], ValueRange] = field(default_factory=dict)
    known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def past(self, e: Expr, a: str) -> ValueRange:
        """The range of an expression past the end of one axis, all others inside."""
        return value(e, PastOne(self, a))

    def absorbed(self, s: Compute, a: str) -> bool:
        """Whether a reduction absorbs the positions past the end of an axis: its body is its
        identity there, so that no mask is needed.

        The body of a maximum may also be slightly above the lowest number: where the maximum is
        never that low itself, or where its source was masked (algebra.masks).
        """
        key = s.buffer, a
        if key not in self.known:
            body, program = self.past(s.body, a), self.placed.program
            if s.operator.reduce == "sum":
                self.known[key] = body == ZERO
            else:
                nothing = s.buffer in program.ordinary or s.buffer in program.unmasked
                self.known[key] = body != ANY and body.high <= (-ORDINARY if nothing else LOWEST)
        return self.known[key]

    def buffer(self, name: str, a: str) -> ValueRange:
        """The range of a buffer's elements past the end of an axis."""
        if (name, a) not in self.ranges:
            self.ranges[name, a] = self._buffer(name, a)
        return self.ranges[name, a]

    def _buffer(self, name: str, a: str) -> ValueRange:
        placed, fill = self.placed, self.fills.get(name)
        if fill is not None and a in fill.axes:
            return ValueRange(fill.value, fill.value)
        if name in placed.loads:
            return ZERO if placed.extends(name, a) else FINITE
        s = placed.computes.get(name)
        if s is None:
            return ANY
        if not placed.extends(name, a):
            return self._maximum(s) if s.operator.reduce == "max" else ANY
        if name in placed.combined:
            return ZERO
        if s.operator.reduce == "max" or name in placed.repaired:
            return ANY
        result = self.past(s.body, a)
        if s.operator.reduce == "none":
            low, high = result.low, result.high
            return ValueRange(min(low, 0.0), max(high, 0.0)) if s.domain is not None else result
        return result if result == ZERO else FINITE if result.ordinary else ANY

    def _maximum(self, s: Compute) -> ValueRange:
        """A maximum of positions inside, which started at the lowest number."""
        placed, name = self.placed, s.buffer
        if placed.buffers[name].dtype in DISCRETE:
            return ANY
        above = name in placed.program.ordinary and name not in placed.repaired
        return ValueRange(-ORDINARY if above else LOWEST, math.inf)


@dataclass(frozen=True)
class PastOne:
    """Facts at positions past a tile's end along one axis: past the end of the axis, or in the next
    tile."""

    known: PastEnds
    axis: str

    def read(self, r: Read) -> ValueRange:
        return self.known.buffer(r.tensor, self.axis)

    def false(self, condition: Expr) -> bool:
        return False


@dataclass(frozen=True)
class PastEnd(PastOne):
    """Facts at positions past the very end of an axis, for any positions inside the other axes."""

    over: tuple[str, ...] = ()

    def false(self, condition: Expr) -> bool:
        """A bound of the axis ends before the axis does, in every row."""
        rows = (i for i in bounds(condition, self.axis)[1] if not {*i.axes} & {*self.over})
        return any(_inside(self.known.placed.chain, i, self.axis) for i in rows)


def _inside(chain: Chain, index: Affine, a: str) -> bool:
    """No position of the chain's axes puts the index past the end of an axis."""
    if not all(isinstance(chain.extent(x), int) for x in (a, *index.axes)):
        return False
    most = index.offset + sum(max(c, 0) * (chain.size(x) - 1) for x, c in index.terms)
    return most < chain.size(a)
