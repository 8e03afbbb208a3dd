"""The iterations that a loop runs, as text: `Schedule.iterations` for run-time extents."""

from __future__ import annotations

from mcfuser.codegen.tensorir.integer import covered, divided, larger, minus, plus, smaller, times
from mcfuser.codegen.tensorir.writer import Writer
from mcfuser.expr import Affine
from mcfuser.space.statement import Loop


def iterations(w: Writer, loop: Loop) -> str:
    """The arguments of a serial loop's `range`, inside the loops of `w`."""
    tile, first, last = w.schedule.tile(loop.axis), "0", w.trips(loop.axis)
    if loop.axis == w.parted:
        span = covered(last, w.schedule.parts)
        first = times("part", span)
        last = smaller(last, plus(first, span))
    for low in loop.lo:
        first = larger(first, divided(_reach(w, low, least=True), tile))
    for high in loop.hi:
        last = smaller(last, plus(divided(_reach(w, high, least=False), tile), "1"))
    if loop.axis != w.parted and not loop.lo and not loop.hi:
        return last
    return f"{first}, {larger(first, last)}"


def _reach(w: Writer, index: Affine, least: bool) -> str:
    """The least or the greatest value of an index over the current tiles of its axes."""
    total = str(index.offset)
    for a, c in index.terms:
        position = w.start(a) if a in w.loops else "0"
        if (c > 0) != least:
            iteration = str(w.schedule.tile(a) - 1)
            position = plus(position, iteration) if a in w.loops else minus(w.size(a), "1")
        total = plus(total, times(position, c))
    return total
