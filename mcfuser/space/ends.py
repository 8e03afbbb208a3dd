"""Masks past the ends of axes: which reductions of a schedule need one, and where it is applied.

A tile may reach past the end of an axis. A reduction over that axis must mask the positions there,
unless its body is the reduction's identity at them already: loaded tiles are zero past the end, and
so is much that is computed from them. Where several reductions would need a mask, and one number in
a buffer that they all read gives each of them its identity (`algebra.ranges`), that buffer is
filled with the number once: scores are filled with the lowest number, after which neither the
maximum nor the sums of the exponentials need a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcfuser.algebra.ranges import ZERO, ValueRange, value
from mcfuser.chain import LOWEST
from mcfuser.expr import Call
from mcfuser.space.past import PastEnd, PastEnds, Placement
from mcfuser.space.program import Program
from mcfuser.space.statement import Buffer, Compute, Fill, Loop, Statement, statements

NUMBERS = (LOWEST,)
"""What a buffer is filled with. Sums alone could share a zero; each has a mask of its own."""


def marked(
    program: Program, buffers: Sequence[Buffer], body: tuple[Statement, ...]
) -> tuple[Statement, ...]:
    """The statements, in which each Compute has the fields `masked`, `masked_factors` and
    `fill`."""
    placed = Placement(program, {b.name: b for b in buffers}, tuple(statements(body)))
    known = PastEnds(placed, {})
    first: dict[str, Fill] = {}
    while (best := _best(known)) is not None:
        fill, known = best
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


def _marked(known: PastEnds, s: Compute, fill: Fill | None) -> Compute:
    over = s.operator.over
    if not over:
        return replace(s, fill=fill) if fill is not None else s
    factors = s.body.args if isinstance(s.body, Call) and s.body.op == "mul" else ()
    ends = tuple(tuple(a for a in over if known.past(x, a) != ZERO) for x in factors)
    masked = tuple(a for a in over if not known.absorbed(s, a))
    return replace(s, masked=masked, masked_factors=ends, fill=fill)


def _best(known: PastEnds) -> tuple[Fill, PastEnds] | None:
    """The fill that spares the most masks, of the latest such buffer, and the ranges that hold with
    it; None where no fill spares two masks."""
    placed, most = known.placed, 1
    best: tuple[Fill, PastEnds] | None = None
    masks = sum(not known.absorbed(s, a) for s in placed.computes.values() for a in s.operator.over)
    for source in reversed(placed.computes) if masks > most else ():
        for number in NUMBERS if source not in known.fills else ():
            spared = _filled(known, source, number, most)
            if spared is not None:
                most, best = spared[0], spared[1:]
    return best


def _filled(
    known: PastEnds, source: str, number: float, most: int
) -> tuple[int, Fill, PastEnds] | None:
    """The number of masks that filling the source spares, with the fill and the ranges that hold
    with it; None where that is at most `most`, where a reduction that reads the source would still
    need a mask, or where the source is computed from a reduction that needs one."""
    placed = known.placed
    if source in placed.repaired or placed.buffers[source].dtype != "float32":
        return None
    reductions = [s for s in placed.below(source) if s.operator.reduce != "none"]
    if len(reductions) <= most:
        return None
    over = reductions[0].operator.over
    pairs = [(s, a) for s in reductions for a in s.operator.over if a in over]
    spared = len({s.buffer for s, a in pairs if not known.absorbed(s, a)})
    if spared <= most or not all(placed.extends(source, a) for a in over):
        return None
    if not _together(placed, source):
        return None
    body, same = placed.computes[source].body, ValueRange(number, number)
    ended = tuple(a for a in over if value(body, PastEnd(known, a, over)) == same)
    fill = Fill(source, over, number, ended)
    filled = PastEnds(placed, {**known.fills, source: fill})
    above = [(s, a) for s in placed.above(source) for a in s.operator.over if a in over]
    if not all(known.absorbed(s, a) for s, a in above):
        return None
    return (spared, fill, filled) if all(filled.absorbed(s, a) for s, a in pairs) else None


def _together(placed: Placement, source: str) -> bool:
    """The computation and all readers of a buffer are in the loops of its first reader, and that is
    no matrix product: a product may be issued after statements that follow it."""
    readers = placed.readers(source)
    here = placed.around[readers[0].buffer]
    places = [placed.around[name] for name in (source, *(s.buffer for s in readers))]
    same = all(outer[: len(here)] == here for outer in places)
    return same and readers[0].operator.product is None
