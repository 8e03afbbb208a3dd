"""Past the ends of axes: what the reductions of a schedule must mask there, and where.

A tile may reach past the end of an axis. A reduction over that axis must not take what stands
there, unless it is the reduction's identity already: what is loaded is zero past the end, and so is
much that is computed from it. Where several reductions would need a mask, and one number at a
buffer that they all read gives each of them its identity (`algebra.ranges`), the buffer is filled
with that number in one place: scores with the lowest number, of which neither the maximum nor the
sums of the exponentials need a mask then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    fills: dict[str, Fill] = {}
    first: dict[Compute, Fill] = {}
    while (found := _best(placed, fills)) is not None:
        reader, fill = found
        fills[fill.buffer] = first[reader] = fill

    def go(items: Sequence[Statement]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for s in items:
            if isinstance(s, Loop):
                s = replace(s, body=go(s.body))
            elif isinstance(s, Compute):
                s = _marked(placed, fills, s, first.get(s))
            done.append(s)
        return tuple(done)

    return go(body)


def _marked(placed: _Placed, fills: Mapping[str, Fill], s: Compute, fill: Fill | None) -> Compute:
    over = s.operator.over
    args = s.body.args if isinstance(s.body, Call) else ()
    zero = {a: [value(x, _Past(placed, a, fills)) == ZERO for x in args] for a in over}
    return replace(
        s,
        masked=tuple(a for a in over if not _absorbed(placed, fills, s, a)),
        masked_args=tuple(tuple(a for a in over if not zero[a][i]) for i in range(len(args))),
        fill=fill,
    )


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

    def readers(self, name: str) -> list[Compute]:
        return [s for s in self.computes.values() if any(r.tensor == name for r in reads(s.body))]


def _moves(chain: Chain, r: Read, a: str) -> bool:
    """Elements at different positions of the axis lie in different places."""
    strides = chain.tensor(r.tensor).strides
    factors = [dict(i.terms).get(a, 0) for i in r.indices]
    if strides is not None:
        return sum(c * n for c, n in zip(factors, strides, strict=True)) != 0
    return any(factors) and (min(factors) >= 0 or max(factors) <= 0)


@dataclass(frozen=True)
class _Past:
    """Ranges at positions past the tile's end along one axis: past the axis' end, and where the
    next tile begins. Other axes are inside."""

    placed: _Placed
    axis: str
    fills: Mapping[str, Fill]

    def read(self, r: Read) -> Range:
        placed, name = self.placed, r.tensor
        if name in self.fills and self.axis in self.fills[name].axes:
            return Range(self.fills[name].value, self.fills[name].value)
        if name in placed.loads:
            return ZERO if placed.extends(name, self.axis) else FINITE
        if not placed.extends(name, self.axis):
            return self._unvaried(name)
        if name in placed.combined:
            return ZERO
        s = placed.computes.get(name)
        if s is None or s.operator.reduce == "max" or name in placed.repaired:
            return ANY
        found = value(s.body, self)
        if s.operator.reduce == "none" and s.domain is not None:
            return Range(min(found.low, 0.0), max(found.high, 0.0))
        if s.operator.reduce == "none" or found == ZERO:
            return found
        return FINITE if found.ordinary else ANY

    def _unvaried(self, name: str) -> Range:
        """What was computed from positions inside alone. A maximum starts at the lowest number."""
        placed = self.placed
        s = placed.computes.get(name)
        if s is None or s.operator.reduce != "max" or placed.buffers[name].dtype in DISCRETE:
            return ANY
        above = name in placed.program.ordinary and name not in placed.repaired
        return Range(-ORDINARY if above else LOWEST, float("inf"))

    def false(self, condition: Expr) -> bool:
        return False


@dataclass(frozen=True)
class _Ended(_Past):
    """Ranges past an axis' very end, for all positions inside of the axes that are not reduced."""

    over: tuple[str, ...] = ()

    def false(self, condition: Expr) -> bool:
        """A bound of the axis ends before the axis does, in every row."""
        rows = (i for i in bounds(condition, self.axis)[1] if not {*i.axes} & {*self.over})
        return any(_inside(self.placed.chain, i, self.axis) for i in rows)


