"""Products on the CPU's matrix unit: operands in pieces, sums in tile registers.

The left operand's pieces are rows of bfloat16, [pieces, rows, depth]. The right operand's are split
a block of columns at a time, just before its products, [columns/16, pieces, depth/2, 16], where an
element is a pair of neighbours along the depth. Past the depth both are zero. A block of sums stays
in tile registers along the depth; with the product's own tile it goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mcfuser.codegen.tensorir.fetch import fetch_share, packed
from mcfuser.codegen.tensorir.integer import covered, divided, flat, minus, plus, rest, times
from mcfuser.codegen.tensorir.next_panel import next_panel
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import depth_row, packed_row, right
from mcfuser.codegen.tensorir.scalar import loaded
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import Read, read
from mcfuser.lowering.tensorir.matrix import BLOCK, PIECES, SIDE, STEP, pairs
from mcfuser.space.statement import Compute

PAD = STEP
"""Elements between the rows of a left operand's pieces, so that they share no set of the cache."""
_HIGH = "T.uint32(4294901760)"
_LEFT, _RIGHT = BLOCK * BLOCK, BLOCK * BLOCK + BLOCK
"""The first tile register of the left operand and of the right one, after those of the sums."""
_REFUSED = (
    "this kernel computes with the tile registers of Intel's AMX, and Linux does not let this "
    "process use them: arch_prctl(ARCH_REQ_XCOMP_PERM, 18) fails; it needs a CPU with amx_bf16, "
    "and Linux 5.16 or newer"
)


def permission(w: Writer) -> None:
    """Asks Linux for the tile registers; a process that has not asked is ended by SIGILL."""
    asked = 'T.call_extern("int64", "syscall", T.int64(158), T.int64(4131), T.int64(18))'
    w.put(f'assert {asked} == T.int64(0), "{_REFUSED}"')


@contextmanager
def configured(w: Writer) -> Iterator[None]:
    """Statements during which the tile registers hold 16 rows of 64 bytes each."""
    w.put('tile_shapes = T.alloc_buffer((64,), "uint8")')
    with w.block("for i in range(64):"):
        w.put("tile_shapes[i] = T.uint8(0)")
    w.put("tile_shapes[0] = T.uint8(1)")
    with w.block("for i in range(8):"):
        w.put("tile_shapes[16 + 2 * i] = T.uint8(64)")
        w.put("tile_shapes[48 + i] = T.uint8(16)")
    _put(w, "ldtilecfg", "T.address_of(tile_shapes[0])")
    yield
    _put(w, "tilerelease")


def _put(w: Writer, name: str, *arguments: str) -> None:
    words = ", ".join(('"void"', f'"llvm.x86.{name}"', *arguments))
    w.put(f"T.evaluate(T.call_llvm_intrin({words}))")


# --- operands in pieces


