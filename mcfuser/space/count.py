"""What one schedule moves and computes inside the bounds of its tensors, by closed forms.

Equation (3) counts whole tiles; this leaves their padding out and reports it apart. The
interpreter counts the same by running, and a test holds the two equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mcfuser.chain import BYTES
from mcfuser.expr import Affine, Call, Expr, walk
from mcfuser.space.place import plain_index
from mcfuser.space.schedule import (
    Compute,
    Dim,
    Load,
    Loop,
    Repair,
    Schedule,
    Store,
    statements,
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Elements loaded and stored by tensor, inside the bounds; padded elements beside them; flops
    at positions inside the extents."""

    loaded: Mapping[str, int]
    stored: Mapping[str, int]
    padded: int
    flops: int

    def nbytes(self, schedule: Schedule) -> int:
        """Bytes inside the bounds."""
        both = Counter(self.loaded)
        both.update(self.stored)
        return sum(n * BYTES[schedule.chain.tensor(t).dtype] for t, n in both.items())


def count(schedule: Schedule) -> Traffic:
    """The exact traffic and flops of a schedule over its whole grid."""
    loaded: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    padded = flops = 0
    for s, outer in statements(schedule.body):
        if isinstance(s, Load):
            tensor = s.read.tensor
            inside = _inside(schedule, s.read.indices, schedule.chain.shape(tensor), outer)
            loaded[tensor] += inside
            padded += math.prod(schedule.shape(s.buffer)) * _turns(schedule, outer) - inside
        elif isinstance(s, Store):
            dims = schedule.buffer(s.buffer).dims
            inside = _positions(schedule, [plain_index(d.index) for d in dims], outer)
            stored[s.tensor] += inside
            padded += _region(schedule, dims, outer) * _turns(schedule, outer) - inside
        elif isinstance(s, Compute):
            each = calls(s.body) + (s.operator.reduce != "none")
            flops += each * _positions(schedule, s.operator.related, outer)
        elif isinstance(s, Repair):
            dims = schedule.buffer(s.buffer).dims
            flops += calls(s.h) * _positions(schedule, [plain_index(d.index) for d in dims], outer)
    return Traffic(dict(loaded), dict(stored), padded, flops)


def calls(e: Expr) -> int:
    """Operations that one evaluation of an expression takes."""
    return sum(isinstance(node, Call) for node in walk(e))


def _turns(schedule: Schedule, outer: Sequence[Loop]) -> int:
    return math.prod(schedule.trips(loop.axis) for loop in outer)


def _positions(schedule: Schedule, axes: Sequence[str], outer: Sequence[Loop]) -> int:
    """Visits of positions inside the extents: each position once for every turn of other loops."""
    once = math.prod(schedule.chain.size(a) for a in axes)
    return once * math.prod(schedule.trips(loop.axis) for loop in outer if loop.axis not in axes)


def _region(schedule: Schedule, dims: Sequence[Dim], outer: Sequence[Loop]) -> int:
    """Elements of a tile that its loops at hand stand at."""
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
    """Elements of a tensor that all turns of a load find inside it."""
    loops = [loop.axis for loop in outer]
    used = {a for i in indices for a in i.axes}
    mixed = {a for i in indices if i.plain is None for a in i.axes}
    seen = Counter(a for i in indices for a in i.axes)
    mixed |= {a for a, times in seen.items() if times > 1}
    moving = [a for a in loops if a in mixed]
    total = 0
    for trips in product(*(range(schedule.trips(a)) for a in moving)):
        at = dict(zip(moving, trips, strict=True))
        total += math.prod(
            schedule.chain.size(i.plain)
            if i.plain is not None and i.plain not in mixed
            else _span(schedule, i, at, size)
            for i, size in zip(indices, shape, strict=True)
        )
    return total * math.prod(schedule.trips(a) for a in loops if a not in used)


def _span(schedule: Schedule, index: Affine, at: Mapping[str, int], size: int) -> int:
    """How much of a tile's reach along one dimension lies inside the tensor."""
    low = high = index.offset
    for a, c in index.terms:
        first = at.get(a, 0) * schedule.tile(a)
        last = first + schedule.tile(a) - 1
        low += c * (first if c > 0 else last)
        high += c * (last if c > 0 else first)
    return max(0, min(high, size - 1) - max(low, 0) + 1)
