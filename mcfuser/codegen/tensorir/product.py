"""Products: a register micro-tile of accumulators, walked over a tile.

Rows are broadcast from the left operand, columns are vectors of the right one. Micro-tiles are
whole: a row past the extent repeats the last one, a column past it is zero or never read, and what
is computed there lands in the tile's padding.
"""

from __future__ import annotations

from mcfuser.codegen.tensorir.dots import multiply_dots
from mcfuser.codegen.tensorir.epilogue import finish
from mcfuser.codegen.tensorir.fetch import fetching
from mcfuser.codegen.tensorir.integer import covered, plus, times
from mcfuser.codegen.tensorir.made import made_weights, multiply_made
from mcfuser.codegen.tensorir.matrix import multiply
from mcfuser.codegen.tensorir.operands import Operands, masked_axes
from mcfuser.codegen.tensorir.right import column, packed_row, right, within_rows
from mcfuser.codegen.tensorir.winograd import convolve
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Call, Const, Read, read
from mcfuser.space.statement import Compute


def product(w: Writer, s: Compute) -> None:
    """Accumulates a tile of a product, a register micro-tile at a time, or on the matrix unit."""
    o, lanes = w.products.operands[s.buffer], w.lowering.lanes
    vectors = range(o.width // lanes)
    if s.domain is not None:
        _mask(w, s, o)
    if o.matrix:
        multiply(w, s, o)
        return
    if o.picture is not None:
        convolve(w, s, o, o.picture)
        return
    if o.dot:
        multiply_dots(w, s, o)
        return
    panels = covered(w.count(o.column), o.width)
    rows = covered(w.count(o.row), o.micro_rows) if o.row is not None else "1"
    loops = [*((f"{a}_i", w.count(a)) for a in o.outer), ("j0", panels), ("i0", rows)]
    with w.nest(loops) as names:
        *outer, j0, i0 = names
        at = dict(zip(o.outer, outer, strict=True))
        if o.row is not None:
            at[o.row] = plus(times(i0, o.micro_rows), "i")
        ending = w.endings.get(s.buffer)
        places = [_place(w, s, o, at, j0, v) for v in vectors] if ending is None else []
        for v in vectors:
            with w.micro(o.micro_rows):
                start = "T.float32(0)" if s.buffer in w.zeroed else places[v]
                w.put(f"acc{v}[i, j] = {start}")
        if (made := made_weights(w, o)) is not None:
            multiply_made(w, o, made, at, j0, lambda here: _left(w, s, o, here))
        else:
            at |= _accumulated(w, s, o, at, (j0, i0))
        if ending is not None:
            finish(w, s.buffer, at, j0, lambda v: f"acc{v}[i, j]")
            return
        for v in vectors:
            with w.micro(o.micro_rows):
                w.put(f"{places[v]} = acc{v}[i, j]")


def _accumulated(w: Writer, s: Compute, o: Operands, at: At, panel: tuple[str, str]) -> At:
    """Adds the products of a `panel` and a micro-tile of rows to the accumulators; the positions
    along the depth."""
    *_, last = o.roles.depth

    def row(others: At, position: str) -> str:
        return packed_row(w, o, o.right, {**at, **others, last: position}, panel[0])

    loop = (f"{last}_i", w.count(last))
    with fetching(w, o, at, panel, loop, row) as (others, position):
        depth = {**others, last: position}
        with w.block(f"for i in T.unroll({o.micro_rows}):"):
            left = _left(w, s, o, {**at, **depth})
            for v in range(o.width // w.lowering.lanes):
                with w.vector("j", w.lowering.lanes):
                    element = right(w, o, {**at, **depth}, panel[0], v)
                    w.put(f"acc{v}[i, j] = acc{v}[i, j] + {left} * {element}")
    return depth


def _place(w: Writer, s: Compute, o: Operands, at: At, j0: str, v: int) -> str:
    """The element of the product's own tile that accumulator v holds at [i, j]."""
    here = {**at, o.column: column(w, o, j0, v)}
    return w.element(read(s.buffer, *s.operator.axes), here)


def _left(w: Writer, s: Compute, o: Operands, at: At) -> str:
    indices = o.roles.left.indices
    if s.domain is not None:
        return f"{s.buffer}_masked[{', '.join(at.get(i.plain or '', '0') for i in indices)}]"
    if w.schedule.buffer(o.left).tensor in w.schedule.chain.inputs:
        at = within_rows(w, o, at)
    return w.value(Read(o.left, indices), at)


def _mask(w: Writer, s: Compute, o: Operands) -> None:
    """A copy of the left operand with zeros outside the domain."""
    assert s.domain is not None
    source = Read(o.left, o.roles.left.indices)
    names = masked_axes(source)
    masked = Call("select", (s.domain, source, Const(0.0)))
    with w.over(names[:-1]) as at:

        def write(last: At, lane: str) -> None:
            here = {**at, **last}
            where = ", ".join(here[a] for a in names)
            w.put(f"{s.buffer}_masked[{where}] = {w.scalar(here, {}).text(masked)}")

        w.lanes(names[-1], write)
