"""Products of small whole numbers, two neighbours along the depth at once (lowering.paired).

The left operand is copied to rows of 16-bit numbers, [rows, depth]. The right one is in panels of
pairs, [columns/width, depth/2, width, 2], packed when compiling or filled in scratch. Sums are
32-bit numbers, exact within a tile of the depth; then they are added to the product's own tile, of
float32.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from mcfuser.codegen.tensorir.integer import covered, flat, plus, rest, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import column, panel_start
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Read, read
from mcfuser.lowering.tensorir.knobs import LANE
from mcfuser.lowering.tensorir.paired import INSTRUCTIONS
from mcfuser.space.statement import Compute, Load


def paired_left_shape(w: Writer, o: Operands) -> list[int]:
    """The extents of the copy of a left operand: whole micro-tiles, and whole pairs."""
    rows = 1 if o.row is None else -(-w.schedule.tile(o.row) // o.micro_rows) * o.micro_rows
    return [*(n for a in o.left_lead if (n := w.schedule.tile(a)) > 1), rows, 2 * _pairs(w, o)]


def _pairs(w: Writer, o: Operands) -> int:
    """Pairs along the depth of a tile."""
    return -(-math.prod(w.schedule.tile(a) for a in o.roles.depth) // 2)


def _pair(w: Writer, o: Operands, outer: At, last: str) -> str:
    """The number of a pair in a tile: its position along the last axis of the depth, in pairs, and
    those along the others."""
    *others, inner = o.roles.depth
    row = flat([w.schedule.tile(a) for a in others], [outer[a] for a in others])
    return plus(times(row, w.schedule.tile(inner) // 2) if others else "0", last)


# --- operands


def copy_left(w: Writer, name: str) -> None:
    """Copies the left operand of a product's tile to 16-bit numbers; the last pair is filled."""
    o = w.products.operands[name]
    *others, last = o.roles.depth
    lead = [a for a in o.left_lead if w.schedule.tile(a) > 1]
    with w.over([*lead, *([o.row] if o.row is not None else [])]) as at:
        if (odd := rest(w.count(last), 2)) != "0":
            with nullcontext() if odd == "1" else w.block(f"if {odd} == 1:"):
                w.put(f"{_left(w, name, o, at, w.count(last))} = T.int16(0)")
        with w.over(others) as outer:
            row = times("2", _pair(w, o, outer, "0"))

            def write(here: At, lane: str) -> None:
                value = w.typed(Read(o.left, o.roles.left.indices), {**at, **outer, **here})
                whole = f'T.Cast("int16", {value.to("int32").text})'
                w.put(f"{_left(w, name, o, at, plus(row, here[last]))} = {whole}")

            w.lanes(last, write)


def _left(w: Writer, name: str, o: Operands, at: At, position: str) -> str:
    return f"{name}_left[{_left_place(w, o, at, position)}]"


def _left_place(w: Writer, o: Operands, at: At, position: str) -> str:
    lead = [at[a] for a in o.left_lead if w.schedule.tile(a) > 1]
    row = at[o.row] if o.row is not None else "0"
    return flat(paired_left_shape(w, o), [*lead, row, position])


