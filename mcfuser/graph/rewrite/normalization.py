"""Normalizations over the last axes of a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import real, real_numbers

_SQUARES = 1e-5
"""The addend of ONNX's normalizations where the node gives none."""


def layer_normalization(body: NodeBody) -> list[str | None] | None:
    """LayerNormalization with its mean and deviation as results, which TVM leaves out, of bfloat16,
    which TVM refuses, or in a model that is older than the operator."""
    alone = len([name for name in body.node.output if name]) == 1
    if alone and body.opset >= 17 and body.dtype(body.read(0)) != TensorProto.BFLOAT16:
        return None
    axes = _axes(body)
    epsilon = _epsilon(body)
    return list(_normal(body, body.read(0), body.input(1), body.input(2), axes, epsilon))


def rms_normalization(body: NodeBody) -> list[str | None] | None:
    """RMSNormalization over several axes, which TVM cannot simplify."""
    axes = _axes(body)
    if len(axes) == 1:
        return None
    y, root = by_root_mean_square(body, body.read(0), body.input(1), axes, _epsilon(body))
    return [y, root]


def simplified(body: NodeBody) -> list[str | None]:
    """onnxruntime's SimplifiedLayerNormalization: RMSNormalization, and its inverse root."""
    scale, axes = body.input(1), _axes(body)
    return list(by_root_mean_square(body, body.read(0), scale, axes, _epsilon(body)))


def skip(body: NodeBody) -> list[str | None]:
    """com.microsoft's SkipLayerNormalization: the normalization of a sum, which is a result too."""
    total = _total(body, 4)
    epsilon = body.attribute("epsilon", 1e-12)
    axes = [len(body.shape(total)) - 1]
    return [*_normal(body, total, body.input(2), body.input(3), axes, epsilon), total]


def skip_simplified(body: NodeBody) -> list[str | None]:
    """com.microsoft's SkipSimplifiedLayerNormalization."""
    total = _total(body, 3)
    last = len(body.shape(total)) - 1
    y, root = by_root_mean_square(body, total, body.input(2), [last], _epsilon(body))
    return [y, None, root, total]


def embedding(body: NodeBody) -> list[str | None]:
    """com.microsoft's EmbedLayerNormalization: rows of tables, added and normalized.

    The second result is the number of ones in each row of the mask.
    """
    total = _embedded(body, body.input(8), lambda _, rows: rows)
    weights = body.input(5), body.input(6)
    return [*_normal_rows(body, total, *weights), total]


def quantized_embedding(body: NodeBody) -> list[str | None]:
    """com.microsoft's QEmbedLayerNormalization: the same of tables that are quantized, each with
    one scale and one zero point. What is gathered becomes real numbers, not the tables."""

    def numbers(table: int, rows: str) -> str:
        return real_numbers(body, rows, table + 6, table + 11)

    total = _embedded(body, None, numbers)
    scale, shift = (real(body, i, i + 6, i + 11, axis=-1) for i in (5, 6))
    return list(_normal_rows(body, total, scale, shift))


def _embedded(body: NodeBody, places: str | None, numbers: Callable[[int, str], str]) -> str:
    """The sum of the rows of the tables of words, positions and segments (inputs 2, 3, 4), of which
    `numbers` makes real ones; positions are `places`, or count."""
    ids = body.read(0)
    _, positions = body.shape(ids, 2)
    total = numbers(2, body.op("Gather", body.read(2), ids, axis=0))
    if places is not None:
        rows = body.op("Gather", body.read(3), places, axis=0)
    else:
        rows = body.slice(body.read(3), 0, 0, positions)
    total = body.op("Add", total, numbers(3, rows))
    if (segments := body.input(1)) is not None:
        rows = body.op("Gather", body.read(4), segments, axis=0)
        total = body.op("Add", total, numbers(4, rows))
    return total


