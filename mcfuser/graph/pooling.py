"""Rewrites pooling so that every window lies inside the data: what is around them is written
beforehand, and a mean that leaves it out is corrected by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, rewrite_call, wildcard

from mcfuser.graph.convolution import Matches
from mcfuser.graph.dataflow import dtype, extents, shape

_NAMES = tuple(f"relax.nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
_LAYOUTS = ("NCW", "NCHW", "NCDHW")
_MAKE = {name: getattr(relax.op.nn, name.rpartition(".")[2]) for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Pooling:
    """The attributes of a maximum or a mean over windows of data [n, c, ..]; those of the spatial
    dimensions are in their order."""

    maximum: bool
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding_counts: bool
    """Whether a mean's divisor counts the padding."""

    @property
    def padded(self) -> bool:
        return any(self.before) or any(self.after)


def pooling(call: relax.Call) -> Pooling | None:
    """The attributes of a pooling operator; None where its extents are not fixed or its dimensions
    are in another order than ONNX's."""
    data, attrs = extents(call.args[0]), call.attrs
    if data is None or str(attrs.layout) not in _LAYOUTS:
        return None
    if str(attrs.out_layout) not in ("", str(attrs.layout)):
        return None
    rank, padding = len(data) - 2, tuple(int(p) for p in attrs.padding)
    return Pooling(
        "max_pool" in call.op.name,
        tuple(int(k) for k in attrs.pool_size),
        tuple(int(s) for s in attrs.strides),
        tuple(int(d) for d in attrs.dilation),
        padding[:rank],
        padding[rank:],
        bool(attrs.count_include_pad),
    )


def poolings(function: relax.Function) -> relax.Function:
    """The function with every pooling operator over windows that lie inside its data."""
    for name in _NAMES:
        x = wildcard()
        function = rewrite_call(is_op(name)(x), _inside(x), function)
    return function


def _inside(x: DFPattern) -> Callable[[relax.Call, Matches], relax.Expr]:
    def rewriter(call: relax.Call, matches: Matches) -> relax.Expr:
        found, data = pooling(call), matches[x]
        if found is None or dtype(data) not in ("float32", "float16"):
            return call
        reach = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(
                shape(call)[2:], found.strides, found.window, found.dilation, strict=True
            )
        ]
        given = shape(data)[2:]
        after = [r - b - e for r, b, e in zip(reach, found.before, given, strict=True)]
        if not any(found.before) and max(after) <= 0 and not found.padded:
            return call
        width = [0, 0, 0, 0]
        for b, a in zip(found.before, after, strict=True):
            width += [b, max(a, 0)]
        lowest = float(np.finfo(dtype(data)).min)
        wide = relax.op.nn.pad(data, width, pad_value=lowest if found.maximum else 0.0)
        options = {
            "pool_size": list(found.window), "strides": list(found.strides),
            "dilation": list(found.dilation), "layout": str(call.attrs.layout),
        }  # fmt: skip
        pooled = _MAKE[call.op.name](wide, **options)
        if found.maximum:
            return pooled
        share = math.prod(found.window) / _counted(found, given, shape(call)[2:])
        return relax.op.multiply(pooled, relax.const(share.astype(dtype(data))))

    return rewriter


def _counted(found: Pooling, given: Sequence[int], out: Sequence[int]) -> NDArray[np.float64]:
    """The divisor of the mean at each position of the result."""
    counts: NDArray[np.float64] = np.ones(())
    for d, (extent, positions) in enumerate(zip(given, out, strict=True)):
        first = np.arange(positions) * found.strides[d] - found.before[d]
        places = first[:, None] + np.arange(found.window[d]) * found.dilation[d]
        low, high = 0, extent
        if found.padding_counts:
            low, high = -found.before[d], extent + found.after[d]
        inside = ((places >= low) & (places < high)).sum(1)
        counts = counts[..., None] * inside
    return counts