def left_shape(w: Writer, o: Operands) -> list[int]:
    """The extents of a left operand's pieces."""
    assert o.row is not None
    rows = -(-w.schedule.tile(o.row) // o.micro_rows) * o.micro_rows
    lead = [n for a in o.left_lead if (n := w.schedule.tile(a)) > 1]
    return [*lead, _count(w, o.left), rows, _padded(w, o) + PAD]


def right_shape(w: Writer, o: Operands) -> list[int]:
    """The extents of a right operand's pieces, for a block of columns."""
    return [o.width // SIDE, _count(w, o.right), _padded(w, o) // 2, SIDE]


def _count(w: Writer, tile: str) -> int:
    return PIECES[w.stored(tile)]


def _padded(w: Writer, o: Operands) -> int:
    """Positions along the depth, in whole steps of the unit."""
    depth = math.prod(w.schedule.tile(a) for a in o.roles.depth)
    return -(-depth // STEP) * STEP


def _filled(w: Writer, o: Operands) -> str:
    """Positions along the depth from which on there is nothing: 0 where what there is has gaps."""
    if len(o.roles.depth) == 1:
        return w.count(o.roles.depth[0])
    whole = all(w.count(a) == str(w.schedule.tile(a)) for a in o.roles.depth)
    return str(math.prod(w.schedule.tile(a) for a in o.roles.depth)) if whole else "0"


def _steps(w: Writer, o: Operands) -> str:
    filled = _filled(w, o)
    return covered(filled, STEP) if filled != "0" else str(_padded(w, o) // STEP)


def _pieces(value: str, count: int) -> list[str]:
    """A float32 as numbers of which each has the eight leading bits of what is left."""
    found = [value]
    for _ in range(count - 1):
        leading = f'T.reinterpret("float32", T.bitwise_and({_bits(found[-1])}, {_HIGH}))'
        found.append(f"({found[-1]} - {leading})")
    return found


def _bits(value: str) -> str:
    return f'T.reinterpret("uint32", {value})'


def split_left(w: Writer, name: str, masked: bool) -> None:
    """Splits the left operand of a product's tile, `masked` or as it is."""
    o = w.products.operands[name]
    assert o.row is not None
    depth, indices = o.roles.depth, o.roles.left.indices
    with w.over([*(a for a in o.left_lead if w.schedule.tile(a) > 1), o.row]) as at:
        for p in range(_count(w, o.left)):
            first, padded = _filled(w, o), times(_steps(w, o), STEP)
            if (left := minus(padded, first)) != "0":
                with w.block(f"for z in range({left}):"):
                    w.put(f"{_left(w, name, o, p, at, plus(first, 'z'))} = T.uint16(0)")
        with w.over(depth[:-1]) as outer:

            def write(last: At, lane: str) -> None:
                here = {**at, **outer, **last}
                where = ", ".join(here.get(i.plain or "", "0") for i in indices)
                value = w.value(Read(o.left, indices), here)
                if masked:
                    value = f"{name}_masked[{where}]"
                for p, piece in enumerate(_pieces(value, _count(w, o.left))):
                    high = f'T.Cast("uint16", T.shift_right({_bits(piece)}, T.uint32(16)))'
                    w.put(f"{_left(w, name, o, p, here, depth_row(w, o, here))} = {high}")

            w.lanes(depth[-1], write)


def _left(w: Writer, name: str, o: Operands, piece: int, at: At, position: str) -> str:
    assert o.row is not None
    lead = [at[a] for a in o.left_lead if w.schedule.tile(a) > 1]
    return f"{name}_left[{flat(left_shape(w, o), [*lead, str(piece), at[o.row], position])}]"


def split_right(w: Writer, name: str, o: Operands, at: At, j0: str) -> None:
    """Splits a block of columns of the right operand of a product's tile."""
    count, (*others, last) = _count(w, o.right), o.roles.depth
    first, padded = covered(_filled(w, o), 2), times(_steps(w, o), SIDE)
    if (left := minus(padded, first)) != "0":
        for v in range(o.width // SIDE):
            for p in range(count):
                with w.block(f"for z in range({left}):"), w.vector("j", SIDE):
                    w.put(f"{_right(w, name, o, v, p, plus(first, 'z'), 'j')} = T.uint32(0)")
    with w.over(others) as outer:
        inside = w.count(last)

        def pair(e: str, both: bool) -> None:
            one = {**at, **outer, last: times(e, 2)}
            two = {**one, last: plus(times(e, 2), "1")}
            row = flat([w.schedule.tile(a) for a in others], [outer[a] for a in others])
            row = plus(times(row, w.schedule.tile(last) // 2) if others else "0", e)
            for v in range(o.width // SIDE):
                with w.vector("j", SIDE):
                    low = _pieces(_wide(w, o, right(w, o, one, j0, v)), count)
                    high = _pieces(_wide(w, o, right(w, o, two, j0, v)), count) if both else []
                    for p in range(count):
                        text = f"T.shift_right({_bits(low[p])}, T.uint32(16))"
                        if both:
                            other = f"T.bitwise_and({_bits(high[p])}, {_HIGH})"
                            text = f"T.bitwise_or({text}, {other})"
                        w.put(f"{_right(w, name, o, v, p, row, 'j')} = {text}")

        with w.nest([("e", divided(inside, 2))]) as (e,):
            pair(e, True)
        odd = rest(inside, 2)
        if odd == "1":
            pair(divided(inside, 2), False)
        elif odd != "0":
            with w.block(f"if {odd} == 1:"):
                pair(divided(inside, 2), False)


def _wide(w: Writer, o: Operands, element: str) -> str:
    """An element of the right operand as float32."""
    packed = w.products.right.get(o.right) == "packed"
    return loaded(element, w.stored(o.right)).to("float32").text if packed else element


def _right(w: Writer, name: str, o: Operands, v: int, piece: int, pair: str, lane: str) -> str:
    return f"{name}_right[{flat(right_shape(w, o), [str(v), str(piece), pair, lane])}]"


# --- products of pieces


def multiply(w: Writer, s: Compute, o: Operands) -> None:
    """Accumulates a tile of a product, a block of tile registers at a time."""
    assert o.row is not None
    leader = w.products.splits(s.buffer)
    if not o.loaded:
        split_left(w, s.buffer, s.domain is not None)
    lead = [a for a in o.outer if a in o.lead]
    blocks = covered(w.count(o.column), o.width)
    with w.nest([*((f"{a}_i", w.count(a)) for a in lead), ("j0", blocks)]) as (*before, j0):
        at = dict(zip(lead, before, strict=True))
        split_right(w, s.buffer, o, at, j0)
        others = [a for a in o.outer if a not in lead]
        with w.over(others) as after:
            for first, trips, tiles in _row_blocks(w, o):
                with w.nest([("i0", trips)]) as (i0,):
                    row = plus(first, times(i0, tiles * SIDE))
                    number = plus(divided(first, o.micro_rows), i0)
                    here = {**at, **after, o.row: row}
                    _block(w, s, o, leader, here, (j0, number), tiles)


def _row_blocks(w: Writer, o: Operands) -> Iterator[tuple[str, str, int]]:
    """The first row, the number of blocks and the tile registers of each: what is left of a known
    number of rows may take one."""
    assert o.row is not None
    count, tiles = w.count(o.row), o.micro_rows // SIDE
    if not count.isdigit():
        yield "0", covered(count, o.micro_rows), tiles
        return
    full, left = divmod(-(-int(count) // SIDE), tiles)
    if full:
        yield "0", str(full), tiles
    if left:
        yield str(full * o.micro_rows), "1", left


def _block(
    w: Writer, s: Compute, o: Operands, leader: str, at: At, block: tuple[str, str], tiles: int
) -> None:
    """Rows of so many tile registers by the columns of a block."""
    assert o.row is not None
    j0, _ = block
    rows, columns = range(tiles), range(o.width // SIDE)
    own = {
        (i, v): w.element(
            read(s.buffer, *s.operator.axes),
            {**at, o.row: plus(at[o.row], str(i * SIDE)),
             o.column: plus(times(j0, o.width), str(v * SIDE))},
        )
        for i in rows for v in columns
    }  # fmt: skip
    stride = f"T.int64({4 * _row_stride(w, s, o)})"
    for i, v in own:
        if s.buffer in w.zeroed:
            _put(w, "tilezero", _register(BLOCK * i + v))
        else:
            _load(w, BLOCK * i + v, own[i, v], stride)
    held: list[int | None] = [None, None]
    steps = _steps(w, o)
    with w.nest([("k0", steps)]) as (k0,):
        if steps.isdigit():
            _fetch(w, o, at, block, (k0, int(steps)))
        for p, q in pairs(_count(w, o.left), _count(w, o.right)):
            if held[0] != p:
                for i in rows:
                    here = {**at, o.row: plus(at[o.row], str(i * SIDE))}
                    tile = _left(w, leader, o, p, here, times(k0, STEP))
                    _load(w, _LEFT + i, tile, f"T.int64({2 * (_padded(w, o) + PAD)})")
            if held[1] != q:
                for v in columns:
                    tile = _right(w, s.buffer, o, v, q, times(k0, SIDE), "0")
                    _load(w, _RIGHT + v, tile, "T.int64(64)")
            held = [p, q]
            for i, v in own:
                numbers = (BLOCK * i + v, _LEFT + i, _RIGHT + v)
                _put(w, "tdpbf16ps", *map(_register, numbers))
    for i, v in own:
        _put(w, "tilestored64", *_place(BLOCK * i + v, own[i, v], stride))


def _fetch(w: Writer, o: Operands, at: At, block: tuple[str, str], step: tuple[str, int]) -> None:
    """Fetches what is split next, at a step of so many along the depth."""
    number, steps = step
    share = next_panel(w, o, at, block, steps, steps) if packed(w, o) else None
    if share is not None:
        first = {**at, **dict.fromkeys(o.roles.depth, "0")}
        start = packed_row(w, o, o.right, first, block[0])
        fetch_share(w, o, share, start, divided(number, share.every))


def _row_stride(w: Writer, s: Compute, o: Operands) -> int:
    """Elements between two rows of a product's own tile."""
    at = s.operator.axes.index(o.row or "")
    return math.prod(w.extent(d) for d in w.schedule.buffer(s.buffer).dims[at + 1 :])


def _load(w: Writer, number: int, element: str, stride: str) -> None:
    _put(w, "tileloadd64", *_place(number, element, stride))


def _place(number: int, element: str, stride: str) -> Sequence[str]:
    return _register(number), f"T.address_of({element})", stride


def _register(number: int) -> str:
    return f"T.int8({number})"
