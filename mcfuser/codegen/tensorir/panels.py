"""Panels in scratch: a loaded right operand as micro-kernels read it.

They are [columns/width, depth, width], zero past the columns that there are.
"""

from __future__ import annotations

from mcfuser.chain import contiguous_axes
from mcfuser.codegen.tensorir.dots import pack_dots
from mcfuser.codegen.tensorir.integer import covered, minus, plus, rest, smaller, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import depth_row
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.space.statement import Load


def fill_panels(w: Writer, s: Load) -> None:
    """Fills the panels of a right operand with a loaded tile."""
    o = w.products.user(s.buffer)
    if o.dot:
        pack_dots(w, s)
        return
    lead = [a for a in o.lead if w.schedule.tile(a) > 1]
    count, whole = w.count(o.column), str(o.width)
    loops = [*((f"{a}_i", w.count(a)) for a in lead), ("p", covered(count, o.width))]
    with w.nest(loops) as names:
        *leading, p = names
        at = dict(zip(lead, leading, strict=True))
        beside = {*contiguous_axes(w.schedule.chain, s.read)}
        along = next((a for a in o.roles.depth if a in beside), None)
        held = whole
        if rest(count, o.width) != "0":
            one = w.schedule.tile(o.column) <= o.width
            held = count if one else smaller(whole, minus(count, times(p, o.width)))
        if along is None:
            _by_rows(w, s, o, at, p, held)
        else:
            _by_columns(w, s, o, at, p, held, along)
        if held != whole:
            _fill_rest(w, s, o, at, p, held)


def _by_rows(w: Writer, s: Load, o: Operands, at: At, p: str, held: str) -> None:
    first = times(p, o.width)
    with w.over(o.roles.depth) as depth, w.block(f"for j in range({held}):"):
        here = {**at, **depth, o.column: plus(first, "j")}
        w.put(f"{_place(w, s, o, here, p, 'j')} = {_element(w, s, here)}")


def _by_columns(w: Writer, s: Load, o: Operands, at: At, p: str, held: str, along: str) -> None:
    """Column by column, whose elements lie side by side in memory `along` an axis of the depth. K
    of 12 heads, each of 512 x 64 elements in rows of 9,216 bytes, takes 0.14 ms so, and 0.56 row by
    row (a Xeon with AVX-512, two threads, 2026-11-27)."""
    others = [a for a in o.roles.depth if a != along]
    with w.block(f"for j in range({held}):"), w.over(others) as depth:

        def write(last: At, lane: str) -> None:
            here = {**at, **depth, **last, o.column: plus(times(p, o.width), "j")}
            w.put(f"{_place(w, s, o, here, p, 'j')} = {_element(w, s, here)}")

        w.lanes(along, write)


def _fill_rest(w: Writer, s: Load, o: Operands, at: At, p: str, held: str) -> None:
    """Zeros past the columns that a panel holds."""
    left = minus(str(o.width), held)
    with w.over(o.roles.depth) as depth, w.block(f"for j in range({left}):"):
        place = _place(w, s, o, {**at, **depth}, p, plus(held, "j"))
        w.put(f"{place} = T.float32(0)")


def _element(w: Writer, s: Load, at: At) -> str:
    """An element of the right operand, as panels have it."""
    value = w.address(s.read.tensor, s.read.indices, at, s.buffer)
    dtype = w.schedule.chain.tensor(s.read.tensor).dtype
    return value if dtype == "float32" else f'T.Cast("float32", {value})'


def _place(w: Writer, s: Load, o: Operands, at: At, p: str, lane: str) -> str:
    """The element of a panel in this lane."""
    before = "".join(f"{at[a]}, " for a in o.lead if w.schedule.tile(a) > 1)
    return f"{s.buffer}_panels[{before}{p}, {depth_row(w, o, at)}, {lane}]"
