"""Packed constants that are fetched to a core's caches before their turn.

A micro-kernel reads a panel row by row, and again for every micro-tile of rows. Each row is fetched
to the first cache shortly before it is multiplied. Meanwhile the panel that comes next is fetched
to the core's private cache (next_panel): memory is read at an even pace, and not as fast as it
gives whenever a panel is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcfuser.chain import BYTES
from mcfuser.codegen.tensorir.integer import divided, flat, plus, times
from mcfuser.codegen.tensorir.next_panel import PanelShare, next_panel, panel_rows, positions
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.lowering.tensorir.micro import LINE, WIDE, rows_come_late

AHEAD = 32
"""Rows of a panel between the one that is multiplied and the one that is fetched meanwhile, some
400 cycles later: memory takes as long. With 8, 16 and 32, a product of 128 x 768 x 768 whose
weights are in the last cache takes 544, 548 and 546 us, and 568 without any (a Xeon with AVX-512,
two cores, 2026-11-27)."""
FIRST_CACHE, PRIVATE_CACHE = 3, 2
"""LLVM's numbers of a core's caches."""


@contextmanager
def fetching(
    w: Writer, o: Operands, at: At, panel: tuple[str, str], loop: tuple[str, str],
    row: Callable[[At, str], str],
) -> Iterator[tuple[At, str]]:  # fmt: skip
    """Loops over the depth of a tile, with what is fetched meanwhile: the positions along all axes
    but the last, and that of the innermost `loop`, which has a name and some trips.

    They are the loops of a `panel` of the tile at hand and a micro-tile of rows, at some positions
    of the axes around both. `row` gives the first element of a packed panel's row at such
    positions.
    """
    *others, last = o.roles.depth
    name, trips = loop
    share = None
    if packed(w, o) and trips.isdigit():
        share = next_panel(w, o, at, panel, int(trips), panel_rows(w, o))
    every = share.every if share is not None else 1
    steps = loop if every == 1 else (f"{name.removesuffix('_i')}_o", str(int(trips) // every))
    with w.over(others) as outer, w.nest([steps]) as (step,):
        if share is not None:
            tiles = [w.schedule.tile(a) for a in others]
            before = times(flat(tiles, list(outer.values())), w.schedule.tile(last) // positions(o))
            number = plus(before, times(step, every))
            start = row(dict.fromkeys(others, "0"), "0")
            fetch_share(w, o, share, start, divided(number, every))
        with w.nest([(name, str(every))]) as (i,):
            position = plus(times(step, every), i)
            if packed(w, o):
                fetch_row(w, o, row(outer, position))
            yield outer, position


def fetch_row(w: Writer, o: Operands, start: str) -> None:
    """Fetches the row of a packed constant that is multiplied AHEAD rows later than the one that
    begins at `start`, where it would come late otherwise. It may lie past the constant's end, where
    nothing is fetched."""
    if _comes_late(w, o):
        count = positions(o) * o.width
        for place in range(0, count, LINE // BYTES[w.stored(o.right)]):
            _put(w, o, plus(start, str(AHEAD * count + place)), FIRST_CACHE)


def fetch_share(w: Writer, o: Operands, share: PanelShare, start: str, step: str) -> None:
    """Fetches the lines of the next panel that a micro-tile fetches at this step of its own panel,
    whose first element in the tile is at `start`."""
    with w.nest([("f", str(share.lines))]) as (f,):
        _put(w, o, plus(share.first(start, step), times(f, share.line)), PRIVATE_CACHE)


def packed(w: Writer, o: Operands) -> bool:
    """Whether a product's right operand is a constant that is packed when compiling."""
    return w.products.right.get(o.right) == "packed"


def _comes_late(w: Writer, o: Operands) -> bool:
    """Whether rows of the right operand are fetched before they are multiplied. The hardware does
    so in time for vectors of 256 bits, which read half as much in a cycle: a product of 49 x 2304 x
    512 takes 1.02 to 1.13 of its time otherwise. Rows of Winograd's matrices lie too far apart for
    it: those of 256 and 512 channels take 0.91 to 0.98 (the same Xeon, told that it has AVX2)."""
    if w.lowering.lanes < WIDE and o.picture is None:
        return False
    tensor, each = w.schedule.buffer(o.right).tensor, BYTES[w.stored(o.right)]
    depth = 1 if o.picture is not None else math.prod(w.schedule.tile(a) for a in o.roles.depth)
    size = w.products.panels(o.right).size(w.schedule.chain.shape(tensor))
    walks = 1 if o.row is None else -(-w.schedule.tile(o.row) // o.micro_rows)
    return rows_come_late(each * depth * o.width, each * size, walks)


def _put(w: Writer, o: Operands, element: str, cache: int) -> None:
    """A statement that fetches the line of an element, to be read, as data."""
    address = f"T.address_of({w.schedule.buffer(o.right).tensor}_flat[{element}])"
    how = f"T.int32(0), T.int32({cache}), T.int32(1)"
    w.put(f'T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", {address}, {how}))')
