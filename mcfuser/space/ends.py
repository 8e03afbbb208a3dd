"""Past the ends of axes: what the reductions of a schedule must mask there, and where.

A tile may reach past the end of an axis. A reduction over that axis must not take what stands
there, unless it is the reduction's identity already: what is loaded is zero past the end, and so is
much that is computed from it. Where several reductions would need a mask, and one number at a
buffer that they all read gives each of them its identity (`algebra.ranges`), the buffer is filled
with that number in one place: scores with the lowest number, of which neither the maximum nor the
sums of the exponentials need a mask then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mcfuser.algebra.ranges import ANY, FINITE, ORDINARY, ZERO, Range, value
from mcfuser.chain import LOWEST, Chain, product
from mcfuser.expr import DISCRETE, Affine, Call, Expr, Read, reads
from mcfuser.space.bounds import bounds
from mcfuser.space.program import Program
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Fill,
    Load,
    Loop,
    Repair,
    Statement,
    statements,
)

Around = tuple[Loop, ...]

NUMBERS = (LOWEST,)
"""What a buffer is filled with. Sums alone could share a zero; each has a mask of its own."""


def marked(
    program: Program, buffers: Sequence[Buffer], body: tuple[Statement, ...]
) -> tuple[Statement, ...]:
    """The statements with what each must mask past the ends of the axes that it reduces."""
    placed = _Placed(program, {b.name: b for b in buffers}, tuple(statements(body)))
    known = _Known(placed, {})
    first: dict[str, Fill] = {}
    while (found := _best(known)) is not None:
        fill, known = found
        first[placed.readers(fill.buffer)[0].buffer] = fill

    def go(items: Sequence[Statement]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for s in items:
            if isinstance(s, Loop):
                s = replace(s, body=go(s.body))
            elif isinstance(s, Compute):
                s = _marked(known, s, first.get(s.buffer))
            done.append(s)
        return tuple(done)

    return go(body)


def _marked(known: _Known, s: Compute, fill: Fill | None) -> Compute:
    over = s.operator.over
    if not over:
        return replace(s, fill=fill) if fill is not None else s
    factors = s.body.args if isinstance(s.body, Call) and s.body.op == "mul" else ()
    ends = tuple(tuple(a for a in over if known.past(x, a) != ZERO) for x in factors)
    masked = tuple(a for a in over if not known.absorbed(s, a))
    return replace(s, masked=masked, masked_factors=ends, fill=fill)


# --- what is known of a schedule's buffers


@dataclass(frozen=True)
class _Placed:
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
        """Sums over what parts have stored, which is loaded as zero past the end: a repair of a sum
        leaves zero where it is (algebra.roll)."""
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
        """What reads a buffer, directly or not, as far as results vary along what it does."""
        along = {a for d in self.buffers[source].dims for a in d.index.axes}
        found, names = list[Compute](), {source}
        for s in self.computes.values():
            if self.sources[s.buffer] & names:
                found.append(s)
                if any(self.extends(s.buffer, a) for a in along):
                    names.add(s.buffer)
        return found

    def above(self, source: str) -> list[Compute]:
        """What computes a buffer, and all that it needs."""
        found, names = list[Compute](), {source}
        for s in reversed(self.computes.values()):
            if s.buffer in names:
                found.append(s)
                names |= self.sources[s.buffer]
        return found


def _moves(chain: Chain, r: Read, a: str) -> bool:
    """Elements at different positions of the axis lie in different places."""
    strides = chain.tensor(r.tensor).strides
    factors = [dict(i.terms).get(a, 0) for i in r.indices]
    if strides is not None:
        return sum(c * n for c, n in zip(factors, strides, strict=True)) != 0
    return any(factors) and (min(factors) >= 0 or max(factors) <= 0)


@dataclass(frozen=True)
class _Known:
    """What is known past the ends of axes, where some buffers are filled."""

    placed: _Placed
    fills: Mapping[str, Fill]
    ranges: dict[tuple[str, str], Range] = field(default_factory=dict)
    found: dict[tuple[str, str], bool] = field(default_factory=dict)

    def past(self, e: Expr, a: str) -> Range:
        """The range of an expression past the end of one axis, all others inside."""
        return value(e, _Past(self, a))

    def absorbed(self, s: Compute, a: str) -> bool:
        """A reduction's body is its identity past the end of an axis. A maximum need not be quite
        the lowest number where it is of something ordinary, or where a domain was put into what it
        reads: then all its readers take such a number for nothing (algebra.masks)."""
        key = s.buffer, a
        if key not in self.found:
            body, program = self.past(s.body, a), self.placed.program
            if s.operator.reduce == "sum":
                self.found[key] = body == ZERO
            else:
                nothing = s.buffer in program.ordinary or s.buffer in program.settled
                self.found[key] = body != ANY and body.high <= (-ORDINARY if nothing else LOWEST)
        return self.found[key]

    def buffer(self, name: str, a: str) -> Range:
        """The range of a buffer's elements past the end of an axis."""
        if (name, a) not in self.ranges:
            self.ranges[name, a] = self._buffer(name, a)
        return self.ranges[name, a]

    def _buffer(self, name: str, a: str) -> Range:
        placed, fill = self.placed, self.fills.get(name)
        if fill is not None and a in fill.axes:
            return Range(fill.value, fill.value)
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
        found = self.past(s.body, a)
        if s.operator.reduce == "none":
            low, high = found.low, found.high
            return Range(min(low, 0.0), max(high, 0.0)) if s.domain is not None else found
        return found if found == ZERO else FINITE if found.ordinary else ANY

    def _maximum(self, s: Compute) -> Range:
        """A maximum of positions inside, which started at the lowest number."""
        placed, name = self.placed, s.buffer
        if placed.buffers[name].dtype in DISCRETE:
            return ANY
        above = name in placed.program.ordinary and name not in placed.repaired
        return Range(-ORDINARY if above else LOWEST, math.inf)


