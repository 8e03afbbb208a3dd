"""Operators that give elements another shape or another order of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcfuser.graph.dynamic.layout import (
    Factor,
    Layout,
    Operand,
    PaddedDimension,
    dimension,
    extents,
    is_dynamic,
    plain,
    room,
)
from mcfuser.graph.dynamic.node import PaddedNode


def transpose(n: PaddedNode) -> list[Operand]:
    """Transpose."""
    x = n.operand(0)
    order = n.attribute("perm") or list(reversed(range(len(x.layout))))
    return n.result(n.same(x)[0], tuple(x.layout[d] for d in order), x.finite, x.sign)


def reshape(n: PaddedNode) -> list[Operand]:
    """Reshape, Flatten, Squeeze and Unsqueeze: the elements' order is the same."""
    x = n.operand(0)
    layout = _reshaped(n, x)
    return n.result(n.same(x)[0], layout, x.finite, x.sign)


def _reshaped(n: PaddedNode, x: Operand) -> Layout:
    """The factors of all dimensions, dealt out to the result's dimensions in their order."""
    wanted = n.result_layout()
    left = [f for dim in x.layout for f in dim]
    made: list[PaddedDimension] = []
    for dim in wanted:
        whole = extents(dim, len(n.graph.points))
        taken: list[Factor] = []
        missing = whole[0]
        while missing > 1 and left:
            f = left.pop(0)
            if missing % f.upper == 0:
                taken.append(f)
                missing //= f.upper
            elif not f.dynamic and f.upper % missing == 0:
                taken.append(n.graph.factor(missing))
                left.insert(0, n.graph.factor(f.upper // missing))
                missing = 1
            else:
                break
        if missing == 1 and not taken and left and is_dynamic(dim):
            taken.append(left.pop(0))
        made.append(dimension(*taken))
        if extents(made[-1], len(n.graph.points)) != whole:
            raise n.refusal(
                f"it divides or merges a run-time extent into dimension {len(made) - 1} of its "
                "result, so that padding would be between elements"
            )
    return tuple(made)


def expand(n: PaddedNode) -> list[Operand]:
    """Expand: dimensions of one element are repeated."""
    x = n.operand(0)
    n.numbers(1, "extents")
    wanted = n.result_layout()
    rank = len(wanted)
    dims: list[PaddedDimension] = []
    for d, dim in enumerate(wanted):
        own = x.layout[d - rank] if len(x.layout) >= rank - d else ()
        dims.append(own or dim)
    return n.result(n.same(x)[0], tuple(dims), x.finite, x.sign)


def tile(n: PaddedNode) -> list[Operand]:
    """Tile: a repeated dimension has one factor more."""
    x = n.operand(0)
    repeats = n.numbers(1, "repeats")
    assert repeats is not None
    dims = []
    for d, dim in enumerate(x.layout):
        times = Factor(tuple(int(r[d]) for r in repeats))
        dims.append(dimension(times, *dim))
    return n.result(n.same(x)[0], tuple(dims), x.finite, x.sign)


def triangle(n: PaddedNode) -> list[Operand]:
    """Trilu, whose diagonal is where it is."""
    x = n.single(n.operand(0), -1, -2)
    n.number(1, "diagonal")
    return n.result(n.same(x)[0], tuple(map(plain, x.layout)), x.finite)


def shape(n: PaddedNode) -> list[Operand]:
    """Shape, where its elements are used as numbers: the run-time extents."""
    g = n.graph
    shapes = g.shapes(n.node.input[0])
    if shapes is None:
        raise n.refusal(f"the shape of '{n.node.input[0]}' depends on elements")
    part = slice(n.attribute("start"), n.attribute("end"))
    columns = [tuple(e) for e in zip(*shapes, strict=True)][part]
    rows = [_extent(n, column) for column in columns]
    name = rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=0)
    return n.result(name, (dimension(g.factor(len(rows))),), True, "nonnegative")


def size(n: PaddedNode) -> list[Operand]:
    """Size, where it is used as a number."""
    g = n.graph
    shapes = g.shapes(n.node.input[0])
    if shapes is None:
        raise n.refusal(f"the shape of '{n.node.input[0]}' depends on elements")
    whole = g.ints(1)
    for column in zip(*shapes, strict=True):
        whole = g.op("Mul", whole, _extent(n, tuple(column)))
    return n.result(g.scalar(whole), (), True, "nonnegative")


def _extent(n: PaddedNode, column: Sequence[int]) -> str:
    return n.graph.length_name(Factor(tuple(column)), n.node)


def number_range(n: PaddedNode) -> list[Operand]:
    """Range, where its first element or its step depends on the extents."""
    start, step = n.operand(0), n.operand(2)
    layout = n.result_layout()
    count = room(layout[0])
    dtype = n.dtype(0)
    at = n.graph.const(np.arange(count), dtype)
    name = n.graph.op("Add", start.name, n.graph.op("Mul", at, step.name))
    return n.result(name, layout, True)
