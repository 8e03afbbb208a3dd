"""What one schedule moves and computes inside the bounds of its tensors, by closed forms.

Equation (3) of MCFuser counts whole tiles; these counts leave padding out and report it separately.
The interpreter counts the same by running the schedule, and a test compares the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from mcfuser.chain import BYTES
from mcfuser.expr import Affine, Call, Expr, walk
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Dim,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Store,
    StorePartial,
    plain_index,
    statements,
)

PARTIAL = 4
"""Bytes of an element of a partial result."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Elements loaded and stored inside the bounds, by tensor; elements of padding; elements that
    parts store (`shared`) and that combining loads (`gathered`), by reduction; flops at positions
    inside the extents."""

    loaded: Mapping[str, int]
    stored: Mapping[str, int]
    shared: Mapping[str, int]
    gathered: Mapping[str, int]
    padded: int
    flops: int

    def nbytes(self, schedule: Schedule) -> int:
        """Bytes inside the bounds."""
        both = Counter(self.loaded)
        both.update(self.stored)
        partial = sum(self.shared.values()) + sum(self.gathered.values())
        moved = sum(n * BYTES[schedule.chain.tensor(t).dtype] for t, n in both.items())
        return moved + PARTIAL * partial


def count(schedule: Schedule) -> Traffic:
    """The exact traffic and flops of a schedule over its whole grid."""
    loaded: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    shared: Counter[str] = Counter()
    gathered: Counter[str] = Counter()
    padded = flops = 0
    for s, outer in statements(schedule.body):
        if isinstance(s, Load):
            tensor = s.read.tensor
            inside = _inside(schedule, s.read.indices, schedule.chain.shape(tensor), outer)
            loaded[tensor] += inside
            padded += math.prod(schedule.shape(s.buffer)) * _iterations(schedule, outer) - inside
        elif isinstance(s, Store):
            dims = schedule.buffer(s.buffer).dims
            inside = _held(schedule, s.buffer, outer)
            stored[s.tensor] += inside
            padded += _region(schedule, dims, outer) * _iterations(schedule, outer) - inside
        elif isinstance(s, Compute):
            each = calls(s.body) + (s.operator.reduce != "none")
            flops += each * _positions(schedule, s.operator.related, outer)
        elif isinstance(s, Repair):
            flops += calls(s.h) * _held(schedule, s.buffer, outer)
        elif isinstance(s, StorePartial):
            shared[s.buffer] += _held(schedule, s.buffer, outer)
        elif isinstance(s, Combine):
            for name in (s.buffer, *(r.new for r in s.repairs)):
                gathered[name] += schedule.parts * _held(schedule, name, outer)
            each = 1 + sum(calls(r.h) for r in s.repairs)
            flops += schedule.parts * each * _held(schedule, s.buffer, outer)
        elif not isinstance(s, (Init, SaveOld)):  # these move nothing to or from memory
            assert_never(s)
    return Traffic(dict(loaded), dict(stored), dict(shared), dict(gathered), padded, flops)


def calls(e: Expr) -> int:
    """Operations that one evaluation of an expression takes."""
    return sum(isinstance(node, Call) for node in walk(e))


def _held(schedule: Schedule, name: str, outer: Sequence[Loop]) -> int:
    """Visits of a buffer's positions inside the extents."""
    axes = [plain_index(d.index) for d in schedule.buffer(name).dims]
    return _positions(schedule, axes, outer)


def _iterations(schedule: Schedule, outer: Sequence[Loop]) -> int:
    return _positions(schedule, (), outer)


def _positions(schedule: Schedule, axes: Sequence[str], outer: Sequence[Loop]) -> int:
    """Visits of positions inside the extents: each position once for every iteration of other
    loops."""
    walked = _bound(outer)
    free = [loop for loop in outer if loop.axis not in walked]
    once = math.prod(schedule.chain.size(a) for a in axes if a not in walked)
    once *= _repeats(schedule, [loop for loop in free if loop.axis not in axes])
    inner = [a for a in axes if a in walked]
    return once * sum(
        math.prod(_real(schedule, a, at) for a in inner) for at in _walk(schedule, outer, walked)
    )


def _bound(outer: Sequence[Loop]) -> set[str]:
    """The axes whose iterations must be enumerated: those of loops with bounds, and those that such
    bounds depend on."""
    axes: set[str] = set()
    for loop in outer:
        indices = loop.lo + loop.hi
        axes |= {a for i in indices for a in i.axes} | ({loop.axis} if indices else set())
    return axes & {loop.axis for loop in outer}


def _repeats(schedule: Schedule, free: Sequence[Loop]) -> int:
    """Iterations of loops without bounds. All parts together take each iteration of their axis
    once."""
    serial = {loop.axis for loop in free if loop.kind != "split"}
    return math.prod(
        schedule.parts if loop.kind == "split" else schedule.trips(loop.axis)
        for loop in free
        if loop.kind != "split" or loop.axis not in serial
    )


def _walk(
    schedule: Schedule, outer: Sequence[Loop], walked: Collection[str]
) -> Iterator[dict[str, int]]:
    """Every iteration of the loops over some axes, as the first position along each."""
    here = [loop for loop in outer if loop.axis in walked]
    if not here:
        yield {}
        return

    def go(i: int, at: dict[str, int]) -> Iterator[dict[str, int]]:
        if i == len(here):
            yield at
            return
        step = schedule.tile(here[i].axis)
        step *= schedule.span(here[i].axis) if here[i].kind == "split" else 1
        for iteration in schedule.iterations(here[i], at):
            yield from go(i + 1, at | {here[i].axis: iteration * step})

    yield from go(0, {})


def _real(schedule: Schedule, axis: str, at: Mapping[str, int]) -> int:
    """Positions of an iteration inside the extent."""
    return max(0, min(schedule.tile(axis), schedule.chain.size(axis) - at[axis]))


def _region(schedule: Schedule, dims: Sequence[Dim], outer: Sequence[Loop]) -> int:
    """Elements of a buffer that one iteration of the surrounding loops covers."""
    around = {loop.axis for loop in outer}
    return math.prod(
        schedule.tile(plain_index(d.index))
        if plain_index(d.index) in around
        else schedule.extent(d)
        for d in dims
    )


def _inside(
    schedule: Schedule, indices: Sequence[Affine], shape: Sequence[int], outer: Sequence[Loop]
) -> int:
    """Elements inside the tensor, summed over all iterations of a load."""
    used = {a for i in indices for a in i.axes}
    mixed = {a for i in indices if i.plain is None for a in i.axes}
    seen = Counter(a for i in indices for a in i.axes)
    mixed |= {a for a, times in seen.items() if times > 1}
    walked = _bound(outer) | (mixed & {loop.axis for loop in outer})
    total = 0
    for at in _walk(schedule, outer, walked):
        total += math.prod(
            schedule.chain.size(i.plain)
            if i.plain is not None and i.plain not in mixed | walked
            else _span(schedule, i, at, size)
            for i, size in zip(indices, shape, strict=True)
        )
    free = [loop for loop in outer if loop.axis not in walked | used]
    return total * _repeats(schedule, free)


def _span(schedule: Schedule, index: Affine, at: Mapping[str, int], size: int) -> int:
    """Elements of a tile along one dimension that are inside the tensor."""
    low = high = index.offset
    for a, c in index.terms:
        first = at.get(a, 0)
        last = first + schedule.tile(a) - 1
        low += c * (first if c > 0 else last)
        high += c * (last if c > 0 else first)
    return max(0, min(high, size - 1) - max(low, 0) + 1)
