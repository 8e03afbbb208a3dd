"""Convolutions and pooling: past a padded extent they read zeros, as past the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcfuser.graph.dynamic.layout import (
    Operand,
    PaddedDimension,
    is_dynamic,
    plain,
    room,
)
from mcfuser.graph.dynamic.length import plus, quotient
from mcfuser.graph.dynamic.node import PaddedNode, only
from mcfuser.graph.dynamic.rules.reductions import mean_by_extent


def convolution(n: PaddedNode) -> list[Operand]:
    """Conv of fixed channels."""
    read = n.operands()
    x = read[0]
    n.static(x, [1], "its channels")
    n.static(read[1], range(len(read[1].layout)), "its weight")
    spatial = range(2, len(x.layout))
    x = n.single(x, *spatial)
    filled = n.masked(x, 0, spatial, 0)
    layout = (plain(x.layout[0]), (), *_windows(n, x, _kernel(n, read[1])))
    name = n.same(filled, *read[1:])[0]
    layout = (layout[0], n.result_layout()[1], *layout[2:])
    return n.result(name, layout, all(r.finite for r in read))


def pooling(n: PaddedNode) -> list[Operand]:
    """MaxPool and AveragePool."""
    x = n.operand(0)
    x = n.single(x, *range(2, len(x.layout)))
    n.static(x, [1], "its channels")
    spatial = [d for d in range(2, len(x.layout)) if is_dynamic(x.layout[d])]
    kernel = [int(k) for k in n.attribute("kernel_shape")]
    if spatial and n.attribute("ceil_mode", 0):
        raise n.refusal("it rounds the number of its windows up")
    if any(n.node.output[1:]):
        raise n.refusal("the places of its maxima are used")
    counted = n.attribute("count_include_pad", 0)
    filled = n.masked(x, 0, spatial, -math.inf if n.node.op_type == "MaxPool" else 0)
    pads = n.attribute("pads") or [0] * (2 * len(kernel))
    for d in spatial:
        if n.node.op_type == "AveragePool" and pads[len(kernel) + d - 2] and not counted:
            raise n.refusal(f"windows reach past the end of dimension {d}, and are means of fewer")
    layout = (plain(x.layout[0]), x.layout[1], *_windows(n, x, kernel))
    return n.result(n.same(filled)[0], layout, x.finite)


def global_pooling(n: PaddedNode) -> list[Operand]:
    """GlobalAveragePool and GlobalMaxPool."""
    x = n.operand(0)
    spatial = [d for d in range(2, len(x.layout)) if is_dynamic(x.layout[d])]
    average = n.node.op_type == "GlobalAveragePool"
    name = n.same(n.masked(x, 0, spatial, 0 if average else -math.inf))[0]
    if spatial and average:
        name = mean_by_extent(n, name, x.layout, spatial)
    layout = (*x.layout[:2], *(() for _ in x.layout[2:]))
    return n.result(name, tuple(map(plain, layout)), x.finite)


def _kernel(n: PaddedNode, weight: Operand) -> list[int]:
    return [room(dim) for dim in weight.layout[2:]]


def _windows(n: PaddedNode, x: Operand, kernel: Sequence[int]) -> list[PaddedDimension]:
    """The spatial dimensions of the result, whose run-time extents follow from the windows."""
    made, dims = n.result_layout(), []
    count = len(kernel)
    pads = n.attribute("pads") or [0] * (2 * count)
    strides = n.attribute("strides") or [1] * count
    dilations = n.attribute("dilations") or [1] * count
    same = str(n.attribute("auto_pad", "NOTSET")).startswith("SAME")
    for i, dim in enumerate(x.layout[2:]):
        if not is_dynamic(dim):
            dims.append(made[2 + i])
            continue
        factor = only(dim)
        length = n.graph.length(factor.extents) if factor is not None else None
        if length is None or (same and strides[i] > 1):
            raise n.refusal(f"its windows along dimension {2 + i} depend on the extent")
        reach = dilations[i] * (kernel[i] - 1)
        padded = reach if same else pads[i] + pads[count + i]
        left = plus(quotient(plus(length, padded - reach - 1), strides[i]), 1)
        if is_dynamic(made[2 + i]):
            n.graph.lengths.setdefault(made[2 + i][0].extents, left)
        dims.append(made[2 + i])
    return dims
