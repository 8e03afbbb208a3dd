"""Convolutions by Winograd's algorithm (mcfuser.lowering.tensorir.winograd).

The rows of the picture that a tile holds are computed in pieces of OUT x OUT results. The input of
every piece is turned once, [SPAN * SPAN, channels, pieces]; then for each panel of columns every
one of the SPAN * SPAN numbers is a matrix product over the channels, [SPAN * SPAN, pieces, width],
and what these sum up to is turned back into the product's own tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mcfuser.codegen.tensorir.integer import covered, divided, flat, minus, plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import column, right
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import read
from mcfuser.lowering.tensorir.winograd import INPUT, OUT, OUTPUT, SPAN, Picture
from mcfuser.space.statement import Compute

NUMBERS = SPAN * SPAN


def winograd_shapes(w: Writer, tile: str, o: Operands) -> Iterator[tuple[str, list[int]]]:
    """The names and extents of what is kept in scratch for a product that is a convolution."""
    if o.picture is None:
        return
    rows = -(-o.pieces // o.micro_rows) * o.micro_rows
    depth = math.prod(w.schedule.tile(a) for a in o.picture.channels)
    yield f"{tile}_lines", [SPAN, OUT * _across(o.picture) + SPAN - OUT]
    yield f"{tile}_turned", [NUMBERS, depth, rows]
    yield f"{tile}_numbers", [NUMBERS, rows, o.width]
    yield f"{tile}_half", [OUT, SPAN, w.lowering.lanes]


def convolve(w: Writer, s: Compute, o: Operands, picture: Picture) -> None:
    """Accumulates a tile of a convolution."""
    with w.nest([(f"{a}_i", w.count(a)) for a in o.outer]) as names:
        at = dict(zip(o.outer, names, strict=True))
        _turn(w, s, o, picture, at)
        with w.nest([("j0", covered(w.count(o.column), o.width))]) as (j0,):
            _multiply(w, s, o, picture, at, j0)
            _turn_back(w, s, o, picture, at, j0)


def _across(picture: Picture) -> int:
    """The pieces side by side."""
    return -(-picture.width // OUT)


def _lines(w: Writer, picture: Picture) -> str:
    """The lines of results in the tile at hand."""
    count = w.count(picture.rows[0])
    return divided(count, picture.width) if len(picture.rows) == 1 else count


def _place(picture: Picture, line: str, x: str) -> dict[str, str]:
    """The positions along the rows of a result in the tile at hand."""
    if len(picture.rows) > 1:
        return dict(zip(picture.rows, (line, x), strict=True))
    return {picture.rows[0]: plus(times(line, picture.width), x)}


def _row(w: Writer, picture: Picture, at: At) -> str:
    """The position along the depth in the tiles of all channels."""
    return flat([w.schedule.tile(a) for a in picture.channels], [at[a] for a in picture.channels])


def _sum(factors: Sequence[float], values: Sequence[str]) -> str:
    """The sum of values with factors of 1, 0 or -1, of which one at least is 1."""
    order = sorted((i for i, f in enumerate(factors) if f), key=lambda i: -factors[i])
    total = values[order[0]]
    for i in order[1:]:
        total += f" {'+' if factors[i] > 0 else '-'} {values[i]}"
    return total


def _turn(w: Writer, s: Compute, o: Operands, picture: Picture, at: At) -> None:
    """B^T d B of every piece's input d: along columns for whole lines, then along these."""
    lines, turned, across = f"{s.buffer}_lines", f"{s.buffer}_turned", _across(picture)
    tensor = w.schedule.buffer(o.left).tensor
    down = covered(_lines(w, picture), OUT)
    seen = picture.width + SPAN - OUT
    for x in range(seen, OUT * across + SPAN - OUT):
        for a in range(SPAN):
            w.put(f"{lines}[{a}, {x}] = T.float32(0)")
    with w.over(picture.channels) as depth, w.nest([("piece_y", down)]) as (y,):
        here = {**at, **depth, **_place(picture, times(y, OUT), "0")}
        here |= dict.fromkeys(picture.window, "0")
        w.put(f"corner: T.let[T.int32] = {w.number(tensor, o.roles.left.indices, here)}")
        starts = [plus("corner", _below(w, picture, y, u)) for u in range(SPAN)]

        def along_columns(x: str, _: str) -> None:
            below = [f"{tensor}_flat[{plus(start, x)}]" for start in starts]
            for a in range(SPAN):
                w.put(f"{lines}[{a}, {x}] = {_sum(INPUT[a], below)}")

        w.vectors("x", str(seen), along_columns)
        row = _row(w, picture, here)

        def along_lines(x: str, _: str) -> None:
            where = plus(times(y, across), x)
            for a in range(SPAN):
                beside = [f"{lines}[{a}, {plus(times(x, OUT), str(v))}]" for v in range(SPAN)]
                for b in range(SPAN):
                    place = f"{turned}[{a * SPAN + b}, {row}, {where}]"
                    w.put(f"{place} = {_sum(INPUT[b], beside)}")

        w.vectors("x", str(across), along_lines)
    many = times(down, across)
    past = minus(times(covered(many, o.micro_rows), o.micro_rows), many)
    if past != "0":
        with (
            w.nest([("e", str(NUMBERS))]) as (e,),
            w.over(picture.channels) as depth,
            w.block(f"for i in range({past}):"),
        ):
            where = f"{turned}[{e}, {_row(w, picture, depth)}, {plus(many, 'i')}]"
            w.put(f"{where} = T.float32(0)")


