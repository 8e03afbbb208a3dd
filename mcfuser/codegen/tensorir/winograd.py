"""Convolutions by Winograd's algorithm (mcfuser.lowering.tensorir.winograd).

The rows of the picture that a tile holds are computed in pieces. The input of every piece is turned
once, [numbers, channels, pieces], or [numbers, pieces, channels] where these lie side by side; then
for each panel of columns every one of these numbers is a matrix product over the channels,
[numbers, pieces, width], and what these sum up to is turned back into the product's own tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mcfuser.codegen.tensorir.epilogue import put_mapped
from mcfuser.codegen.tensorir.fetch import fetch_row
from mcfuser.codegen.tensorir.integer import covered, divided, flat, minus, plus, times
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import column, packed_row, right
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import read
from mcfuser.lowering.tensorir.winograd import TAPS, TRANSFORMS, Picture, Transform
from mcfuser.space.statement import Compute


@dataclass(frozen=True)
class _Tile:
    """A tile of a convolution: its name, its operands, and the text of how many lines of results
    it holds."""

    name: str
    o: Operands
    picture: Picture
    lines: str

    @property
    def t(self) -> Transform:
        return TRANSFORMS[self.o.out]

    @property
    def across(self) -> int:
        """The pieces side by side."""
        return -(-self.picture.width // self.o.out)

    @property
    def down(self) -> str:
        """The pieces one below the other."""
        return covered(self.lines, self.o.out)

    @property
    def pieces(self) -> str:
        return times(self.down, self.across)

    def turned(self, number: str, row: str, piece: str) -> str:
        """One of a piece's numbers, for the channels at a row of the depth."""
        order = (piece, row) if self.picture.channels_last else (row, piece)
        return f"{self.name}_turned[{number}, {', '.join(order)}]"

    def place(self, line: str, x: str) -> dict[str, str]:
        """The positions along the rows of a result in the tile."""
        rows = self.picture.rows
        if len(rows) > 1:
            return dict(zip(rows, (line, x), strict=True))
        return {rows[0]: plus(times(line, self.picture.width), x)}


