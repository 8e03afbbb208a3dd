"""The table of rules: how each operator keeps its padded positions apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mcfuser.graph.dynamic.layout import Operand, plain
from mcfuser.graph.dynamic.node import PaddedNode
from mcfuser.graph.dynamic.rules import decided, movement, products, reductions, views, windows
from mcfuser.graph.dynamic.rules.elementwise import ELEMENTWISE, elementwise
from mcfuser.graph.dynamic.rules.recurrent import recurrence
from mcfuser.graph.recurrence import GATES

PaddingRule = Callable[[PaddedNode], list[Operand]]
"""Writes a node into a bucket's graph, with masks where its padded positions would reach others,
and gives its results. Raises ModelError where the node cannot be computed at run-time extents."""

RULES: Mapping[str, PaddingRule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(reductions.FILLS, reductions.reduction),
    **dict.fromkeys(GATES, recurrence),
    "ArgMax": reductions.extremum_place,
    "ArgMin": reductions.extremum_place,
    "AveragePool": windows.pooling,
    "BatchNormalization": reductions.channelwise,
    "Concat": movement.concat,
    "Conv": windows.convolution,
    "CumSum": reductions.cumulative,
    "DynamicQuantizeLinear": reductions.quantization,
    "Einsum": products.einsum,
    "Expand": views.expand,
    "Flatten": views.reshape,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "GatherND": movement.gather_nd,
    "Gemm": products.gemm,
    "GlobalAveragePool": windows.global_pooling,
    "GlobalMaxPool": windows.global_pooling,
    "Hardmax": reductions.softmax,
    "LayerNormalization": reductions.normalization,
    "LogSoftmax": reductions.softmax,
    "MatMul": products.matmul,
    "MatMulInteger": products.integer_matmul,
    "MaxPool": windows.pooling,
    "NonMaxSuppression": decided.boxes,
    "NonZero": decided.positions,
    "Pad": movement.pad,
    "RMSNormalization": reductions.normalization,
    "Range": views.number_range,
    "Reshape": views.reshape,
    "RoiAlign": movement.regions,
    "ScatterElements": movement.scatter_elements,
    "ScatterND": movement.scatter_nd,
    "Shape": views.shape,
    "Size": views.size,
    "Slice": movement.slice_,
    "Softmax": reductions.softmax,
    "Split": movement.split,
    "Squeeze": views.reshape,
    "Tile": views.tile,
    "TopK": reductions.top,
    "Transpose": views.transpose,
    "Trilu": views.triangle,
    "Unsqueeze": views.reshape,
}

ROWS: Mapping[str, int] = {
    "DepthToSpace": 1,
    "GridSample": 1,
    "InstanceNormalization": 2,
    "LRN": 1,
    "LpPool": 2,
    "Resize": 2,
    "SpaceToDepth": 1,
    "Upsample": 2,
}
"""Operators that compute the elements of the first dimensions, so many, each from its own."""


def rows(n: PaddedNode) -> list[Operand]:
    """An operator of ROWS: only those dimensions may be padded."""
    x = n.operand(0)
    count = ROWS[n.node.op_type]
    n.static(x, range(count, len(x.layout)), "along which its elements depend on each other")
    made = n.result_layout()
    layout = (*map(plain, x.layout[:count]), *made[count:])
    return n.result(n.same(x)[0], layout)
