"""Operators along an axis: sums, maxima, softmax, means, cumulative sums, places of maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from mcfuser.graph.dynamic.layout import (
    Layout,
    Operand,
    PaddedDimension,
    Sign,
    is_dynamic,
    plain,
    zeroed,
)
from mcfuser.graph.dynamic.node import PaddedNode

FILLS = {
    "ReduceSum": 0.0, "ReduceSumSquare": 0.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceMean": 0.0,
    "ReduceMax": -math.inf, "ReduceMin": math.inf, "ReduceProd": 1.0,
    "ReduceLogSumExp": -math.inf, "ReduceLogSum": 0.0,
}  # fmt: skip
"""What padded positions hold, by operator, so that they change nothing."""
_FINITE = frozenset(FILLS) - {"ReduceLogSum", "ReduceLogSumExp", "ReduceProd"}
_NONNEGATIVE = frozenset({"ReduceSumSquare", "ReduceL1", "ReduceL2"})
_KEEPS_SIGN = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})


def reduction(n: PaddedNode) -> list[Operand]:
    """The reductions of FILLS; a mean is divided by the run-time extents."""
    kind, x = n.node.op_type, n.operand(0)
    rank = len(x.layout)
    if n.attribute("noop_with_empty_axes", 0) and not n.has(1):
        return n.result(n.same(x)[0], x.layout, x.finite, x.sign)
    axes = n.axes(1, rank)
    over = [a for a in axes if is_dynamic(x.layout[a])]
    filled = n.masked(x, 0, over, FILLS[kind])
    name = n.same(filled)[0]
    if over and kind == "ReduceMean":
        name = mean_by_extent(n, name, x.layout, over)
    kept = bool(n.attribute("keepdims", 1))
    layout = tuple(
        () if d in axes else _after(n, dim)
        for d, dim in enumerate(x.layout)
        if kept or d not in axes
    )
    sign: Sign = x.sign if kind in _KEEPS_SIGN else "any"
    if over and sign == "positive":
        sign = "nonnegative" if kind == "ReduceMean" else "any"
    if over and kind in ("ReduceMax", "ReduceMin"):
        sign = "any"
    return n.result(
        name, layout, x.finite and kind in _FINITE, "nonnegative" if kind in _NONNEGATIVE else sign
    )


def _after(n: PaddedNode, dim: PaddedDimension) -> PaddedDimension:
    """A dimension that is kept; sums of zeros are zero."""
    return dim if n.node.op_type in ("ReduceSum", "ReduceMean") else plain(dim)


def mean_by_extent(n: PaddedNode, mean: str, layout: Layout, over: Sequence[int]) -> str:
    """A mean over padded extents as one over the run-time extents."""
    g = n.graph
    factors = [f for d in over for f in layout[d] if f.dynamic]
    count = g.length_name(factors[0], n.node)
    for f in factors[1:]:
        count = g.op("Mul", count, g.length_name(f, n.node))
    if g.found:  # what is found may be nothing, of which onnxruntime's mean is zero
        count = g.op("Max", count, g.ints(1))
    whole = g.const(np.asarray(float(math.prod(f.upper for f in factors))), TensorProto.FLOAT)
    ratio = g.op("Div", whole, g.op("Cast", count, to=TensorProto.FLOAT))
    dtype = n.dtype(0)
    if dtype != TensorProto.FLOAT:
        ratio = g.op("Cast", ratio, to=dtype)
    kept = bool(n.attribute("keepdims", 1))
    if not kept and len(layout) == len(n.axes(1, len(layout))):
        ratio = g.scalar(ratio)
    return g.op("Mul", mean, ratio)


def softmax(n: PaddedNode) -> list[Operand]:
    """Softmax, LogSoftmax and Hardmax: padded positions count as minus infinity."""
    x = n.operand(0)
    rank = len(x.layout)
    axis = int(n.attribute("axis", -1 if n.graph.opset >= 13 else 1)) % max(rank, 1)
    axes = [axis] if n.graph.opset >= 13 else list(range(axis, rank))
    dynamic = [a for a in axes if is_dynamic(x.layout[a])]
    filled = n.masked(x, 0, dynamic, -math.inf)
    name = n.same(filled)[0]
    whole = n.node.op_type == "Softmax"
    layout = tuple(
        zeroed(d) if whole and i in dynamic else plain(d) for i, d in enumerate(x.layout)
    )
    return n.result(name, layout, x.finite and whole, "nonnegative" if whole else "any")


def extremum_place(n: PaddedNode) -> list[Operand]:
    """ArgMax and ArgMin."""
    x = n.operand(0)
    axis = int(n.attribute("axis", 0)) % len(x.layout)
    x = n.single(x, axis)
    fill = -math.inf if n.node.op_type == "ArgMax" else math.inf
    name = n.same(n.masked(x, 0, [axis], fill))[0]
    kept = bool(n.attribute("keepdims", 1))
    layout = tuple(
        () if d == axis else plain(dim) for d, dim in enumerate(x.layout) if kept or d != axis
    )
    return n.result(name, layout, True, "nonnegative")


def top(n: PaddedNode) -> list[Operand]:
    """TopK. Of a run-time number of elements, as many are kept as there may be."""
    x = n.operand(0)
    axis = int(n.attribute("axis", -1)) % len(x.layout)
    x = n.single(x, axis)
    kept = n.numbers(1, "elements that it keeps")
    assert kept is not None
    fill = -math.inf if n.attribute("largest", 1) else math.inf
    made = n.result_layout()
    name = n.masked(x, 0, [axis], fill).name
    steady = all(np.array_equal(k, kept[0]) for k in kept)
    names = n.write([name, n.node.input[1] if steady else n.graph.ints(int(kept[0].item()))])
    layout = tuple(made[d] if d == axis else plain(dim) for d, dim in enumerate(x.layout))
    return [Operand(names[0], layout, x.finite), Operand(names[1], layout, True, "nonnegative")]


def cumulative(n: PaddedNode) -> list[Operand]:
    """CumSum; from the end, padded positions are zeros."""
    x = n.operand(0)
    axis = n.number(1, "axis")
    d = int(np.asarray(axis).reshape(())) % len(x.layout)
    x = n.single(x, d)
    if n.attribute("reverse", 0):
        x = n.masked(x, 0, [d], 0)
    layout = tuple(plain(dim) if i == d else dim for i, dim in enumerate(x.layout))
    return n.result(n.same(x)[0], layout, x.finite)


def quantization(n: PaddedNode) -> list[Operand]:
    """DynamicQuantizeLinear: the range that it finds has 0 in it, so padded positions are 0."""
    x = n.operand(0)
    names = n.same(n.masked(x, 0, range(len(x.layout)), 0))
    layout = tuple(map(plain, x.layout))
    return [Operand(names[0], layout), *(Operand(name, ()) for name in names[1:])]


def normalization(n: PaddedNode) -> list[Operand]:
    """LayerNormalization and RMSNormalization over extents that are fixed."""
    read = n.operands()
    x = read[0]
    axis = int(n.attribute("axis", -1)) % len(x.layout)
    n.static(x, range(axis, len(x.layout)), "over which it normalizes")
    names = n.same(*read)
    if any(n.node.output[1:]):
        raise n.refusal("its second result is used")
    return n.result(names[0], tuple(map(plain, x.layout)), all(r.finite for r in read))


def channelwise(n: PaddedNode) -> list[Operand]:
    """BatchNormalization as it is used after training, of fixed channels."""
    read = n.operands()
    n.static(read[0], [1], "its channels")
    finite = all(r.finite for r in read) and bool(read[0].layout)
    return n.result(n.same(*read)[0], tuple(map(plain, read[0].layout)), finite)
