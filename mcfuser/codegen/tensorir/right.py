"""Elements of a product's right operand, wherever its layout has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mcfuser.chain import BYTES
from mcfuser.codegen.tensorir.integer import flat, plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.scalar import Typed, loaded
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Read
from mcfuser.lowering.tensorir.micro import LINE, WIDE, outgrows_caches

AHEAD = 32
"""Rows of a panel between the one that is multiplied and the one that is fetched meanwhile, some
400 cycles later: memory takes as long. With 8, 16 and 32, a product of 128 x 768 x 768 whose
weights are in the last cache takes 544, 548 and 546 us, and 568 without any (a Xeon with AVX-512,
two cores, 2026-11-27)."""


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
    here = {**at, o.column: column(w, o, j0, v)}
    lane = plus(str(v * w.lowering.lanes), "j")

    def element(r: Read) -> Typed:
        if w.products.right.get(r.tensor) != "packed":
            return w.typed(r, here)
        return loaded(_packed(w, o, r.tensor, at, j0, lane), w.stored(r.tensor))

    return replace(w.scalar(here, {}), read=element).text(w.products.maps[o.right].body)


def fetch(w: Writer, o: Operands, at: At, j0: str, number: str = "0") -> None:
    """Fetches the row of a packed constant's panel that is multiplied AHEAD rows later, where it
    would come late otherwise. It may lie past the constant's end, where nothing is fetched."""
    if fetches(w, o):
        fetch_row(w, o, _packed_row(w, o, o.right, at, j0, number), o.width)


def fetches(w: Writer, o: Operands) -> bool:
    """Whether rows of the right operand are fetched before they are multiplied. The hardware does
    so in time for vectors of 256 bits, which read half as much in a cycle: a product of 49 x 2304 x
    512 takes 1.02 to 1.13 of its time otherwise. Rows of Winograd's matrices lie too far apart for
    it: those of 256 and 512 channels take 0.91 to 0.98 (the same Xeon, told that it has AVX2)."""
    if w.products.right.get(o.right) != "packed":
        return False
    if w.lowering.lanes < WIDE and o.picture is None:
        return False
    tensor, each = w.schedule.buffer(o.right).tensor, BYTES[w.stored(o.right)]
    depth = 1 if o.picture is not None else math.prod(w.schedule.tile(a) for a in o.roles.depth)
    size = w.products.panels(o.right).size(w.schedule.chain.shape(tensor))
    return outgrows_caches(each * depth * o.width, each * size)


def fetch_row(w: Writer, o: Operands, start: str, count: int) -> None:
    """Statements that fetch a row of the packed right operand to the first cache, AHEAD rows of
    `count` elements after the one that begins at `start`."""
    tensor, each = w.schedule.buffer(o.right).tensor, BYTES[w.stored(o.right)]
    how = "T.int32(0), T.int32(3), T.int32(1)"  # to be read, in the first cache, as data
    for place in range(0, count, LINE // each):
        element = f"T.address_of({tensor}_flat[{plus(start, str(AHEAD * count + place))}])"
        w.put(f'T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", {element}, {how}))')


def _packed(
    w: Writer, o: Operands, tile: str, at: At, j0: str, lane: str, number: str = "0"
) -> str:
    """A lane of a constant that is packed (Panels): the right operand's tile, or one that it is
    made of."""
    row = _packed_row(w, o, tile, at, j0, number)
    return f"{w.schedule.buffer(tile).tensor}_flat[{plus(row, lane)}]"


def _packed_row(w: Writer, o: Operands, tile: str, at: At, j0: str, number: str) -> str:
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
