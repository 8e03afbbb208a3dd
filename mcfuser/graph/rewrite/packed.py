"""com.microsoft's MatMulBnb4 and GatherBlockQuantized: numbers of four bits, two in a byte, that
stand for others in a code, or are rows of a table."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import unpacked

_THIRDS = (0.0, 0.005208333333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_CODES = {
    "FP4": np.array([*_THIRDS, *(-x for x in _THIRDS)], np.float32),
    # quantiles of the normal distribution, as QLoRA has them
    "NF4": np.array([
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ], np.float32),
}  # fmt: skip
"""What numbers of four bits stand for, times the largest one of their block."""


def coded_product(body: NodeBody) -> list[str | None]:
    """MatMulBnb4: a product with constant weights in a code of four bits, which become real numbers
    of the other operand's type. They are stored column by column, the first of two in the high bits
    of a byte, and each block of so many has its largest number."""
    x, depth, columns = body.read(0), body.attribute("K", 0), body.attribute("N", 0)
    block, kind = body.attribute("block_size", 0), ("FP4", "NF4")[body.attribute("quant_type", 1)]
    body.room(columns, depth)
    octets = body.elements(1).reshape(-1).astype(np.uint8)
    most = body.elements(2).reshape(-1)
    codes = np.stack([octets >> 4, octets & 15], axis=1).reshape(-1)[: columns * depth]
    largest = np.repeat(most.astype(np.float32), block)[: columns * depth]
    weights = (_CODES[kind][codes] * largest).reshape(columns, depth)
    if not body.attribute("transB", 1):
        weights = weights.reshape(depth, columns).T
    return [body.op("MatMul", x, body.const(weights.T, body.dtype(x)))]


def gathered(body: NodeBody) -> list[str | None]:
    """GatherBlockQuantized: rows of a constant table of integers, of which each block along the
    last dimension has a scale and a zero point. The table stays as small as it is: what is gathered
    becomes real numbers."""
    table, ids, scales = body.reads(3)
    whole, block = body.elements(0), body.attribute("block_size", 128)
    rank = whole.ndim
    axis = body.attribute("gather_axis", 0) % rank
    along = body.attribute("quantize_axis", 1) % rank
    if along != rank - 1 or axis == along:
        what = f"it gathers along dimension {axis} of {rank}, with blocks along {along}"
        raise body.refusal(f"{what}: blocks must lie along the last one")
    bits = body.attribute("bits", 4) if whole.dtype == np.uint8 else 8
    middle = 1 << (bits - 1) if whole.dtype == np.uint8 else 0
    if whole.dtype.itemsize == 1 and whole.dtype not in (np.uint8, np.int8):
        table = body.const(whole.astype(np.int8), TensorProto.INT8)  # of four bits
    factors = body.op("Gather", scales, ids, axis=axis)
    extents = body.shape(factors)
    numbers = _numbers(body, body.op("Gather", table, ids, axis=axis), bits)
    if body.has(3):
        zeros = body.elements(3)
        if zeros.dtype == np.uint8:
            zeros = unpacked(zeros, bits)[..., : body.shape(scales)[-1]]
        held = body.const(zeros.astype(np.float32), TensorProto.FLOAT)
        zero = body.reshape(body.op("Gather", held, ids, axis=axis), *extents, 1)
    else:
        zero = body.const(middle, TensorProto.FLOAT)
    width = body.shape(numbers)[-1]
    if width != extents[-1] * block:
        raise body.refusal(f"a row of {width} numbers has no whole blocks of {block}")
    apart = body.reshape(numbers, *extents, block)
    kind = body.dtype(scales)
    real = body.op("Mul", body.op("Sub", apart, zero), body.cast(
        body.reshape(factors, *extents, 1), TensorProto.FLOAT))  # fmt: skip
    return [body.cast(body.reshape(real, *extents[:-1], width), kind)]


def _numbers(body: NodeBody, octets: str, bits: int) -> str:
    """The numbers in bytes, the lowest bits first, along the last dimension, as float32."""
    *rows, count = body.shape(octets)
    left = body.cast(octets, TensorProto.INT32)
    if bits == 8:
        return body.cast(left, TensorProto.FLOAT)
    base, parts = body.const(1 << bits, TensorProto.INT32), list[str]()
    for _ in range(8 // bits):
        rest = body.op("Div", left, base)
        parts.append(body.op("Sub", left, body.op("Mul", rest, base)))
        left = rest
    apart = (body.reshape(p, *rows, count, 1) for p in parts)
    joined = body.concat(len(rows) + 1, *apart)
    return body.cast(body.reshape(joined, *rows, count * len(parts)), TensorProto.FLOAT)
