"""Elements of a product's right operand, wherever its layout has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcfuser.codegen.tensorir.integer import flat, plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.scalar import Scalar, Typed, loaded
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Expr, Read


def depth_row(w: Writer, o: Operands, at: At) -> str:
    """The row within a panel: the position in the tiles of all depth axes."""
    depth = o.roles.depth
    return flat([w.schedule.tile(a) for a in depth], [at.get(a, "0") for a in depth])


def within_rows(w: Writer, o: Operands, at: At) -> At:
    """The positions, of the last row where they are past the rows that there are."""
    count = "0" if o.row is None else w.count(o.row)
    if o.row is None or (count.isdigit() and int(count) % o.micro_rows == 0):
        return at
    return {**at, o.row: f"T.min({at[o.row]}, {count} - 1)"}


def column(w: Writer, o: Operands, j0: str, v: int) -> str:
    """The position in the tile of lane `j` of a panel's vector `v`."""
    return plus(plus(times(j0, o.width), str(v * w.lowering.lanes)), "j")


def right(w: Writer, o: Operands, at: At, j0: str, v: int, number: str = "0") -> str:
    """Lane `j` of a panel's vector `v` at these positions along the depth, as float32, or in the
    type of a packed constant; of one that Winograd's algorithm takes, of the matrix with this
    `number`."""
    kind = w.products.right.get(o.right)
    lane = plus(str(v * w.lowering.lanes), "j")
    if kind == "panels":
        lead = "".join(f"{at[a]}, " for a in o.lead if w.schedule.tile(a) > 1)
        return f"{o.right}_panels[{lead}{j0}, {depth_row(w, o, at)}, {lane}]"
    if kind == "packed":
        return _packed(w, o, o.right, at, j0, lane, number)
    if o.right in w.products.maps:
        return _unpacked(w, o, at, j0, v)
    return w.value(Read(o.right, o.roles.right.indices), {**at, o.column: column(w, o, j0, v)})


def _unpacked(w: Writer, o: Operands, at: At, j0: str, v: int) -> str:
    """What a map makes of lane `j` of the constants that it reads."""
    return made_lane(w, o, at, j0, v, {}).text(w.products.maps[o.right].body)


def made_lane(w: Writer, o: Operands, at: At, j0: str, v: int, known: Mapping[Expr, str]) -> Scalar:
    """What writes expressions of lane `j` of the constants of which weights are made, some parts of
    which are `known`."""
    here = {**at, o.column: column(w, o, j0, v)}
    lane = plus(str(v * w.lowering.lanes), "j")

    def element(r: Read) -> Typed:
        if w.products.right.get(r.tensor) != "packed":
            return w.typed(r, here)
        return loaded(_packed(w, o, r.tensor, at, j0, lane), w.stored(r.tensor))

    return replace(w.scalar(here, known), read=element)


def _packed(
    w: Writer, o: Operands, tile: str, at: At, j0: str, lane: str, number: str = "0"
) -> str:
    """A lane of a constant that is packed (Panels): the right operand's tile, or one that it is
    made of."""
    row = packed_row(w, o, tile, at, j0, number)
    return f"{w.schedule.buffer(tile).tensor}_flat[{plus(row, lane)}]"


def packed_row(w: Writer, o: Operands, tile: str, at: At, j0: str, number: str = "0") -> str:
    """The first element of a row of such a constant's panel."""
    shape = w.schedule.chain.shape(w.schedule.buffer(tile).tensor)
    packed = w.products.panels(tile)
    row = plus(times(number, packed.rows(shape)), _position(w, tile, packed.depth, at))
    return plus(panel_start(w, o, tile, at, j0), times(row, o.width))


def panel_start(w: Writer, o: Operands, tile: str, at: At, j0: str) -> str:
    """The first element of a panel of a packed constant: the panel `j0` of the tile at hand."""
    tensor = w.schedule.buffer(tile).tensor
    shape, packed = w.schedule.chain.shape(tensor), w.products.panels(tile)
    first, lead = w.start(o.column), packed.lead(len(shape))
    panel = plus(f"({first}) // {o.width}" if first != "0" else "0", j0)
    panel = plus(times(_position(w, tile, lead, at), packed.panels(shape)), panel)
    return times(panel, packed.panel(shape))


def _position(w: Writer, tile: str, dimensions: Sequence[int], at: At) -> str:
    """The position along some dimensions of the constant behind a tile, as of one."""
    read, shape = w.products.read(tile), w.schedule.chain.shape(w.schedule.buffer(tile).tensor)
    where = [w.global_position(read.indices[d], at) for d in dimensions]
    return flat([shape[d] for d in dimensions], where)
