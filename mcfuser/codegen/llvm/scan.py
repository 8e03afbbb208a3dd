"""Cumulative sums on a CPU: a line is the line before it and one of the input, in vectors.

TVM's own loop walks along the axis element by element on one core: 5,450 us for 2 x 64 x 64 x 64
elements along the second axis (EPYC, Zen 4, two cores, 2026-11-29).
"""

from __future__ import annotations

import math

from tvm import relax

from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.written import (
    NUMBERS,
    function_text,
    indented,
    outer_loop,
    parameters,
    piece,
)
from mcfuser.codegen.shapes import counted


def cumulate(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that add up an array of fixed extents in its own type; None for any other
    call."""
    (x,), extents, dtype = call.args, counted(call.ty.shape), str(call.ty.dtype)
    if extents is None:
        return None
    if dtype not in NUMBERS or str(x.ty.dtype) != dtype or call.attrs.axis is None:
        return None
    axis, exclusive = int(call.attrs.axis) % len(extents), bool(call.attrs.exclusive)
    return called(builder, source(extents, axis, dtype, exclusive), "cumulate", [x], call.ty)


def source(extents: tuple[int, ...], axis: int, dtype: str, exclusive: bool) -> str:
    """The text of a PrimFunc that adds up an array along an axis; without each element itself if
    the sum is `exclusive`."""
    outer, n, inner = math.prod(extents[:axis]), extents[axis], math.prod(extents[axis + 1 :])
    size, width = math.prod(extents), piece(inner)
    pieces = inner // width
    begun = f'T.Cast("{dtype}", 0)' if exclusive else "x_flat[first + {0}]"
    added = f"x_flat[at - {inner} + {{0}}]" if exclusive else "x_flat[at + {0}]"
    body = [
        f"for p in {outer_loop(size, outer * pieces)}({outer * pieces}):",
        f"    first: T.let[T.int32] = p // {pieces} * {n * inner} + p % {pieces} * {width}",
        *indented(width, 1, f"out_flat[first + {{0}}] = {begun}"),
    ]
    if n > 1:
        body += [
            f"    for i in range({n - 1}):",
            f"        at: T.let[T.int32] = first + (i + 1) * {inner}",
            *indented(width, 2, f"out_flat[at + {{0}}] = out_flat[at - {inner} + {{0}}] + {added}"),
        ]
    head, views = parameters([("x", extents, dtype), ("out", extents, dtype)])
    return function_text(f"cumulate({head})", views, body)