def _inside(chain: Chain, index: Affine, a: str) -> bool:
    """No position of the chain's axes puts the index past the end of an axis."""
    if not all(isinstance(chain.extent(x), int) for x in (a, *index.axes)):
        return False
    most = index.offset + sum(max(c, 0) * (chain.size(x) - 1) for x, c in index.terms)
    return most < chain.size(a)


# --- where one number does for several reductions


def _absorbed(placed: _Placed, fills: Mapping[str, Fill], s: Compute, a: str) -> bool:
    """A reduction's body is its identity past the end of an axis. A maximum need not be quite the
    lowest number where it is of something ordinary, or where a domain was put into what it reads:
    then all its readers take such a number for nothing (algebra.masks)."""
    found = value(s.body, _Past(placed, a, fills))
    if s.operator.reduce == "sum":
        return found == ZERO
    nothing = s.buffer in placed.program.ordinary or s.buffer in placed.program.settled
    return found != ANY and found.high <= (-ORDINARY if nothing else LOWEST)


def _best(placed: _Placed, fills: Mapping[str, Fill]) -> tuple[Compute, Fill] | None:
    """The fill that spares the most masks, of the latest buffer, with the buffer's first reader;
    None where no fill spares two masks."""
    best: tuple[int, Compute, Fill] | None = None
    for source in reversed(placed.computes):
        if source in fills or placed.buffers[source].dtype != "float32":
            continue
        for number in NUMBERS:
            found = _fill(placed, fills, source, number)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    return best[1:] if best is not None else None


def _fill(
    placed: _Placed, fills: Mapping[str, Fill], source: str, number: float
) -> tuple[int, Compute, Fill] | None:
    """How many masks the number at the source spares: those of all reductions that read it. None
    where one would be left, or where the source is computed from a reduction that keeps its own."""
    readers = placed.readers(source)
    reductions = [s for s in _below(placed, source) if s.operator.reduce != "none"]
    if not reductions or product(readers[0].operator) is not None:
        return None  # a product may be issued after what follows it
    over = tuple(a for a in reductions[0].operator.over if placed.extends(source, a))
    if over != reductions[0].operator.over:
        return None
    here = placed.around[readers[0].buffer]
    places = [placed.around[name] for name in (source, *(s.buffer for s in readers))]
    if any(outer[: len(here)] != here for outer in places):
        return None  # it is computed or read where the loops at hand are not
    ended = tuple(
        a for a in over
        if value(placed.computes[source].body, _Ended(placed, a, fills, over))
        == Range(number, number)
    )  # fmt: skip
    fill = Fill(source, over, number, ended)
    filled = {**fills, source: fill}
    pairs = [(s, a) for s in reductions for a in s.operator.over if a in over]
    spared = {s.buffer for s, a in pairs if not _absorbed(placed, fills, s, a)}
    if len(spared) < 2 or not all(_absorbed(placed, filled, s, a) for s, a in pairs):
        return None
    above = [(s, a) for s in _above(placed, source) for a in s.operator.over if a in over]
    if not all(_absorbed(placed, fills, s, a) for s, a in above):
        return None
    return len(spared), readers[0], fill


def _below(placed: _Placed, source: str) -> list[Compute]:
    """What reads a buffer, directly or not, as far as results vary along what it does."""
    along = {a for d in placed.buffers[source].dims for a in d.index.axes}
    found, names = list[Compute](), {source}
    for s in placed.computes.values():
        if any(r.tensor in names for r in reads(s.body)):
            found.append(s)
            if any(placed.extends(s.buffer, a) for a in along):
                names.add(s.buffer)
    return found


def _above(placed: _Placed, source: str) -> list[Compute]:
    """What computes a buffer, and all that it needs."""
    found, names = list[Compute](), {source}
    for s in reversed(placed.computes.values()):
        if s.buffer in names:
            found.append(s)
            names |= {r.tensor for r in reads(s.body)}
    return found
