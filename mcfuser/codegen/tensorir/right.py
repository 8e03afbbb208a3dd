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
        return _packed(w, o, at, j0, lane)
    return w.value(Read(o.right, o.roles.right.indices), {**at, o.column: column(w, o, j0, v)})


def _packed(w: Writer, o: Operands, at: At, j0: str, lane: str) -> str:
    """A lane of a constant that is packed: [lead, columns/width, depth, width] (Panels)."""
    tensor = w.schedule.buffer(o.right).tensor
    shape, packed = w.schedule.chain.shape(tensor), w.products.panels(o.right)
    indices = o.roles.right.indices
    first = w.start(o.column)
    panel = plus(f"({first}) // {o.width}" if first != "0" else "0", j0)
    lead = "0"
    for d in packed.lead(len(shape)):
        lead = plus(times(lead, shape[d]), w.global_position(indices[d], at))
    row = "0"
    for d in packed.depth:
        row = plus(times(row, shape[d]), w.global_position(indices[d], at))
    panel = plus(times(lead, packed.panels(shape)), panel)
    where = plus(times(panel, packed.panel(shape)), times(row, o.width))
    return f"{tensor}_flat[{plus(where, lane)}]"
