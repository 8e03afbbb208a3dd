"""Rewrites pooling so that every window lies inside the data: what is around them is written
beforehand, and a mean that leaves it out is corrected by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.graph.dataflow import dtype, extents, shape
from mcfuser.graph.matching import calls_rewritten
from mcfuser.graph.sliding import SlidingWindows, sliding_windows, surrounded
from mcfuser.graph.tensors import lowest_number

_NAMES = tuple(f"relax.nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
_LAYOUTS = ("NCW", "NCHW", "NCDHW")
_MAKE = {name: getattr(relax.op.nn, name.rpartition(".")[2]) for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Pooling:
    """The attributes of a maximum or a mean over windows of data [n, c, ..]; `padding_counts` says
    whether a mean's divisor counts the padding."""

    maximum: bool
    windows: SlidingWindows
    padding_counts: bool


def pooling(call: relax.Call) -> Pooling | None:
    """The attributes of a pooling operator; None where its extents are not fixed or its dimensions
    are in another order than ONNX's."""
    data, attrs = extents(call.args[0]), call.attrs
    if data is None or str(attrs.layout) not in _LAYOUTS:
        return None
    if str(attrs.out_layout) not in ("", str(attrs.layout)):
        return None
    windows = sliding_windows(attrs, attrs.pool_size)
    return Pooling("max_pool" in call.op.name, windows, bool(attrs.count_include_pad))


def poolings(function: relax.Function) -> relax.Function:
    """The function with every pooling operator over windows that lie inside its data."""
    return calls_rewritten(function, _NAMES, _inside)


def _inside(call: relax.Call) -> relax.Expr:
    found, data = pooling(call), call.args[0]
    if found is None or dtype(data) not in ("float32", "float16"):
        return call
    windows, out, given = found.windows, shape(call)[2:], shape(data)[2:]
    sides = zip(
        out, windows.strides, windows.extents, windows.dilation, windows.before, given,
        strict=True,
    )  # fmt: skip
    after = [(o - 1) * s + (k - 1) * d + 1 - b - e for o, s, k, d, b, e in sides]
    if max(after) <= 0 and not windows.padded:
        return call
    number = lowest_number(dtype(data)) if found.maximum else 0.0
    wide = surrounded(data, windows.before, [max(a, 0) for a in after], number)
    options = {
        "pool_size": list(windows.extents), "strides": list(windows.strides),
        "dilation": list(windows.dilation), "layout": str(call.attrs.layout),
    }  # fmt: skip
    pooled = _MAKE[call.op.name](wide, **options)
    if found.maximum:
        return pooled
    share = math.prod(windows.extents) / _counted(found, given, out)
    return relax.op.multiply(pooled, relax.const(share.astype(dtype(data))))


def _counted(found: Pooling, given: Sequence[int], out: Sequence[int]) -> NDArray[np.float64]:
    """The divisor of the mean at each position of the result."""
    windows, counts = found.windows, np.ones(())
    for d, (extent, positions) in enumerate(zip(given, out, strict=True)):
        first = np.arange(positions) * windows.strides[d] - windows.before[d]
        places = first[:, None] + np.arange(windows.extents[d]) * windows.dilation[d]
        low, high = 0, extent
        if found.padding_counts:
            low, high = -windows.before[d], extent + windows.after[d]
        inside = ((places >= low) & (places < high)).sum(1)
        counts = counts[..., None] * inside
    return counts
