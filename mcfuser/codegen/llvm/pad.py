"""Padding with a number on a CPU: rows are copied in vectors, and the rest is filled.

TVM's own loops decide for every element whether it is padding, which makes no vector code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import relax

from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.written import LANES, each, function_text, outer_loop
from mcfuser.codegen.shapes import fixed
from mcfuser.codegen.tensorir.integer import divided, every, flat, minus, plus, rest, times

PLANES = 16
"""Planes from which on a core writes whole ones: fewer would leave a core without."""


def pad(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that pad a tensor of fixed extents with a number; None for any other."""
    x, extents = call.args[0], fixed(call.args[0].ty.shape)
    width = [int(w) for w in call.attrs.pad_width]
    if str(call.attrs.pad_mode) != "constant" or extents is None or min(width) < 0:
        return None
    text = source(extents, width, float(call.attrs.pad_value), str(x.ty.dtype))
    return called(builder, text, "pad", [x], call.ty)


def source(extents: Sequence[int], width: Sequence[int], value: float, dtype: str) -> str:
    """The text of a PrimFunc that pads a tensor with `value`; `width` has the elements before and
    after each dimension in turn."""
    before, after = tuple(width[::2]), tuple(width[1::2])
    padded = tuple(b + e + a for b, e, a in zip(before, extents, after, strict=True))
    pad = _Pad(tuple(extents), before, after, padded, _number(value, dtype), _lanes(dtype))
    planes = math.prod(extents[:-2])
    whole = len(extents) > 1 and planes >= PLANES and not any((*before[:-2], *after[:-2]))
    body = _planes(pad) if whole else _rows(pad)
    rows = planes if whole else math.prod(padded[:-1])
    head = f'pad(x_arg: T.Buffer({pad.extents}, "{dtype}"), out_arg: T.Buffer({padded}, "{dtype}"))'
    views = (
        f'x_flat = T.decl_buffer(({math.prod(extents)},), "{dtype}", data=x_arg.data)',
        f'out_flat = T.decl_buffer(({math.prod(padded)},), "{dtype}", data=out_arg.data)',
    )
    loop = f"for r in {outer_loop(math.prod(padded))}({rows}):"
    return function_text(head, views, (loop, *(f"    {line}" for line in body)))


@dataclass(frozen=True)
class _Pad:
    """The extents of a tensor, the elements before and after each dimension, the extents of the
    result, the text of what is around the tensor, and the lanes of the vectors that are copied."""

    extents: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    padded: tuple[int, ...]
    number: str
    lanes: int


def _lanes(dtype: str) -> int:
    """One for bfloat16: TVM's BF16StorageLegalize takes no vectors of its constants."""
    return LANES if dtype != "bfloat16" else 1


def _number(value: float, dtype: str) -> str:
    return f'T.{dtype}("{value}")' if not math.isfinite(value) else f"T.{dtype}({value})"


def _planes(pad: _Pad) -> Iterator[str]:
    """Fills plane `r`, whose leading dimensions have no padding: no row asks where it is."""
    rows, row = pad.padded[-2:]
    start = times("r", rows * row)
    inner, last = pad.extents[-2:]
    top = pad.before[-2] * row
    yield from _filled(pad, start, top)
    yield f"for y in range({inner}):"
    line = plus(plus(start, str(top)), times("y", row))
    source_row = times(plus(times("r", inner), "y"), last)
    yield from (f"    {each}" for each in _copied(pad, line, source_row))
    yield from _filled(pad, plus(start, str(top + inner * row)), pad.after[-2] * row)


def _rows(pad: _Pad) -> Iterator[str]:
    """Fills row `r` of the result, whatever its position along all dimensions but the last."""
    positions = [
        minus(rest(divided("r", math.prod(pad.padded[d + 1 : -1])), pad.padded[d]), str(before))
        for d, before in enumerate(pad.before[:-1])
    ]
    first = flat(pad.extents[:-1], positions)
    inside = [
        f"T.And(0 <= {p}, {p} < {e})"
        for p, e, b, a in zip(positions, pad.extents, pad.before, pad.after, strict=False)
        if b or a
    ]
    line = times("r", pad.padded[-1])
    copied = _copied(pad, line, times(first, pad.extents[-1]))
    if not inside:
        yield from copied
        return
    yield f"if {every(inside)}:"
    yield from (f"    {each}" for each in copied)
    yield "else:"
    yield from (f"    {each}" for each in _filled(pad, line, pad.padded[-1]))


def _copied(pad: _Pad, line: str, source_row: str) -> Iterator[str]:
    """Writes a row of the result: what is before a row of the tensor, that row, what is after."""
    inner, before = pad.extents[-1], pad.before[-1]
    yield from _filled(pad, line, before)
    target = plus(line, str(before))
    yield from each(
        inner, pad.lanes, lambda j: f"{_out(target, j)} = x_flat[{plus(source_row, j)}]"
    )
    yield from _filled(pad, plus(line, str(before + inner)), pad.after[-1])


def _filled(pad: _Pad, start: str, count: int) -> Iterator[str]:
    """Writes so many elements around the tensor, from `start` on."""
    yield from each(count, pad.lanes, lambda j: f"{_out(start, j)} = {pad.number}")


def _out(start: str, j: str) -> str:
    return f"out_flat[{plus(start, j)}]"
