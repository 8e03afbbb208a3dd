"""Converters of ONNX operators for which TVM's importer has no operators of Relax.

TVM's own converters make loops of them, stack their operands, or take an operator that only its
training passes know; what is written here is elementwise, or a reduction, like any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from mcfuser.expr import BOUNDS
from mcfuser.graph.dataflow import array, extents
from mcfuser.graph.recurrence import converter
from mcfuser.graph.suppression import margin, suppressed
from mcfuser.graph.weights import NARROW_TYPES

NodeInputs = Sequence[Any]
NodeAttributes = Mapping[str, Any]
Converter = Callable[[relax.BlockBuilder, NodeInputs, NodeAttributes], relax.Expr | None]
"""Converts a node, given its inputs (None for one that is left out) and attributes; None where
TVM's converter is to be used."""

_EXTREMES: Mapping[str, Callable[[float, float], float]] = {
    "relax.minimum": min, "relax.maximum": max,
}  # fmt: skip
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def clip(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """The larger of x and a lower bound, then the smaller of that and an upper one. Bounds are
    inputs, or attributes before opset 11."""
    x, *given = inputs
    if str(x.ty.dtype) not in _FLOATS:
        return None
    bounds = [*given, None, None][:2]
    if not given:
        known = [attributes.get("min"), attributes.get("max")]
        bounds = [None if n is None else relax.const(float(n), x.ty.dtype) for n in known]
    numbers = [None if b is None else array(b) for b in bounds]
    if any(b is not None and n is None for b, n in zip(bounds, numbers, strict=True)):
        return None
    for number, choose in zip(numbers, (relax.op.maximum, relax.op.minimum), strict=True):
        if number is not None and not math.isnan(number.item()):
            x = builder.normalize(choose(x, relax.const(number.item(), x.ty.dtype)))
    return x


def _folded(of_two: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    def convert(
        builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
    ) -> relax.Expr | None:
        return functools.reduce(lambda a, b: builder.normalize(of_two(a, b)), inputs)

    return convert


def mean(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """The sum of the inputs, divided by their number."""
    total = functools.reduce(lambda a, b: builder.normalize(relax.op.add(a, b)), inputs)
    return relax.op.divide(total, relax.const(len(inputs), total.ty.dtype))


def concatenation(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """The one operand of a Concat that has no other, as exporters write beside an empty cache."""
    return inputs[0] if len(inputs) == 1 else None


def remainder(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """The lowest bits of unsigned integers, where the divisor is a power of two."""
    x, divisor = inputs
    number = array(divisor)
    if not str(x.ty.dtype).startswith("uint") or number is None or number.size != 1:
        return None
    lowest = int(number.item()) - 1
    if lowest < 0 or lowest & (lowest + 1):
        return None
    return relax.op.bitwise_and(x, relax.const(lowest, x.ty.dtype))


def cast(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """A real number as a narrow integer, where it was clipped to what that can be: TVM's converter
    looks for infinities, and lets the bits wrap around."""
    (x,) = inputs
    to = int(attributes.get("to", 0))
    if str(x.ty.dtype) not in _FLOATS or to not in NARROW_TYPES:
        return None
    (least, most), (low, high) = BOUNDS[NARROW_TYPES[to]], _clipped(builder, x)
    return relax.op.astype(x, NARROW_TYPES[to]) if least <= low and high <= most else None


def _clipped(builder: relax.BlockBuilder, x: relax.Expr) -> tuple[float, float]:
    """The bounds that a value was clipped to; infinite where there are none."""
    every = -math.inf, math.inf
    made = builder.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(made, relax.Call) or made.op.name not in _EXTREMES:
        return every
    choose, limit = _EXTREMES[made.op.name], array(made.args[1])
    if limit is None or limit.size != 1:
        return every
    low, high = (choose(b, float(limit.item())) for b in _clipped(builder, made.args[0]))
    return low, high


def prelu(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """x, multiplied by a slope where it is negative."""
    x, slope = inputs
    zero = relax.const(0, x.ty.dtype)
    return relax.op.where(relax.op.less(x, zero), relax.op.multiply(x, slope), x)


def batch_normalization(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """A product and a sum by channel, as nothing is trained."""
    if attributes.get("training_mode", 0):
        return None
    x, scale, bias, mean, variance = inputs
    if len({str(i.ty.dtype) for i in inputs}) > 1:
        return None
    small = float(attributes.get("epsilon", 1e-5))
    by_channel = [-1] + [1] * (len(x.ty.shape) - 2)
    epsilon = relax.const(small, x.ty.dtype)
    deviation = builder.normalize(relax.op.sqrt(relax.op.add(variance, epsilon)))
    factor = builder.emit(relax.op.divide(scale, deviation))
    offset = builder.normalize(relax.op.subtract(bias, relax.op.multiply(mean, factor)))
    scaled = relax.op.multiply(x, relax.op.reshape(factor, by_channel))
    return relax.op.add(scaled, relax.op.reshape(offset, by_channel))


def instance_normalization(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """Every channel, less its mean, over its deviation; then a product and a sum by channel."""
    x, scale, bias = inputs
    rank = len(x.ty.shape)
    axes, by_channel = list(range(2, rank)), [-1] + [1] * (rank - 2)
    epsilon = relax.const(float(attributes.get("epsilon", 1e-5)), x.ty.dtype)
    centred = builder.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
    square = relax.op.multiply(centred, centred)
    variance = relax.op.add(relax.op.mean(square, axes, keepdims=True), epsilon)
    normal = relax.op.divide(centred, relax.op.sqrt(variance))
    if not _is_all(scale, 1.0):
        normal = relax.op.multiply(normal, relax.op.reshape(scale, by_channel))
    return (
        normal if _is_all(bias, 0.0) else relax.op.add(normal, relax.op.reshape(bias, by_channel))
    )


def _is_all(value: relax.Expr, number: float) -> bool:
    """Whether a value is constant, and everywhere this number."""
    constant = array(value)
    return constant is not None and bool((constant == number).all())


def region_means(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """Means of regions that begin half an element earlier: TVM's converter moves them by half an
    element of the picture that they are given in, which has others."""
    x, boxes, pictures = inputs
    if attributes.get("coordinate_transformation_mode") != b"half_pixel":
        return None
    kind, scale = boxes.ty.dtype, float(attributes.get("spatial_scale", 1.0))
    moved = builder.emit(relax.op.subtract(boxes, relax.const(0.5 / scale, kind)))
    of = builder.emit(relax.op.astype(relax.op.expand_dims(pictures, 1), kind))
    return relax.op.vision.roi_align(
        x, builder.emit(relax.op.concat([of, moved], axis=1)),
        pooled_size=tuple(int(attributes.get(f"output_{n}", 1)) for n in ("height", "width")),
        spatial_scale=scale, sample_ratio=int(attributes.get("sampling_ratio", 0)),
        aligned=True, layout="NCHW", mode="avg",
    )  # fmt: skip


def tile(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """Copies side by side: x broadcast along a dimension before each that is repeated."""
    x, counts = inputs[0], array(inputs[1]) if len(inputs) == 2 else None
    sizes = extents(x)
    if counts is None or sizes is None or counts.size != len(sizes):
        return None
    repeats = [int(n) for n in counts.reshape(-1)]
    if 0 in repeats or 0 in sizes:
        return None
    apart = [pair for n in sizes for pair in (1, n)]
    wide = [e for pair in zip(repeats, sizes, strict=True) for e in pair]
    copied = relax.op.broadcast_to(builder.normalize(relax.op.reshape(x, apart)), wide)
    joined = [r * n for r, n in zip(repeats, sizes, strict=True)]
    return relax.op.reshape(builder.normalize(copied), joined)


def cut(
    builder: relax.BlockBuilder, inputs: NodeInputs, attributes: NodeAttributes
) -> relax.Expr | None:
    """A Slice from the start of some dimensions to where elements say (graph.dynamic.found): the
    other dimensions keep their extents, which TVM's converter forgets."""
    x, starts, ends, axes, *steps = [*inputs, None, None][:5]
    sizes, begins, where = extents(x), *(None if i is None else array(i) for i in (starts, axes))
    known = ends is None or isinstance(ends, relax.ShapeExpr) or array(ends) is not None
    if known or sizes is None or begins is None or where is None or begins.any() or any(steps):
        return None
    dims = [int(a) % len(sizes) for a in where]
    whole, at = (relax.const(np.asarray(n), "int64") for n in (sizes, dims))
    end = builder.emit(relax.op.scatter_elements(whole, at, ends))
    zero, one = (relax.const(np.full(len(sizes), n), "int64") for n in (0, 1))
    part = builder.emit(relax.op.dynamic_strided_slice(x, zero, end, one))
    left = [tirx.Var(f"found_{d}", "int64") if d in dims else n for d, n in enumerate(sizes)]
    return builder.match_cast(part, relax.TensorType(left, x.ty.dtype))


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "Cast": cast,
    "Clip": clip,
    "Concat": concatenation,
    "GRU": converter("GRU"),
    "InstanceNormalization": instance_normalization,
    "LSTM": converter("LSTM"),
    "Max": _folded(relax.op.maximum),
    "Mean": mean,
    "Min": _folded(relax.op.minimum),
    "Mod": remainder,
    "NonMaxSuppression": suppressed,
    "PRelu": prelu,
    "Pad": margin,
    "RNN": converter("RNN"),
    "RoiAlign": region_means,
    "Slice": cut,
    "Sum": _folded(relax.op.add),
    "Tile": tile,
}
"""By the operator's name."""
