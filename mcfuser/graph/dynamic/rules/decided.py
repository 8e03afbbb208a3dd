"""Operators whose results have as many elements as their operands' elements decide: what is found
comes first, as far as there may be any, and how many there are is a number of its own."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from mcfuser.graph.dynamic.layout import Operand, is_dynamic, plain, room, same
from mcfuser.graph.dynamic.node import PaddedNode
from mcfuser.graph.dynamic.rules.movement import single_factor

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
_MOST = 1 << 20
"""Elements among which others are found, at most: their positions are constants of the model."""


def positions(n: PaddedNode) -> list[Operand]:
    """NonZero."""
    x = n.operand(0)
    rank, g = len(x.layout), n.graph
    if not rank:
        raise n.refusal("its operand is one number")
    x = n.single(x, *range(rank))
    wanted = n.result_layout()
    place, count = _found(n, x)
    extents = [room(dim) for dim in x.layout]
    rows: list[str] = []
    inner = math.prod(extents)
    for extent in extents:
        inner //= extent
        at = g.op("Div", place, g.ints(inner)) if inner > 1 else place
        at = g.op("Mod", at, g.ints(extent)) if rows else at
        rows.append(g.op("Reshape", at, g.ints(1, -1)))
    name = rows[0] if rank == 1 else g.op("Concat", *rows, axis=0)
    n.counted(0, single_factor(n, wanted[1]), count)
    return [Operand(name, wanted, True, "nonnegative")]


def _found(n: PaddedNode, x: Operand) -> tuple[str, str]:
    """The positions of the elements of an operand that are not zero, counted in its memory: they
    come first, zeros behind them; and a row of how many there are."""
    g = n.graph
    total = math.prod(f.upper for dim in x.layout for f in dim)
    if total > _MOST:
        raise n.refusal(f"it looks among {total} elements, and at most {_MOST} are accepted")
    truth = x.name if n.dtype(0) == BOOL else g.op("Cast", x.name, to=BOOL)
    dims = [d for d, dim in enumerate(x.layout) if is_dynamic(dim)]
    if dims:
        truth = g.op("And", truth, g.valid(x.layout, dims, n.node))
    truth = g.op("Reshape", truth, g.ints(-1))
    sums, count = _counted(n, truth, total)
    to = g.op("Where", truth, g.op("Sub", sums, g.ints(1)), g.ints(total))
    none, at = (g.const(a, INT64) for a in (np.zeros(total + 1), np.arange(total)))
    moved = g.op("ScatterElements", none, to, at, axis=0)
    return g.op("Slice", moved, g.ints(0), g.ints(total), g.ints(0)), count


def _counted(n: PaddedNode, truth: str, total: int) -> tuple[str, str]:
    """How many of so many truths hold up to each of them; and a row of how many do in all."""
    g = n.graph
    ones = g.op("Cast", truth, to=INT64)
    sums = g.op("CumSum", ones, g.const(np.int64(0), INT64))
    return sums, g.op("Gather", sums, g.ints(total - 1), axis=0)


def boxes(n: PaddedNode) -> list[Operand]:
    """NonMaxSuppression: boxes that are padding have no score that may be chosen. Rows of -1 stand
    behind what it finds; graph.suppression imports it with them."""
    box, score = n.operand(0), n.operand(1)
    n.static(box, (0, 2), "its batches or coordinates")
    n.static(score, (0, 1), "its batches or classes")
    box, score = n.single(box, 1), n.single(score, 2)
    if not same(box.layout[1], score.layout[2]):
        raise n.refusal("its boxes and scores have different run-time extents")
    score = n.masked(score, 1, [2], -math.inf)
    wanted, g = n.result_layout(), n.graph
    most = room(wanted[0])
    for position in range(2, len(n.node.input)):
        n.number(position, "limits")
    limits = [*n.node.input[2:], *[""] * 3][:3]
    if not limits[2]:  # or onnxruntime would choose scores of minus infinity
        limits[2] = g.const(np.finfo(np.float32).min, TensorProto.FLOAT)
    found = n.write([box.name, score.name, *limits])[0]
    left = g.op("Sub", g.ints(most), g.op("Gather", g.op("Shape", found), g.ints(0), axis=0))
    margins = g.op("Concat", g.ints(0, 0), left, g.ints(0), axis=0)
    rows = g.op("Pad", found, margins, g.const(np.int64(-1), INT64))
    number = g.op("Gather", rows, g.const(np.int64(0), INT64), axis=1)
    _, count = _counted(n, g.op("GreaterOrEqual", number, g.ints(0)), most)
    n.counted(0, single_factor(n, wanted[0]), count)
    name = g.op("Max", rows, g.ints(0))
    return [Operand(name, (plain(wanted[0]), wanted[1]), True, "nonnegative")]