def _normal_rows(body: NodeBody, x: str, scale: str | None, shift: str | None) -> tuple[str, str]:
    """The normalized rows of an embedding, and the number of ones in each row of the mask."""
    y, *_ = _normal(body, x, scale, shift, [2], body.attribute("epsilon", 1e-12))
    if (mask := body.input(7)) is not None:
        return y, body.sum(mask, 1)
    return y, body.const([0] * body.shape(x)[0], TensorProto.INT32)


def grouped(body: NodeBody) -> list[str | None]:
    """ONNX's GroupNormalization: over groups of channels; a scale and shift of each channel."""
    x, scale, shift = body.reads(3)
    small = _epsilon(body)
    return [over_groups(body, x, scale, shift, body.attribute("num_groups", 0), small)]


def over_groups(body: NodeBody, x: str, scale: str, shift: str, groups: int, small: float) -> str:
    """The norm of a picture [batch, channels, ..] over groups of channels, with a scale and a shift
    of each channel, which may be of another type."""
    batch, channels, *inner = body.shape(x)
    apart = body.reshape(x, batch, groups, -1)
    y, *_ = _normal(body, apart, None, None, [2], small)
    rows = body.reshape(y, batch, channels, *inner)
    scale, shift = (
        body.cast(body.reshape(w, 1, channels, *(1 for _ in inner)), body.dtype(x))
        for w in (scale, shift)
    )
    return body.op("Add", body.op("Mul", rows, scale), shift)


def by_norm(body: NodeBody) -> list[str | None]:
    """ONNX's LpNormalization: x divided by its norm along an axis; zero where that is zero."""
    x = body.read(0)
    axis = body.attribute("axis", -1) % len(body.shape(x))
    if body.attribute("p", 2) == 1:
        norm = body.sum(body.op("Abs", x), axis, kept=True)
    else:
        norm = body.op("Sqrt", body.sum(body.op("Mul", x, x), axis, kept=True))
    empty = body.op("Equal", norm, body.like(0.0, norm))
    return [body.op("Div", x, body.op("Where", empty, body.like(1.0, norm), norm))]


def _epsilon(body: NodeBody) -> float:
    return float(body.attribute("epsilon", _SQUARES))


def _axes(body: NodeBody) -> list[int]:
    """The axes from the one that the node names to the last."""
    rank = len(body.shape(body.read(0)))
    return list(range(body.attribute("axis", -1) % rank, rank))


def _total(body: NodeBody, bias: int) -> str:
    """The sum of the first two inputs, and of the bias if there is one."""
    total = body.op("Add", *body.reads(2))
    row = body.input(bias)
    return total if row is None else body.op("Add", total, row)


def _normal(
    body: NodeBody, x: str, scale: str | None, shift: str | None, axes: Sequence[int], small: float
) -> tuple[str, str, str]:
    """x with mean 0 and deviation 1, scaled and shifted; its mean, and its inverse deviation."""
    wide = body.widened(x)
    mean = body.mean(wide, axes)
    centred = body.op("Sub", wide, mean)
    variance = body.mean(body.op("Mul", centred, centred), axes)
    deviation = body.op("Sqrt", body.op("Add", variance, body.like(small, variance)))
    y = body.op("Div", centred, deviation)
    if scale is not None:
        y = body.op("Mul", y, body.widened(scale))
    if shift is not None:
        y = body.op("Add", y, body.widened(shift))
    inverse = body.op("Div", body.like(1.0, deviation), deviation)
    return body.cast(y, body.dtype(x)), mean, inverse


def by_root_mean_square(
    body: NodeBody, x: str, scale: str | None, axes: Sequence[int], epsilon: float
) -> tuple[str, str]:
    """x divided by the root of its mean square, scaled; and the inverse of that root."""
    wide = body.widened(x)
    square = body.mean(body.op("Mul", wide, wide), axes)
    small = body.like(epsilon, square)
    root = body.op("Sqrt", body.op("Add", square, small))
    y = body.op("Div", wide, root)
    if scale is not None:
        y = body.op("Mul", y, body.widened(scale))
    return body.cast(y, body.dtype(x)), body.op("Div", body.like(1.0, root), root)