def _below(w: Writer, picture: Picture, y: str, u: int) -> str:
    """Elements from the first line of a piece's input to its line `u`. Where there are no more
    lines, it is the last one: no result that is kept depends on it."""
    if u < SPAN - 1 or picture.height % OUT == 0:
        return str(u * picture.line)
    first = w.start(picture.rows[0])
    first = divided(first, picture.width) if len(picture.rows) == 1 else first
    last = minus(str(picture.height + SPAN - OUT - 1), plus(first, times(y, OUT)))
    return times(f"T.min({u}, {last})", picture.line)


def _multiply(w: Writer, s: Compute, o: Operands, picture: Picture, at: At, j0: str) -> None:
    """The products over the channels of the tile, for a panel of columns."""
    many = times(covered(_lines(w, picture), OUT), _across(picture))
    vectors, lanes = range(o.width // w.lowering.lanes), w.lowering.lanes
    with w.nest([("e", str(NUMBERS)), ("i0", covered(many, o.micro_rows))]) as (e, i0):
        piece = plus(times(i0, o.micro_rows), "i")
        for v in vectors:
            with w.block(f"for i in T.unroll({o.micro_rows}):"), w.vector("j", lanes):
                w.put(f"acc{v}[i, j] = T.float32(0)")
        with w.over(picture.channels) as depth, w.block(f"for i in T.unroll({o.micro_rows}):"):
            left = f"{s.buffer}_turned[{e}, {_row(w, picture, depth)}, {piece}]"
            for v in vectors:
                with w.vector("j", lanes):
                    value = right(w, o, {**at, **depth}, j0, v, e)
                    w.put(f"acc{v}[i, j] = acc{v}[i, j] + {left} * {value}")
        for v in vectors:
            lane = plus(str(v * lanes), "j")
            with w.block(f"for i in T.unroll({o.micro_rows}):"), w.vector("j", lanes):
                w.put(f"{s.buffer}_numbers[{e}, {piece}, {lane}] = acc{v}[i, j]")


def _turn_back(w: Writer, s: Compute, o: Operands, picture: Picture, at: At, j0: str) -> None:
    """A^T m A of every piece's numbers m, added to the product's tile."""
    across, half, lanes = _across(picture), f"{s.buffer}_half", w.lowering.lanes
    down = covered(_lines(w, picture), OUT)
    with w.nest([("piece_y", down), ("piece_x", str(across))]) as (y, x):
        piece = plus(times(y, across), x)
        for v in range(o.width // lanes):
            lane = plus(str(v * lanes), "j")
            with w.vector("j", lanes):
                for b in range(SPAN):
                    below = [
                        f"{s.buffer}_numbers[{u * SPAN + b}, {piece}, {lane}]" for u in range(SPAN)
                    ]
                    for a in range(OUT):
                        w.put(f"{half}[{a}, {b}, j] = {_sum(OUTPUT[a], below)}")
            for a in range(OUT):
                for b in range(OUT):
                    line, along = plus(times(y, OUT), str(a)), plus(times(x, OUT), str(b))
                    here = {**at, **_place(picture, line, along), o.column: column(w, o, j0, v)}
                    place = w.element(read(s.buffer, *s.operator.axes), here)
                    value = _sum(OUTPUT[b], [f"{half}[{a}, {u}, j]" for u in range(SPAN)])
                    if s.buffer not in w.zeroed:
                        value = f"{place} + ({value})"
                    _put_inside(w, picture, (line, along), (a, b), f"{place} = {value}")


def _put_inside(
    w: Writer, picture: Picture, at: tuple[str, str], within: tuple[int, int], line: str
) -> None:
    """A line over the lanes of a vector, where the result `at` a line and a place in it, which is
    the one `within` its piece, is one of the picture's."""
    before, extents = w.depth, (_lines(w, picture), str(picture.width))
    odd = picture.height % OUT, picture.width % OUT
    for position, first, extent, cut in zip(at, within, extents, odd, strict=True):
        if cut and first >= cut:
            w.put(f"if {position} < {extent}:")
            w.depth += 1
    with w.vector("j", w.lowering.lanes):
        w.put(line)
    w.depth = before
