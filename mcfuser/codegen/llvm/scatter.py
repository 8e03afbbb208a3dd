"""Slices that are written, or added, to places of an array on a CPU: in vectors, and where slices
are long, a part of all slices on each core.

TVM's own loop takes the elements of a slice one by one and on one core: 18,500 us for 3,000 slices
of 64 numbers that are added to 500 (EPYC, Zen 4, two cores, 2026-11-29), as a graph network adds up
its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

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

REDUCTIONS: Mapping[str, str] = MappingProxyType({
    "update": "{1}", "add": "{0} + {1}", "mul": "{0} * {1}", "min": "T.min({0}, {1})",
    "max": "T.max({0}, {1})",
})  # fmt: skip
"""What is left of an element and its update."""


def scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that scatter slices of fixed extents; None for any other call."""
    x, indices, updates = call.args
    shapes = [s for v in call.args if (s := counted(v.ty.shape)) is not None]
    dtype, index = str(x.ty.dtype), str(indices.ty.dtype)
    reduction = str(call.attrs.reduction)
    if dtype not in NUMBERS or index not in ("int32", "int64") or reduction not in REDUCTIONS:
        return None
    if len(shapes) < len(call.args):
        return None
    data, places, slices = shapes
    text = source(data, places, slices, dtype, index, reduction)
    return called(builder, text, "scatter", [x, indices, updates], call.ty)


def source(
    data: tuple[int, ...], places: tuple[int, ...], slices: tuple[int, ...], dtype: str, index: str,
    reduction: str,
) -> str:  # fmt: skip
    """The text of a PrimFunc that copies an array, and changes its slices at the places [.., k]
    along its first k dimensions by others, one after the other. Places that are outside are moved
    to the nearest that are inside."""
    k = places[-1]
    count, inner = math.prod(places[:-1]), math.prod(data[k:])
    width = piece(inner)
    pieces = inner // width
    row = " + ".join(
        f"{_inside(f'at_flat[u * {k} + {d}]', data[d], index)} * {math.prod(data[d + 1 : k])}"
        for d in range(k)
    )
    update = f"slice_flat[u * {inner} + p + {{0}}]"
    changed = REDUCTIONS[reduction].format("out_flat[to + {0}]", update)
    kept = f"[r * {inner} + p + {{0}}]"
    changes = [
        f"for u in range({count}):",
        f"    to: T.let[T.int32] = ({row}) * {inner} + p",
        *indented(width, 1, "out_flat[to + {0}] = " + changed),
    ]
    copies = indented(width, 1, f"out_flat{kept} = x_flat{kept}")
    rows = math.prod(data[:k])
    if pieces == 1:
        body = ["p: T.let[T.int32] = 0", f"for r in {outer_loop(rows * inner)}({rows}):", *copies]
        body += changes
    else:
        body = [
            f"for b in {outer_loop((rows + count) * inner)}({pieces}):",
            f"    p: T.let[T.int32] = b * {width}",
            *(f"    {line}" for line in (f"for r in range({rows}):", *copies, *changes)),
        ]
    arrays = (("x", data, dtype), ("at", places, index), ("slice", slices, dtype))
    head, views = parameters([*arrays, ("out", data, dtype)])
    return function_text(f"scatter({head})", views, body)


def _inside(place: str, extent: int, index: str) -> str:
    """A place within an extent, as the loops count."""
    near = f"T.max(T.min({place}, T.{index}({extent - 1})), T.{index}(0))"
    return f'T.Cast("int32", {near})' if index != "int32" else near
