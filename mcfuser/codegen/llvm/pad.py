"""Padding with a number on a CPU: rows are copied in vectors, and the rest is filled.

TVM's own loops decide for every element whether it is padding, which makes no vector code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from mcfuser.codegen.tensorir.build import parse_function
from mcfuser.codegen.tensorir.integer import divided, minus, plus, rest, times

SMALL = 1 << 14
"""Elements below which one core writes them all: to wake another one costs more."""
PLANES = 16
"""Planes from which on a core writes whole ones: fewer would leave a core without."""
LANES = (16, 8, 4)
"""Elements of the vectors that are copied."""


def pad(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that pad a tensor of fixed extents with a number; None for any other."""
    x = call.args[0]
    if str(call.attrs.pad_mode) != "constant" or not isinstance(x.ty.shape, relax.ShapeExpr):
        return None
    extents = [d.value for d in x.ty.shape.values if isinstance(d, tirx.IntImm)]
    width = [int(w) for w in call.attrs.pad_width]
    if len(extents) != len(x.ty.shape.values) or not extents or min(width) < 0:
        return None
    dtype, value = str(x.ty.dtype), float(call.attrs.pad_value)
    function = parse_function(source(extents, width, value, dtype)).without_attr("global_symbol")
    function = function.with_attrs(
        {"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True}
    )
    return relax.call_tir(builder.add_func(function, "pad"), [x], call.ty)


def source(extents: Sequence[int], width: Sequence[int], value: float, dtype: str) -> str:
    """The text of a PrimFunc that pads a tensor with `value`; `width` has the elements before and
    after each dimension in turn."""
    before, after = tuple(width[::2]), tuple(width[1::2])
    padded = tuple(b + e + a for b, e, a in zip(before, extents, after, strict=True))
    pad = _Pad(tuple(extents), before, after, padded, _number(value, dtype), _lanes(dtype))
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        f'def pad(x_arg: T.Buffer({pad.extents}, "{dtype}"), '
        f'out_arg: T.Buffer({padded}, "{dtype}")):',
        f'    x_flat = T.decl_buffer(({math.prod(extents)},), "{dtype}", data=x_arg.data)',
        f'    out_flat = T.decl_buffer(({math.prod(padded)},), "{dtype}", data=out_arg.data)',
        '    with T.sblock("root"):',
        "        T.reads()",
        "        T.writes()",
    ]
    planes = math.prod(extents[:-2])
    whole = len(extents) > 1 and planes >= PLANES and not any((*before[:-2], *after[:-2]))
    body = _planes(pad) if whole else _rows(pad)
    each = planes if whole else math.prod(padded[:-1])
    small = math.prod(padded) < SMALL
    lines.append(f"        for r in {'range' if small else 'T.parallel'}({each}):")
    return "\n".join([*lines, *(f"{' ' * 12}{line}" for line in body)]) + "\n"


@dataclass(frozen=True)
class _Pad:
    """The extents of a tensor, the elements before and after each dimension, the extents of the
    result, the text of what is around the tensor, and the lanes of the vectors that are copied."""

    extents: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    padded: tuple[int, ...]
    number: str
    lanes: tuple[int, ...]

    def filled(self, start: str, count: int) -> Iterator[str]:
        """Writes so many elements around the tensor, from `start` on."""
        for j, loops in _vectors(count, self.lanes):
            yield from _inside(loops, f"out_flat[{plus(start, j)}] = {self.number}")


def _lanes(dtype: str) -> tuple[int, ...]:
    """None of bfloat16: TVM's BF16StorageLegalize takes no vectors of its constants."""
    return LANES if dtype != "bfloat16" else ()


def _number(value: float, dtype: str) -> str:
    return f'T.{dtype}("{value}")' if not math.isfinite(value) else f"T.{dtype}({value})"


def _planes(pad: _Pad) -> Iterator[str]:
    """Fills plane `r`, whose leading dimensions have no padding: no row asks where it is."""
    rows, row = pad.padded[-2:]
    start = times("r", rows * row)
    inner, last = pad.extents[-2:]
    top = pad.before[-2] * row
    yield from pad.filled(start, top)
    yield f"for y in range({inner}):"
    line = plus(plus(start, str(top)), times("y", row))
    source_row = times(plus(times("r", inner), "y"), last)
    yield from (f"    {each}" for each in _copied(pad, line, source_row))
    yield from pad.filled(plus(start, str(top + inner * row)), pad.after[-2] * row)


def _rows(pad: _Pad) -> Iterator[str]:
    """Fills row `r` of the result, whatever its position along all dimensions but the last."""
    positions = [
        minus(rest(divided("r", math.prod(pad.padded[d + 1 : -1])), pad.padded[d]), str(before))
        for d, before in enumerate(pad.before[:-1])
    ]
    first = "0"
    for position, extent in zip(positions, pad.extents, strict=False):
        first = plus(times(first, extent), position)
    inside = [
        f"0 <= {p} and {p} < {e}"
        for p, e, b, a in zip(positions, pad.extents, pad.before, pad.after, strict=False)
        if b or a
    ]
    line = times("r", pad.padded[-1])
    copied = _copied(pad, line, times(first, pad.extents[-1]))
    if not inside:
        yield from copied
        return
    yield f"if {' and '.join(inside)}:"
    yield from (f"    {each}" for each in copied)
    yield "else:"
    yield from (f"    {each}" for each in pad.filled(line, pad.padded[-1]))


def _copied(pad: _Pad, line: str, source_row: str) -> Iterator[str]:
    """Writes a row of the result: what is before a row of the tensor, that row, what is after."""
    inner, before = pad.extents[-1], pad.before[-1]
    yield from pad.filled(line, before)
    for j, loops in _vectors(inner, pad.lanes):
        target = plus(plus(line, str(before)), j)
        yield from _inside(loops, f"out_flat[{target}] = x_flat[{plus(source_row, j)}]")
    yield from pad.filled(plus(line, str(before + inner)), pad.after[-1])


def _vectors(count: int, lanes: Sequence[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """How vectors cover so many elements in a row, ever narrower ones in the end: the element's
    position, and the loops around it. LLVM would make single elements of what fills no loop of
    several vectors."""
    first = 0
    for width in (*lanes, 1):
        trips, count = divmod(count, width)
        if not trips:
            continue
        lane = "j" if width > 1 else "0"
        at = plus(times("v", width) if trips > 1 else "0", lane)
        loops = (f"for v in range({trips}):",) if trips > 1 else ()
        yield plus(str(first), at), (*loops, *((f"for j in T.vectorized({width}):",) * (width > 1)))
        first += trips * width


def _inside(loops: Sequence[str], statement: str) -> Iterator[str]:
    """A statement inside of some loops."""
    for depth, loop in enumerate(loops):
        yield f"{'    ' * depth}{loop}"
    yield f"{'    ' * len(loops)}{statement}"