def winograd_shapes(w: Writer, tile: str, o: Operands) -> Iterator[tuple[str, list[int]]]:
    """The names and extents of what is kept in scratch for a product that is a convolution."""
    if o.picture is None:
        return
    t = TRANSFORMS[o.out]
    rows = -(-o.pieces // o.micro_rows) * o.micro_rows
    depth = math.prod(w.schedule.tile(a) for a in o.picture.channels)
    if o.picture.channels_last:
        yield f"{tile}_lines", [t.span, t.span, w.lowering.lanes]
        yield f"{tile}_turned", [t.numbers, rows, depth]
    else:
        yield f"{tile}_lines", [t.span, -(-o.picture.width // t.out) * t.out + TAPS - 1]
        yield f"{tile}_turned", [t.numbers, depth, rows]
    yield f"{tile}_numbers", [t.numbers, rows, o.width]
    yield f"{tile}_half", [t.out, t.span, w.lowering.lanes]


def convolve(w: Writer, s: Compute, o: Operands, picture: Picture) -> None:
    """Accumulates a tile of a convolution."""
    count = w.count(picture.rows[0])
    lines = divided(count, picture.width) if len(picture.rows) == 1 else count
    tile = _Tile(s.buffer, o, picture, lines)
    with w.nest([(f"{a}_i", w.count(a)) for a in o.outer]) as names:
        at = dict(zip(o.outer, names, strict=True))
        (_turn_channels if picture.channels_last else _turn_lines)(w, tile, at)
        _fill_last(w, tile)
        with w.nest([("j0", covered(w.count(o.column), o.width))]) as (j0,):
            _multiply(w, tile, at, j0)
            _turn_back(w, s, tile, at, j0)


def _row(w: Writer, tile: _Tile, at: At) -> str:
    """The position along the depth in the tiles of all channels."""
    channels = tile.picture.channels
    return flat([w.schedule.tile(a) for a in channels], [at[a] for a in channels])


def _sum(factors: Sequence[float], values: Sequence[str]) -> str:
    """The sum of values times factors, of which one at least is greater than 0."""
    order = sorted((i for i, f in enumerate(factors) if f), key=lambda i: -factors[i])
    total = ""
    for i in order:
        size = abs(factors[i])
        term = values[i] if size == 1 else f"T.float32({size}) * {values[i]}"
        sign = " + " if factors[i] > 0 else " - "
        total += f"{sign if total else ''}{term}"
    return total


def _turn_lines(w: Writer, tile: _Tile, at: At) -> None:
    """B^T d B of every piece's input d: along columns for whole lines, then along these."""
    picture, t, lines = tile.picture, tile.t, f"{tile.name}_lines"
    seen = picture.width + TAPS - 1
    for x in range(seen, tile.across * t.out + TAPS - 1):
        for a in range(t.span):
            w.put(f"{lines}[{a}, {x}] = T.float32(0)")
    with w.over(picture.channels) as depth, w.nest([("piece_y", tile.down)]) as (y,):
        here = {**at, **depth, **tile.place(times(y, t.out), "0")}
        memory = _begin(w, tile, here)
        starts = _lines(w, tile, y)

        def along_columns(x: str, _: str) -> None:
            below = [f"{memory}[{plus(start, x)}]" for start in starts]
            for a, factors in enumerate(t.turned):
                w.put(f"{lines}[{a}, {x}] = {_sum(factors, below)}")

        def along_lines(x: str, _: str) -> None:
            places = [plus(times(x, t.out), str(v)) for v in range(t.span)]
            _put_numbers(w, tile, here, plus(times(y, tile.across), x), places)

        w.vectors("x", str(seen), along_columns)
        w.vectors("x", str(tile.across), along_lines)


def _turn_channels(w: Writer, tile: _Tile, at: At) -> None:
    """B^T d B of every piece's input d: vectors along the channels that lie side by side."""
    picture, t, lines = tile.picture, tile.t, f"{tile.name}_lines"
    *outer, along = picture.channels
    step = _elements(w, tile, picture.step)
    loops = [("piece_y", tile.down), ("piece_x", str(tile.across))]
    with w.over(outer) as depth, w.nest(loops) as (y, x):
        here = {**at, **depth, **tile.place(times(y, t.out), times(x, t.out)), along: "0"}
        memory = _begin(w, tile, here)
        starts = _lines(w, tile, y)
        piece = plus(times(y, tile.across), x)

        def numbers(k: str, lane: str) -> None:
            with w.nest([("v", str(t.span))]) as (v,):
                beside = times(_beside(tile, x, v), step)
                below = [f"{memory}[{plus(plus(start, beside), k)}]" for start in starts]
                for a, factors in enumerate(t.turned):
                    w.put(f"{lines}[{a}, {v}, {lane}] = {_sum(factors, below)}")
            places = [f"{v}, {lane}" for v in range(t.span)]
            _put_numbers(w, tile, {**here, along: k}, piece, places)

        w.vectors("k", w.count(along), numbers)


def _put_numbers(w: Writer, tile: _Tile, at: At, piece: str, places: Sequence[str]) -> None:
    """Turns the lines of a piece, which were turned along columns and are kept at these places of
    each, along these."""
    t, row = tile.t, _row(w, tile, at)
    with w.nest([("u", str(t.span))]) as (u,):
        beside = [f"{tile.name}_lines[{u}, {place}]" for place in places]
        for b, factors in enumerate(t.turned):
            number = tile.turned(plus(times(u, t.span), str(b)), row, piece)
            w.put(f"{number} = {_sum(factors, beside)}")


def _begin(w: Writer, tile: _Tile, here: At) -> str:
    """Binds `corner` to the number of a piece's first element; gives the memory that it is in."""
    tensor, left = w.schedule.buffer(tile.o.left).tensor, tile.o.left
    at = {**here, **dict.fromkeys(tile.picture.window, "0")}
    w.put(f"corner: T.let[T.int32] = {w.number(tensor, tile.o.roles.left.indices, at, left)}")
    return w.memory(tensor, left)


def _lines(w: Writer, tile: _Tile, y: str) -> list[str]:
    """The numbers of the first elements of the lines of a piece's input."""
    line = _elements(w, tile, tile.picture.line)
    return [plus("corner", times(_below(w, tile, y, str(u)), line)) for u in range(tile.t.span)]


def _below(w: Writer, tile: _Tile, y: str, u: str) -> str:
    """Lines from the first one of a piece's input to its line `u`."""
    picture, out = tile.picture, tile.o.out
    first = w.start(picture.rows[0])
    first = divided(first, picture.width) if len(picture.rows) == 1 else first
    return _inside(u, picture.height, out, plus(first, times(y, out)))


def _beside(tile: _Tile, x: str, v: str) -> str:
    """Positions from the first one of a piece's line to its position `v`."""
    return _inside(v, tile.picture.width, tile.o.out, times(x, tile.o.out))


def _inside(u: str, extent: int, out: int, first: str) -> str:
    """A position of a piece, which begins at the `first` of a picture's results along an extent.
    Where the input has no more positions, it is the last one: no result that is kept depends on
    it."""
    cut = extent % out
    if not cut or (u.isdigit() and int(u) < cut + TAPS - 1):
        return u
    return f"T.min({u}, {minus(str(extent + TAPS - 2), first)})"


def _elements(w: Writer, tile: _Tile, stride: int) -> int:
    """Elements from a position of a picture to the next, in the memory that its tile is read from,
    along the dimension that has this stride in the array."""
    left = tile.o.left
    return w.boxes[left].line(stride) if left in w.boxes else stride


def _fill_last(w: Writer, tile: _Tile) -> None:
    """Zeros for the pieces that the last micro-tile has too many of."""
    rows = tile.o.micro_rows
    past = minus(times(covered(tile.pieces, rows), rows), tile.pieces)
    if past != "0":
        with (
            w.nest([("e", str(tile.t.numbers))]) as (e,),
            w.over(tile.picture.channels) as depth,
            w.block(f"for i in range({past}):"),
        ):
            place = tile.turned(e, _row(w, tile, depth), plus(tile.pieces, "i"))
            w.put(f"{place} = T.float32(0)")


def _multiply(w: Writer, tile: _Tile, at: At, j0: str) -> None:
    """The products over the channels of the tile, for a panel of columns."""
    o, lanes = tile.o, w.lowering.lanes
    vectors, unrolled = range(o.width // lanes), f"for i in T.unroll({o.micro_rows}):"
    loops = [("e", str(tile.t.numbers)), ("i0", covered(tile.pieces, o.micro_rows))]
    with w.nest(loops) as (e, i0):
        piece = plus(times(i0, o.micro_rows), "i")
        for v in vectors:
            with w.block(unrolled), w.vector("j", lanes):
                w.put(f"acc{v}[i, j] = T.float32(0)")
        with w.over(tile.picture.channels) as depth:
            fetch_row(w, o, packed_row(w, o, o.right, {**at, **depth}, j0, e))
            with w.block(unrolled):
                left = tile.turned(e, _row(w, tile, depth), piece)
                for v in vectors:
                    with w.vector("j", lanes):
                        value = right(w, o, {**at, **depth}, j0, v, e)
                        w.put(f"acc{v}[i, j] = acc{v}[i, j] + {left} * {value}")
        for v in vectors:
            lane = plus(str(v * lanes), "j")
            with w.block(unrolled), w.vector("j", lanes):
                w.put(f"{tile.name}_numbers[{e}, {piece}, {lane}] = acc{v}[i, j]")


def _turn_back(w: Writer, s: Compute, tile: _Tile, at: At, j0: str) -> None:
    """A^T m A of every piece's numbers m, added to the product's tile."""
    o, t, lanes, half = tile.o, tile.t, w.lowering.lanes, f"{tile.name}_half"
    width = tile.picture.width
    with w.nest([("piece_y", tile.down), ("piece_x", str(tile.across))]) as (y, x):
        piece = plus(times(y, tile.across), x)
        for v in range(o.width // lanes):
            where = f"{piece}, {plus(str(v * lanes), 'j')}"
            with w.nest([("b", str(t.span))]) as (beside,), w.vector("j", lanes):
                numbers = [plus(str(u * t.span), beside) for u in range(t.span)]
                below = [f"{tile.name}_numbers[{e}, {where}]" for e in numbers]
                for a, factors in enumerate(t.back):
                    w.put(f"{half}[{a}, {beside}, j] = {_sum(factors, below)}")
            with w.nest([("a", str(t.out))]) as (down,):
                line = plus(times(y, t.out), down)
                with _only(w, line, tile.lines, tile.picture.height % t.out > 0):
                    for b, factors in enumerate(t.back):
                        along = plus(times(x, t.out), str(b))
                        here = {**at, **tile.place(line, along), o.column: column(w, o, j0, v)}
                        value = _sum(factors, [f"{half}[{down}, {u}, j]" for u in range(t.span)])
                        cut = 0 < width % t.out <= b
                        with _only(w, along, str(width), cut), w.vector("j", lanes):
                            _put(w, s, here, value)


def _put(w: Writer, s: Compute, here: At, value: str) -> None:
    """Adds to a result, or sets it, or what a map makes of it."""
    if s.buffer in w.endings:
        put_mapped(w, s.buffer, here, w.scalar(here, {}).let(value))
        return
    place = w.element(read(s.buffer, *s.operator.axes), here)
    w.put(f"{place} = {value if s.buffer in w.zeroed else f'{place} + ({value})'}")


def _only(w: Writer, position: str, extent: str, cut: bool) -> AbstractContextManager[None]:
    """What is done at a position only inside an extent, which a piece may be `cut` by."""
    return w.block(f"if {position} < {extent}:") if cut else nullcontext()