@dataclass(frozen=True)
class _Past:
    """Facts past the tile's end along one axis: past the axis' end, and where the next tile
    begins."""

    known: _Known
    axis: str

    def read(self, r: Read) -> Range:
        return self.known.buffer(r.tensor, self.axis)

    def false(self, condition: Expr) -> bool:
        return False


@dataclass(frozen=True)
class _Ended(_Past):
    """Facts past an axis' very end, at all positions inside of the axes that are not reduced."""

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


# --- where one number does for several reductions


def _best(known: _Known) -> tuple[Fill, _Known] | None:
    """The fill that spares the most masks, of the latest buffer, and what is known then; None where
    no fill spares two masks."""
    placed, most = known.placed, 1
    best: tuple[Fill, _Known] | None = None
    masks = sum(not known.absorbed(s, a) for s in placed.computes.values() for a in s.operator.over)
    for source in reversed(placed.computes) if masks > most else ():
        for number in NUMBERS if source not in known.fills else ():
            found = _filled(known, source, number, most)
            if found is not None:
                most, best = found[0], found[1:]
    return best


def _filled(
    known: _Known, source: str, number: float, most: int
) -> tuple[int, Fill, _Known] | None:
    """How many masks the number at the source spares, if that is more than `most`: those of all
    reductions that read it. None where one would be left, or where the source is computed from a
    reduction that keeps its own."""
    placed = known.placed
    reductions = [s for s in placed.below(source) if s.operator.reduce != "none"]
    if len(reductions) <= most:
        return None
    over = reductions[0].operator.over
    pairs = [(s, a) for s in reductions for a in s.operator.over if a in over]
    spared = len({s.buffer for s, a in pairs if not known.absorbed(s, a)})
    if spared <= most or not all(placed.extends(source, a) for a in over):
        return None
    if placed.buffers[source].dtype != "float32" or not _together(placed, source):
        return None
    facts = [_Ended(known, a, over) for a in over]
    body, same = placed.computes[source].body, Range(number, number)
    fill = Fill(source, over, number, tuple(f.axis for f in facts if value(body, f) == same))
    filled = _Known(placed, {**known.fills, source: fill})
    above = [(s, a) for s in placed.above(source) for a in s.operator.over if a in over]
    fits = all(filled.absorbed(s, a) for s, a in pairs)
    return (spared, fill, filled) if fits and all(known.absorbed(*x) for x in above) else None


def _together(placed: _Placed, source: str) -> bool:
    """All that computes or reads a buffer stands in the loops of its first reader, which is no
    product: a product may be issued after what follows it."""
    readers = placed.readers(source)
    here = placed.around[readers[0].buffer]
    places = [placed.around[name] for name in (source, *(s.buffer for s in readers))]
    same = all(outer[: len(here)] == here for outer in places)
    return same and product(readers[0].operator) is None
