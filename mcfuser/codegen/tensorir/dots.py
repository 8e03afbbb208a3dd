"""Products of small whole numbers, two or four neighbours along the depth at once (lowering.dots).

The left operand is read where it lies as bytes, or copied to rows of small integers, [rows, depth].
The right one is in panels, [columns/width, depth/dot, width, dot], packed when compiling or filled
in scratch. Sums are 32-bit numbers, exact within a tile of the depth; then they are added to the
product's own tile, of float32.
"""

from __future__ import annotations

import math

from mcfuser.codegen.tensorir.epilogue import finish
from mcfuser.codegen.tensorir.fetch import fetching
from mcfuser.codegen.tensorir.integer import covered, flat, minus, plus, rest, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import (
    column,
    panel_start,
    within_rows,
)
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Const, Expr, Read, read, uncast
from mcfuser.lowering.tensorir.dots import INSTRUCTIONS, PAIR, STORED, LeftBytes
from mcfuser.lowering.tensorir.knobs import LANE
from mcfuser.space.statement import Compute, Load

BROADCAST = 0x01010101
"""Times a byte, that byte four times."""


def dots_left_shape(w: Writer, o: Operands) -> list[int]:
    """The extents of the copy of a left operand: whole micro-tiles, and whole dot products."""
    rows = 1 if o.row is None else -(-w.schedule.tile(o.row) // o.micro_rows) * o.micro_rows
    depth = math.prod(w.schedule.tile(a) for a in o.roles.depth)
    lead = [n for a in o.left_lead if (n := w.schedule.tile(a)) > 1]
    return [*lead, rows, -(-depth // o.dot) * o.dot]


def _dot(w: Writer, o: Operands, outer: At, last: str) -> str:
    """The number of a dot product in a tile: along the last axis of the depth, and the others."""
    *others, inner = o.roles.depth
    row = flat([w.schedule.tile(a) for a in others], [outer[a] for a in others])
    return plus(times(row, w.schedule.tile(inner) // o.dot) if others else "0", last)


# --- operands


def copy_left(w: Writer, name: str) -> None:
    """Copies the left operand of a product's tile to small integers, the last dot product filled
    with zeros."""
    o = w.products.operands[name]
    assert o.numbers is not None
    *others, last = o.roles.depth
    lead = [a for a in o.left_lead if w.schedule.tile(a) > 1]
    dtype, least = STORED[o.dot][0], o.numbers.least
    body: Expr = o.numbers.numbers
    with w.over([*lead, *([o.row] if o.row is not None else [])]) as at:
        _fill_last(w, name, o, at)
        with w.over(others) as outer:
            row = times(_dot(w, o, outer, "0"), o.dot)
            known = w.invariant(body, last, {**at, **outer})

            def write(here: At, lane: str) -> None:
                value = w.scalar({**at, **outer, **here}, known).typed(body).to("int32").text
                value = f"({value} - {least})" if least else value
                place = _left(w, name, o, at, plus(row, here[last]))
                w.put(f'{place} = T.Cast("{dtype}", {value})')

            w.lanes(last, write)


def _fill_last(w: Writer, name: str, o: Operands, at: At) -> None:
    """Zeros behind a row of a left operand whose depth is no multiple of a dot product's length."""
    last, zero = o.roles.depth[-1], f"T.{STORED[o.dot][0]}(0)"
    count = w.count(last)
    if (odd := rest(count, o.dot)) == "0":
        return
    if odd.isdigit():
        for i in range(o.dot - int(odd)):
            w.put(f"{_left(w, name, o, at, plus(count, str(i)))} = {zero}")
        return
    with w.block(f"for z in range({minus(times(covered(count, o.dot), o.dot), count)}):"):
        w.put(f"{_left(w, name, o, at, plus(count, 'z'))} = {zero}")


def _left(w: Writer, name: str, o: Operands, at: At, position: str) -> str:
    return f"{name}_left[{_left_place(w, o, at, position)}]"


def _left_place(w: Writer, o: Operands, at: At, position: str) -> str:
    lead = [at[a] for a in o.left_lead if w.schedule.tile(a) > 1]
    row = at[o.row] if o.row is not None else "0"
    return flat(dots_left_shape(w, o), [*lead, row, position])


def pack_dots(w: Writer, s: Load) -> None:
    """Fills the panels of a right operand that is no packed constant, zero past the extents."""
    o = w.products.user(s.buffer)
    lead = [a for a in o.lead if w.schedule.tile(a) > 1]
    panels = str(-(-w.schedule.tile(o.column) // o.width))
    (*others, last), dtype = o.roles.depth, STORED[o.dot][1]
    with w.nest([*((f"{a}_i", w.count(a)) for a in lead), ("p", panels)]) as names:
        *leading, p = names
        at = dict(zip(lead, leading, strict=True))
        where = plus(times(p, o.width), "j")
        with w.over(others) as outer, w.nest([("e", covered(w.count(last), o.dot))]) as (e,):
            before = ", ".join([*(at[a] for a in lead), p, _dot(w, o, outer, e)])
            with w.block(f"for j, h in T.grid({o.width}, {o.dot}):"):
                here = {**at, **outer, last: plus(times(e, o.dot), "h"), o.column: where}
                value = w.address(s.read.tensor, s.read.indices, here, s.buffer)
                value = f'T.Cast("{dtype}", {value})'
                conditions = []
                if w.count(o.column) != str(int(panels) * o.width):
                    conditions.append(f"{where} < {w.count(o.column)}")
                if rest(w.count(last), o.dot) != "0":
                    conditions.append(f"{here[last]} < {w.count(last)}")
                for c in conditions:
                    value = f"T.if_then_else({c}, {value}, T.{dtype}(0))"
                w.put(f"{s.buffer}_panels[{before}, j * {o.dot} + h] = {value}")


def _right(w: Writer, o: Operands, at: At, j0: str, v: int, last: str) -> str:
    """The numbers of a panel's vector `v` at a dot product along the depth."""
    many, dtype = w.lowering.lanes * o.dot, STORED[o.dot][1]
    if w.products.right[o.right] == "packed":
        first = plus(_row(w, o, at, j0, last), str(many * v))
        name = w.schedule.buffer(o.right).tensor
        text = f"{name}_flat[T.Ramp({first}, 1, {many})]"
        return text if w.stored(o.right) == dtype else f'T.Cast("{dtype}x{many}", {text})'
    lead = "".join(f"{at[a]}, " for a in o.lead if w.schedule.tile(a) > 1)
    number = _dot(w, o, at, last)
    return f"{o.right}_panels[{lead}{j0}, {number}, T.Ramp({many * v}, 1, {many})]"


def _row(w: Writer, o: Operands, at: At, j0: str, last: str) -> str:
    """The first element of a packed panel's numbers at a dot product along the depth."""
    *others, inner = o.roles.depth
    sizes = [w.schedule.chain.size(a) for a in others]
    row = flat(sizes, [plus(w.start(a), at.get(a, "0")) for a in others])
    row = times(row, w.schedule.chain.size(inner) // o.dot) if others else "0"
    start = times(f"{inner}_t", w.schedule.tile(inner) // o.dot) if inner in w.loops else "0"
    number = plus(plus(row, start), last)
    return plus(panel_start(w, o, o.right, at, j0), times(number, o.dot * o.width))


# --- products


def multiply_dots(w: Writer, s: Compute, o: Operands) -> None:
    """Accumulates a tile of a product, a register micro-tile at a time."""
    assert o.numbers is not None
    leader, lanes = w.products.splits(s.buffer), w.lowering.lanes
    if o.copied and not o.loaded:
        copy_left(w, s.buffer)
    vectors = range(o.width // lanes)
    panels = covered(w.count(o.column), o.width)
    rows = covered(w.count(o.row), o.micro_rows) if o.row is not None else "1"
    zero = _zero(w, s.buffer, o.numbers)
    with w.nest(
        [*((f"{a}_i", w.count(a)) for a in o.outer), ("j0", panels), ("i0", rows)]
    ) as names:
        *outer, j0, i0 = names
        at = dict(zip(o.outer, outer, strict=True))
        if o.row is not None:
            at[o.row] = plus(times(i0, o.micro_rows), "i")
        for v in vectors:
            _clear(w, o, v, bool(zero))

        def row(others: At, e: str) -> str:
            return _row(w, o, {**at, **others}, j0, e)

        loop = ("e", covered(w.count(o.roles.depth[-1]), o.dot))
        with fetching(w, o, at, (j0, i0), loop, row) as (depth, e):
            at |= depth
            for v in vectors if zero else ():
                right = _right(w, o, at, j0, v, e)
                w.put(
                    _added(f"zero{v}[0, {_all(lanes)}]", o.dot, lanes, _many(o, lanes, zero), right)
                )
            with w.block(f"for i in T.unroll({o.micro_rows}):"):
                left = _many(o, lanes, _left_dot(w, leader, o, at, e))
                for v in vectors:
                    right = _right(w, o, at, j0, v, e)
                    w.put(_added(f"sum{v}[i, {_all(lanes)}]", o.dot, lanes, left, right))

        def total(v: int) -> str:
            less = f" - zero{v}[0, j]" if zero else ""
            return f'T.Cast("float32", sum{v}[i, j]{less})'

        if s.buffer in w.endings:
            finish(w, s.buffer, at, j0, total)
            return
        for v in vectors:
            with w.block(f"for i in T.unroll({o.micro_rows}):"), w.vector("j", lanes):
                here = {**at, o.column: column(w, o, j0, v)}
                place = w.element(read(s.buffer, *s.operator.axes), here)
                before = "" if s.buffer in w.zeroed else f"{place} + "
                w.put(f"{place} = {before}{total(v)}")


def _zero(w: Writer, name: str, numbers: LeftBytes) -> str:
    """What bytes of the left operand have too much, four times in 32 bits; nothing if nothing."""
    if numbers.exact:
        return ""
    zero: Expr = Const(0.0) if numbers.zero is None else numbers.zero
    value = w.scalar({}, {}).typed(zero).to("int32").text
    byte = f'T.Cast("uint32", {value} - {numbers.least})'
    four = f'T.reinterpret("int32", {byte} * T.uint32({BROADCAST}))'
    w.put(f"{name}_zero: T.let[T.int32] = {four}")
    return f"{name}_zero"


def _clear(w: Writer, o: Operands, v: int, zero: bool) -> None:
    """Sets the sums of a column of vectors to 0."""
    nothing = f"T.Broadcast(T.int32(0), {w.lowering.lanes})"
    with w.block(f"for i in T.unroll({o.micro_rows}):"):
        w.put(f"sum{v}[i, {_all(w.lowering.lanes)}] = {nothing}")
    if zero:
        w.put(f"zero{v}[0, {_all(w.lowering.lanes)}] = {nothing}")


def _all(lanes: int) -> str:
    return f"T.Ramp(0, 1, {lanes})"


def _left_dot(w: Writer, leader: str, o: Operands, at: At, e: str) -> str:
    """A dot product's numbers of the left operand, together 32 bits."""
    *_, last = o.roles.depth
    if o.ready:
        assert o.numbers is not None
        r = uncast(o.numbers.numbers)
        assert isinstance(r, Read)
        here = {**within_rows(w, o, at), last: times(e, o.dot)}
        tensor = w.schedule.buffer(r.tensor).tensor
        memory, place = w.memory(tensor, r.tensor), w.number(tensor, r.indices, here, r.tensor)
    else:
        memory = f"{leader}_left"
        place = _left_place(w, o, at, times(_dot(w, o, at, e), o.dot))
    return f'T.reinterpret("int32", {memory}[T.Ramp({place}, 1, {o.dot})])'


def _many(o: Operands, lanes: int, number: str) -> str:
    """32 bits in every lane, as the type of the left operand."""
    dtype = "int16" if o.dot == PAIR else "int8"
    return f'T.reinterpret("{dtype}x{o.dot * lanes}", T.Broadcast({number}, {lanes}))'


def _added(sums: str, dot: int, lanes: int, left: str, right: str) -> str:
    """A statement that adds dot products to sums."""
    name, dtype = INSTRUCTIONS[dot][lanes * LANE], f"int32x{lanes}"
    if dot == PAIR:
        return f'{sums} = {sums} + T.call_llvm_pure_intrin("{dtype}", "{name}", {left}, {right})'
    return f'{sums} = T.call_llvm_pure_intrin("{dtype}", "{name}", {sums}, {left}, {right})'
