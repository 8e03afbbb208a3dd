"""Layers of quantized numbers that onnxruntime's quantizer writes in its own operators.

Each is computed of the real numbers that the quantized ones stand for, and rounded at its end.
"""

from __future__ import annotations

from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import quantized, real

_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def softmax(body: NodeBody) -> list[str | None]:
    """com.microsoft's QLinearSoftmax; its attribute 'opset' says whose softmax it is."""
    x = real(body, 0, 1, 2, axis=-1)
    extents, old = body.shape(x), body.attribute("opset", 13) < 13
    axis = body.attribute("axis", 1 if old else -1) % len(extents)
    if old:  # before opset 13 all dimensions from the axis on are one
        y = body.op("Softmax", body.reshape(x, *extents[:axis], -1), axis=axis)
        return [quantized(body, body.reshape(y, *extents), 3, 4, axis=-1)]
    return [quantized(body, body.op("Softmax", x, axis=axis), 3, 4, axis=-1)]


def product(body: NodeBody) -> list[str | None]:
    """com.microsoft's QGemm: of quantized numbers, or a real one where it names no scale for its
    result. The addend has the scale of the product."""
    transposed = body.attribute("transB", 0)
    operands = [real(body, 0, 1, 2, axis=-2), real(body, 3, 4, 5, axis=0 if transposed else 1)]
    kept = {n: body.attribute(n, 0) for n in ("transA", "transB")}
    alpha = body.attribute("alpha", 1.0)
    y = body.op("Gemm", *operands, **kept, alpha=alpha)
    if (addend := body.input(6)) is not None:
        scale = body.op("Mul", body.read(1), body.read(4))
        bias = body.op("Mul", body.cast(addend, TensorProto.FLOAT), scale)
        y = body.op("Add", y, body.scaled(bias, alpha))
    return [quantized(body, y, 7, 8, axis=-1) if body.has(7) else y]


def pooling(body: NodeBody) -> list[str | None]:
    """com.microsoft's QLinearAveragePool."""
    kept = {n: v for n in _POOLING if (v := body.attribute(n, None)) is not None}
    return _by_channel(body, "AveragePool", **kept)


def whole_pooling(body: NodeBody) -> list[str | None]:
    """com.microsoft's QLinearGlobalAveragePool."""
    return _by_channel(body, "GlobalAveragePool")


def _by_channel(body: NodeBody, kind: str, **attributes: object) -> list[str | None]:
    """A pooling of real numbers; the channels are the second dimension, or the last one."""
    x = real(body, 0, 1, 2, axis=-1)
    rank = len(body.shape(x))
    if not body.attribute("channels_last", 0):
        return [quantized(body, body.op(kind, x, **attributes), 3, 4, axis=-1)]
    x = body.transpose(x, 0, rank - 1, *range(1, rank - 1))
    y = body.transpose(body.op(kind, x, **attributes), 0, *range(2, rank), 1)
    return [quantized(body, y, 3, 4, axis=-1)]


def concatenation(body: NodeBody) -> list[str | None]:
    """com.microsoft's QLinearConcat: the scale and zero point of the result come first."""
    starts = range(2, len(body.node.input), 3)
    parts = [real(body, i, i + 1, i + 2, axis=-1) for i in starts]
    return [quantized(body, body.concat(body.attribute("axis", 0), *parts), 0, 1, axis=-1)]


def choice(body: NodeBody) -> list[str | None]:
    """com.microsoft's QLinearWhere."""
    parts = [real(body, i, i + 1, i + 2, axis=-1) for i in (1, 4)]
    return [quantized(body, body.op("Where", body.read(0), *parts), 7, 8, axis=-1)]
