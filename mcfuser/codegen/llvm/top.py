"""The few largest or smallest elements of rows on a CPU: the elements of a short row are compared
with each other, those of a long one with the best ones so far; rows are shared by the cores.

TVM sorts every row whole, and one after the other: 2,310 us for the 20 nearest of 512 points, for
each of 512 (EPYC, Zen 4, two cores, 2026-11-29).
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
)
from mcfuser.codegen.shapes import counted

MOST = 64
"""Elements above which a row is sorted whole: one that becomes the best moves all others."""
SHORT = 128
"""Elements of a row up to which each is compared with all others, in vectors."""
_APART = 16
"""Numbers of 32 bits in a cache line, of which no two cores write."""


def top(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that find the best elements along the last dimension of an array of
    fixed extents, and where they are; None for any other call."""
    (x,), attrs, extents = call.args, call.attrs, counted(call.args[0].ty.shape)
    dtype, index = str(x.ty.dtype), str(attrs.dtype)
    if extents is None:
        return None
    if dtype not in NUMBERS or index not in ("int32", "int64") or str(attrs.ret_type) != "both":
        return None
    k = int(attrs.k)
    if int(attrs.axis) % len(extents) != len(extents) - 1 or not 1 <= k <= min(MOST, extents[-1]):
        return None
    text = source(extents, k, bool(attrs.largest), dtype, index)
    return called(builder, text, "top", [x], [*call.ty.fields])


def source(extents: tuple[int, ...], k: int, largest: bool, dtype: str, index: str) -> str:
    """The text of a PrimFunc that writes the `k` best elements of every row, the best first, and
    their positions; of equal ones the first."""
    rows, n, better = math.prod(extents[:-1]), extents[-1], ">" if largest else "<"
    made = (*extents[:-1], k)
    work = rows * n * (n if n <= SHORT else 1)
    loop = outer_loop(work, rows)
    body = _counted(n, k, better, index) if n <= SHORT else _inserted(n, k, better, index)
    numbers = n if n <= SHORT else _APART
    lines = (f'to = T.alloc_buffer(({rows * numbers},), "int32")', f"for r in {loop}({rows}):")
    head, views = parameters([("x", extents, dtype), ("best", made, dtype), ("place", made, index)])
    return function_text(f"top({head})", views, [*lines, *(f"    {line}" for line in body)])


def _counted(n: int, k: int, better: str, index: str) -> list[str]:
    """For row `r`: an element's place is the number of those that come before it. (Where one is no
    number, some come to no place.)"""
    one, other = f"x_flat[r * {n} + q]", f"x_flat[r * {n} + {{0}}]"
    ahead = f"T.Or({one} {better} {other}, T.And({one} == {other}, q < {{0}}))"
    at = f"to[r * {n} + {{0}}]"
    return [
        f"for i in range({k}):",
        f"    best_flat[r * {k} + i] = x_flat[r * {n} + i]",
        f'    place_flat[r * {k} + i] = T.Cast("{index}", i)',
        *indented(n, 0, f"{at} = 0"),
        f"for q in range({n}):",
        *indented(n, 1, f'{at} = {at} + T.Cast("int32", {ahead})'),
        f"for i in range({n}):",
        f"    if to[r * {n} + i] < {k}:",
        f"        best_flat[r * {k} + to[r * {n} + i]] = x_flat[r * {n} + i]",
        f'        place_flat[r * {k} + to[r * {n} + i]] = T.Cast("{index}", i)',
    ]


def _inserted(n: int, k: int, better: str, index: str) -> list[str]:
    """For row `r`: an element that is among the best ones so far moves those behind it."""
    at, value = f"to[r * {_APART}]", f"x_flat[r * {n} + i]"
    body = [
        f"for i in range({n}):",
        f"    if T.Or(i < {k}, {value} {better} best_flat[r * {k} + {k - 1}]):",
        f"        {at} = T.min(i, {k - 1})",
    ]
    if k > 1:
        here, before = (f"r * {k} + {k - 1 - d} - j" for d in (0, 1))
        body += [
            f"        for j in range({k - 1}):",
            f"            if T.And({at} == {k - 1} - j, {value} {better} best_flat[{before}]):",
            f"                best_flat[{here}] = best_flat[{before}]",
            f"                place_flat[{here}] = place_flat[{before}]",
            f"                {at} = {k - 2} - j",
        ]
    return [
        *body,
        f"        best_flat[r * {k} + {at}] = {value}",
        f'        place_flat[r * {k} + {at}] = T.Cast("{index}", i)',
    ]
