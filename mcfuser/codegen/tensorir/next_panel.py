"""What a micro-kernel fetches of the panel that comes after its own.

All micro-tiles that share a panel fetch equal shares of the next one, a line of the cache every
few rows, so that it is there when the last of them is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcfuser.chain import BYTES
from mcfuser.codegen.tensorir.integer import flat, plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.lowering.tensorir.micro import FLOAT, LINE, holds_next

UNROLLED = 8
"""Rows between two fetches at most. LLVM writes the loop over them out, which more of them would
make too long."""
SLACK = 1.1
"""How much more than a share fetches would cover at an even pace, where that is no whole number of
rows: with less, some lines are not fetched."""

Walks = list[tuple[int, str]]
"""Loops around the micro-kernel, as their trips and the position of each."""


@dataclass(frozen=True, slots=True)
class PanelShare:
    """The lines of the next panel, which is a `distance` in elements behind the one at hand, that
    one micro-tile fetches: the one with this `number`, `lines` at once, `every` so many rows, as
    often as there are `steps`. A line has `line` elements."""

    distance: str
    number: str
    every: int
    lines: int
    steps: int
    line: int

    def first(self, start: str, step: str) -> str:
        """The element whose line is the first that is fetched at a row, where the panel at hand has
        its first element in the tile at `start`, and the row is the step's first."""
        place = times(plus(times(self.number, self.steps), step), self.lines * self.line)
        return plus(plus(start, self.distance), place)


def next_panel(
    w: Writer, o: Operands, at: At, panel: tuple[str, str], trips: int, rows: int
) -> PanelShare | None:
    """The share of a micro-tile of a product with a packed constant, which `panel` gives as the
    number of its panel and its own among the rows, at these positions of the axes around them. The
    innermost loop over the depth has so many `trips`, and all of them together so many `rows`.

    There is none where nothing shares the panel, or the rows of a tile are no neighbours in it, or
    the private cache cannot hold both.
    """
    j0, i0 = panel
    depth = o.roles.depth
    if o.row is None or any(w.schedule.tile(a) < w.schedule.chain.size(a) for a in depth[1:]):
        return None
    found = _following(w, o, at, j0)
    if found is None:
        return None
    distance, walks = found
    walks = [*walks, (-(-w.schedule.tile(o.row) // o.micro_rows), i0)]
    sharers = math.prod(n for n, _ in walks)
    if sharers < 2:
        return None
    number = flat([n for n, _ in walks], [position for _, position in walks])
    line = LINE // BYTES[w.stored(o.right)]
    mine = -(-panel_rows(w, o) * positions(o) * o.width // (line * sharers))
    if mine > rows:
        return PanelShare(distance, number, 1, -(-mine // rows), rows, line)
    most = min(UNROLLED, int(SLACK * rows / mine))
    every = max(n for n in range(1, max(most, 1) + 1) if trips % n == 0)
    return PanelShare(distance, number, every, 1, rows // every, line)


def _following(w: Writer, o: Operands, at: At, j0: str) -> tuple[str, Walks] | None:
    """How many elements behind this panel's part in the tile the one that follows it begins, and
    the loops that walk this one again before; None where the private cache does not hold both.

    The next tile of columns follows where its loop is outside others that walk this one again.
    Else the next panel of the tile does, or all of them where axes around walk them as a group:
    then those of the next tile of the depth, then those of the next tile of columns.
    """
    tile, tensor = w.schedule.tile, w.schedule.buffer(o.right).tensor
    panels, part = -(-tile(o.column) // o.width), panel_rows(w, o) * positions(o) * o.width
    whole = w.products.panels(o.right).panel(w.schedule.chain.shape(tensor))
    around = [(tile(a), at[a]) for a in o.outer if a not in o.lead and tile(a) > 1]
    rows = math.prod([*(n for n, _ in around), tile(o.row) if o.row else 1])
    left = FLOAT // positions(o) * rows * part // o.width

    def held(elements: int) -> bool:
        return holds_next(elements * BYTES[w.stored(o.right)], left)

    inside = _inside(w, o)
    if inside and held(panels * whole):
        return str(panels * whole), [*inside, *around]
    group = panels if around else 1
    if not held(group * part):
        return None
    outermost, loops = o.roles.depth[0], w.loops
    if part == whole or o.column in loops[loops.index(outermost) :]:
        return str(group * whole), around
    back, onward = part - (panels - group) * whole, part + (group - 1) * whole
    last = f"T.if_then_else({outermost}_t < {w.trips(outermost)} - 1, {back}, {onward})"
    if group == panels:
        return (last if back != onward else str(onward)), around
    return f"T.if_then_else({j0} < {panels - 1}, {whole}, {last})", around


def _inside(w: Writer, o: Operands) -> Walks:
    """The loops over tiles that walk a tile of columns again: those inside the loop over these."""
    if o.column not in w.loops:
        return []
    after = w.loops[w.loops.index(o.column) + 1 :]
    again = [a for a in after if a not in o.roles.depth and a not in o.lead]
    trips = {a: w.trips(a) for a in again}
    return [(int(n), f"{a}_t") for a, n in trips.items() if n.isdigit() and n != "1"]


def panel_rows(w: Writer, o: Operands) -> int:
    """Rows of a panel in a tile of the depth."""
    *others, last = (w.schedule.tile(a) for a in o.roles.depth)
    return math.prod(others) * -(-last // positions(o))


def positions(o: Operands) -> int:
    """Positions along the depth that a row of a panel has: as many as are multiplied at once."""
    return max(o.dot, 1)
