"""Elements of a product's right operand, wherever its layout has them."""

from __future__ import annotations

from mcfuser.codegen.tensorir.integer import plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Read


def depth_row(w: Writer, o: Operands, at: At) -> str:
    """The row within a panel: the position in the tiles of all depth axes."""
    row = "0"
    for a in o.roles.depth:
        row = plus(times(row, w.schedule.tile(a)), at.get(a, "0"))
    return row


def column(w: Writer, o: Operands, j0: str, v: int) -> str:
    """The position in the tile of lane `j` of a panel's vector `v`."""
    return plus(plus(times(j0, o.width), str(v * w.lowering.lanes)), "j")


def right(w: Writer, o: Operands, at: At, j0: str, v: int) -> str:
    """Lane `j` of a panel's vector `v` at these positions along the depth, as float32, or in the
    type of a packed constant."""
    kind = w.products.right.get(o.right)
    lane = plus(str(v * w.lowering.lanes), "j")
    if kind == "panels":
        lead = "".join(f"{at[a]}, " for a in o.lead if w.schedule.tile(a) > 1)
        return f"{o.right}_panels[{lead}{j0}, {depth_row(w, o, at)}, {lane}]"
    if kind == "packed":
        tensor = w.schedule.buffer(o.right).tensor
        (k,) = o.roles.depth
        first = w.start(o.column)
        panel = plus(f"({first}) // {o.width}" if first != "0" else "0", j0)
        row = plus(w.start(k), at[k])
        size = w.schedule.chain.shape(tensor)[w.products.panels(o.right).depth] * o.width
        where = plus(plus(times(panel, size), times(row, o.width)), lane)
        return f"{tensor}_flat[{where}]"
    return w.value(Read(o.right, o.roles.right.indices), {**at, o.column: column(w, o, j0, v)})