def pack_pairs(w: Writer, s: Load) -> None:
    """Fills the panels of a right operand that is no packed constant, zero past the extents."""
    o = w.products.user(s.buffer)
    lead = [a for a in o.lead if w.schedule.tile(a) > 1]
    panels = str(-(-w.schedule.tile(o.column) // o.width))
    *others, last = o.roles.depth
    with w.nest([*((f"{a}_i", w.count(a)) for a in lead), ("p", panels)]) as names:
        *leading, p = names
        at = dict(zip(lead, leading, strict=True))
        where = plus(times(p, o.width), "j")
        with w.over(others) as outer, w.nest([("e", covered(w.count(last), 2))]) as (e,):
            before = ", ".join([*(at[a] for a in lead), p, _pair(w, o, outer, e)])
            with w.block(f"for j, h in T.grid({o.width}, 2):"):
                here = {**at, **outer, last: plus(times(e, 2), "h"), o.column: where}
                value = w.address(s.read.tensor, s.read.indices, here, s.buffer)
                value = f'T.Cast("int16", {value})'
                conditions = []
                if w.count(o.column) != str(int(panels) * o.width):
                    conditions.append(f"{where} < {w.count(o.column)}")
                if rest(w.count(last), 2) != "0":
                    conditions.append(f"{here[last]} < {w.count(last)}")
                for c in conditions:
                    value = f"T.if_then_else({c}, {value}, T.int16(0))"
                w.put(f"{s.buffer}_panels[{before}, j * 2 + h] = {value}")


def _right(w: Writer, o: Operands, at: At, j0: str, v: int, last: str) -> str:
    """The numbers of a panel's vector `v` at a pair along the depth."""
    lanes = w.lowering.lanes
    if w.products.right[o.right] == "packed":
        *others, inner = o.roles.depth
        where = panel_start(w, o, o.right, at, j0)
        sizes = [w.schedule.chain.size(a) for a in others]
        row = flat(sizes, [plus(w.start(a), at.get(a, "0")) for a in others])
        row = times(row, w.schedule.chain.size(inner) // 2) if others else "0"
        start = times(f"{inner}_t", w.schedule.tile(inner) // 2) if inner in w.loops else "0"
        pair = plus(plus(row, start), last)
        first = plus(plus(where, times(pair, 2 * o.width)), str(2 * lanes * v))
        name = w.schedule.buffer(o.right).tensor
        stored = w.stored(o.right)
        text = f"{name}_flat[T.Ramp({first}, 1, {2 * lanes})]"
        return text if stored == "int16" else f'T.Cast("int16x{2 * lanes}", {text})'
    lead = "".join(f"{at[a]}, " for a in o.lead if w.schedule.tile(a) > 1)
    pair = _pair(w, o, at, last)
    return f"{o.right}_panels[{lead}{j0}, {pair}, T.Ramp({2 * lanes * v}, 1, {2 * lanes})]"


# --- products


def multiply_pairs(w: Writer, s: Compute, o: Operands) -> None:
    """Accumulates a tile of a product, a register micro-tile at a time."""
    leader, lanes = w.products.splits(s.buffer), w.lowering.lanes
    if not o.loaded:
        copy_left(w, s.buffer)
    vectors, (*others, last) = range(o.width // lanes), o.roles.depth
    panels = covered(w.count(o.column), o.width)
    rows = covered(w.count(o.row), o.micro_rows) if o.row is not None else "1"
    zero = f"T.Broadcast(T.int32(0), {lanes})"
    with w.nest(
        [*((f"{a}_i", w.count(a)) for a in o.outer), ("j0", panels), ("i0", rows)]
    ) as names:
        *outer, j0, i0 = names
        at = dict(zip(o.outer, outer, strict=True))
        if o.row is not None:
            at[o.row] = plus(times(i0, o.micro_rows), "i")
        for v in vectors:
            with w.block(f"for i in T.unroll({o.micro_rows}):"):
                w.put(f"sum{v}[{_lanes(lanes)}] = {zero}")
        with w.over(others) as depth, w.nest([("e", covered(w.count(last), 2))]) as (e,):
            at |= depth
            with w.block(f"for i in T.unroll({o.micro_rows}):"):
                left = _left_pair(w, leader, o, at, e)
                for v in vectors:
                    right = _right(w, o, at, j0, v, e)
                    sums = f"sum{v}[{_lanes(lanes)}]"
                    w.put(f"{sums} = {sums} + {_multiplied(lanes, left, right)}")
        for v in vectors:
            with w.block(f"for i in T.unroll({o.micro_rows}):"), w.vector("j", lanes):
                here = {**at, o.column: column(w, o, j0, v)}
                place = w.element(read(s.buffer, *s.operator.axes), here)
                total = f'T.Cast("float32", sum{v}[i, j])'
                before = "" if s.buffer in w.zeroed else f"{place} + "
                w.put(f"{place} = {before}{total}")


def _lanes(lanes: int) -> str:
    return f"i, T.Ramp(0, 1, {lanes})"


def _left_pair(w: Writer, leader: str, o: Operands, at: At, e: str) -> str:
    """A pair of the left operand in every lane."""
    lanes = w.lowering.lanes
    place = _left_place(w, o, at, times("2", _pair(w, o, at, e)))
    pair = f'T.reinterpret("int32", {leader}_left[T.Ramp({place}, 1, 2)])'
    return f'T.reinterpret("int16x{2 * lanes}", T.Broadcast({pair}, {lanes}))'


def _multiplied(lanes: int, left: str, right: str) -> str:
    name = INSTRUCTIONS[lanes * LANE]
    return f'T.call_llvm_pure_intrin("int32x{lanes}", "{name}", {left}, {right})'
