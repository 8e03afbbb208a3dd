"""Products and convolutions of quantized numbers, computed in floating point.

A quantized number q stands for (q - zero point) x scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from mcfuser.graph.rewrite.blocked import (
    BlockedWeights,
    of_constants,
    row_along,
    whole_constant,
)
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.weights import OnnxArray

_WHOLE = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16,
          TensorProto.INT32)  # fmt: skip
"""The types of quantized numbers that do not share bytes."""
OFFSET = 128.0
"""What is added to int8 numbers, so that they are uint8 ones."""
_ROW = 64
"""The fewest elements of a row of which an extreme is taken alone."""


def narrow_product(body: NodeBody) -> list[str | None]:
    """com.microsoft's MatMulNBits: a product with constant weights of 2, 4 or 8 bits.

    The weights are [columns, blocks, bytes of a block], the scales [columns, blocks].
    """
    x = body.read(0)
    bits, block = body.attribute("bits", 4), body.attribute("block_size", 0)
    depth, columns = body.attribute("K", 0), body.attribute("N", 0)
    blocks = -(-depth // block)
    if bits not in (2, 4, 8):
        raise body.refusal(f"its weights have {bits} bits, not 2, 4 or 8")
    if body.has(4):
        raise body.refusal("its blocks are permuted ('g_idx')")
    if body.attribute("weight_prepacked", 0):
        raise body.refusal("its weights are in a layout of one device ('weight_prepacked')")
    body.room(columns, blocks, block)
    whole = body.elements(1).reshape(columns, blocks, -1)
    scales = body.elements(2).reshape(columns, blocks, 1)
    zero = np.full((1, 1, 1), 1 << (bits - 1), np.float32)
    if body.has(3):
        given = body.elements(3)
        if given.dtype == np.uint8:
            given = unpacked(given.reshape(columns, -1), bits)[:, :blocks]
        zero = given.reshape(columns, blocks, 1).astype(np.float32)
    numbers = unpacked(whole, bits)[..., :block]
    order = (1, 2, 0)
    made = BlockedWeights(
        numbers.transpose(order), scales.transpose(order), zero.transpose(order), bits
    )
    weights = made.written(body, body.dtype(x), (blocks * block, columns))
    if blocks * block > depth:
        weights = body.slice(weights, 0, 0, depth)
    y = body.op("MatMul", x, weights)
    bias = body.input(5)
    return [y if bias is None else body.op("Add", y, bias)]


def unpacked(x: OnnxArray, bits: int) -> OnnxArray:
    """The numbers in bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (x.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*x.shape[:-1], -1)


def dequantized(body: NodeBody) -> list[str | None] | None:
    """ONNX's DequantizeLinear, of constants and of others, with a scale for each block along an
    axis or without blocks."""
    block, x, scale = body.attribute("block_size", 0), body.read(0), body.read(1)
    extents = body.shape(x)
    numbers, scales = body.array(x), body.array(scale)
    zeros = body.array(body.input(2))
    axis = body.attribute("axis", 1) % max(len(extents), 1)
    if block and extents[axis] % block:
        raise body.refusal(f"blocks of {block} do not divide the extent {extents[axis]}")
    dtype = body.attribute("output_dtype", 0) or body.dtype(scale)
    known = (zeros is not None) == body.has(2) and (body.integers or block)
    if numbers is not None and scales is not None and known:
        weights = of_constants(numbers, scales, zeros, axis, block)
        return [weights.written(body, dtype, numbers.shape)]
    if not block and body.dtype(x) not in _WHOLE:
        return None
    if not block:
        body.known.moves[body.node.output[0]] = body.node
        return [body.cast(real(body, 0, 1, 2, axis), dtype)]
    apart = (*extents[:axis], extents[axis] // block, block, *extents[axis + 1 :])
    once = (*extents[:axis], extents[axis] // block, 1, *extents[axis + 1 :])
    wide = body.reshape(body.cast(x, TensorProto.FLOAT), *apart)
    if (zero := body.input(2)) is not None:
        wide = body.op("Sub", wide, body.reshape(body.cast(zero, TensorProto.FLOAT), *once))
    factor = body.reshape(body.cast(scale, TensorProto.FLOAT), *once)
    y = body.reshape(body.op("Mul", wide, factor), *extents)
    return [body.cast(y, dtype)]


def quantize(body: NodeBody) -> list[str | None] | None:
    """ONNX's QuantizeLinear, with a scale for the whole or for each position along an axis."""
    if body.has(2):
        kind = body.dtype(body.read(2))
    else:
        kind = body.attribute("output_dtype", 0) or TensorProto.UINT8
    if (same := _as_before(body, kind)) is not None:
        return [same]
    if body.attribute("block_size", 0) or kind not in _WHOLE[:-1]:
        return None
    y = body.cast(body.read(0), TensorProto.FLOAT)
    return [quantized(body, y, 1, 2, axis=body.attribute("axis", 1), kind=kind)]


def _as_before(body: NodeBody, kind: int) -> str | None:
    """The numbers that were dequantized, and moved, and are to be quantized as they were, in the
    type that they had."""
    path, x = list[NodeProto](), str(body.read(0))
    while (made := body.known.moves.get(x)) is not None and made.op_type != "DequantizeLinear":
        path.append(made)
        x = made.input[0]
    if made is None or body.dtype(made.input[0]) != kind:
        return None
    if not all(_same(body, made, i) for i in (1, 2)):
        return None
    numbers = str(made.input[0])
    if (other := body.known.unsigned.get(numbers)) is not None:
        body.known.unsigned[body.node.output[0]] = _moved(body, other, path)
    return _moved(body, numbers, path)


def _moved(body: NodeBody, x: str, path: Sequence[NodeProto]) -> str:
    """A value after the moves of a path, the last of which comes first."""
    for node in reversed(path):
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        x = body.op(node.op_type, x, *node.input[1:], **given)
    return x


def _same(body: NodeBody, made: NodeProto, position: int) -> bool:
    """Whether a node has the one scale, or zero point, with which another dequantized."""
    own, other = ([*n.input, "", ""][position] for n in (body.node, made))
    if not own or not other:
        return bool(own == other)
    if math.prod(body.shape(own)) != 1:
        return False
    one, two = body.array(own), body.array(other)
    return bool(own == other) or (one is not None and two is not None and bool(np.all(one == two)))


def quantize_as_it_comes(body: NodeBody) -> list[str | None]:
    """ONNX's DynamicQuantizeLinear: bytes from the least to the largest number, and 0. Where all
    are 0, the scale is 1, as in onnxruntime."""
    x = body.read(0)
    zero, most = body.like(0.0, x), body.like(255.0, x)
    low = body.op("Min", _extreme(body, "ReduceMin", x), zero)
    high = body.op("Max", _extreme(body, "ReduceMax", x), zero)
    span = body.op("Sub", high, low)
    flat = body.op("Equal", span, zero)
    scale = body.op("Where", flat, body.like(1.0, x), body.op("Div", span, most))
    shift = body.op("Clip", body.op("Sub", zero, body.op("Div", low, scale)), zero, most)
    point = body.op("Round", shift)
    rounded = body.op("Add", body.op("Round", body.op("Div", x, scale)), point)
    bytes_ = (body.op("Clip", rounded, zero, most), point)
    whole, shift = (body.cast(v, TensorProto.UINT8) for v in bytes_)
    return [whole, scale, shift]


def _extreme(body: NodeBody, kind: str, x: str) -> str:
    """The least or the largest element of all: that of each row, on all cores, and of these."""
    extents = body.shape(x)
    first = len(extents) - 1
    while first > 1 and math.prod(extents[first:]) < _ROW:
        first -= 1
    if first > 0:
        x = body.reduced(kind, x, range(first, len(extents)))
    return body.op(kind, x, keepdims=0)


def product(body: NodeBody) -> list[str | None]:
    """ONNX's QLinearMatMul."""
    a = real(body, 0, 1, 2, axis=-2)
    b = real(body, 3, 4, 5, axis=-1)
    return [quantized(body, body.op("MatMul", a, b), 6, 7, axis=-2)]


def convolution(body: NodeBody) -> list[str | None]:
    """ONNX's QLinearConv. Its bias has the scale of a product of the input and the weights."""
    x = real(body, 0, 1, 2, axis=-1)
    weights = real(body, 3, 4, 5, axis=0)
    operands = [x, weights]
    if (bias := body.input(8)) is not None:
        scale = body.op("Mul", body.read(1), body.read(4))
        operands.append(body.op("Mul", body.cast(bias, TensorProto.FLOAT), scale))
    return [quantized(body, body.op("Conv", *operands, **body.window()), 6, 7, axis=1)]


def integer_product(body: NodeBody) -> list[str | None]:
    """ONNX's MatMulInteger; its sums are exact up to 2^24."""
    a = _shifted(body, body.read(0), body.input(2), axis=-2)
    b = _shifted(body, body.read(1), body.input(3), axis=-1)
    return [_whole(body, body.op("MatMul", a, b))]


def integer_convolution(body: NodeBody) -> list[str | None]:
    """ONNX's ConvInteger; its sums are exact up to 2^24."""
    x = _shifted(body, body.read(0), body.input(2), axis=-1)
    weights = _shifted(body, body.read(1), body.input(3), axis=0)
    return [_whole(body, body.op("Conv", x, weights, **body.window()))]


def _whole(body: NodeBody, y: str) -> str:
    """Sums of integers, which float32 holds, as integers; who casts them back reads the sums."""
    body.known.floats[body.node.output[0]] = y
    return body.cast(y, TensorProto.INT32)


def cast(body: NodeBody) -> list[str | None] | None:
    """ONNX's Cast to float32 of integers that were cast from float32, as products of them are."""
    real_numbers = body.known.floats.get(body.read(0))
    if real_numbers is None or body.attribute("to", 0) != TensorProto.FLOAT:
        return None
    return [real_numbers]


def elementwise(
    kind: str, operands: int, **defaults: float
) -> Callable[[NodeBody], list[str | None]]:
    """The rewrite of com.microsoft's operator of quantized numbers that is `kind` of real ones.

    Each operand is followed by its scale and zero point, and at last come those of the result.
    """

    def written(body: NodeBody) -> list[str | None]:
        numbers = [real(body, 3 * i, 3 * i + 1, 3 * i + 2, axis=-1) for i in range(operands)]
        given = {n: body.attribute(n, d) for n, d in defaults.items()}
        y = body.op(kind, *numbers, **given)
        return [quantized(body, y, 3 * operands, 3 * operands + 1, axis=-1)]

    return written


def floating_product(body: NodeBody) -> list[str | None]:
    """com.microsoft's MatMulIntegerToFloat: a product of quantized numbers that is a real one."""
    a = real(body, 0, 2, 4, axis=-2)
    b = real(body, 1, 3, 5, axis=-1)
    y = body.op("MatMul", a, b)
    bias = body.input(6)
    return [y if bias is None else body.op("Add", y, bias)]


def dynamic_product(body: NodeBody) -> list[str | None]:
    """com.microsoft's DynamicQuantizeMatMul: the first operand is quantized as it comes."""
    y = body.op("MatMul", requantized(body, body.read(0)), real(body, 1, 2, 3, axis=-1))
    bias = body.input(4)
    return [y if bias is None else body.op("Add", y, bias)]


def requantized(body: NodeBody, x: str) -> str:
    """What is left of real numbers that are quantized to uint8 as they come."""
    q, scale, zero = body.ops("DynamicQuantizeLinear", [x], 3)
    return body.op("Mul", _shifted(body, q, zero, axis=-1), scale)


def renamed(body: NodeBody) -> list[str | None]:
    """com.microsoft's QuantizeLinear or DequantizeLinear, as ONNX's operator of that name."""
    return [body.op(body.node.op_type, *body.node.input, axis=body.attribute("axis", 1))]


def real(body: NodeBody, x: int, scale: int, zero: int, axis: int) -> str:
    """The real numbers that the input at position `x` stands for; `axis` is that of a row of
    scales."""
    return real_numbers(body, body.read(x), scale, zero, axis)


def real_numbers(body: NodeBody, x: str, scale: int, zero: int, axis: int = -1) -> str:
    """The same of a value x, with its scale and zero point in the inputs at these positions."""
    factor = _along(body, body.read(scale), len(body.shape(x)), axis)
    shifted = _shifted(body, x, body.input(zero), axis)
    return body.op("Mul", shifted, body.cast(factor, TensorProto.FLOAT))


def _shifted(body: NodeBody, x: str, zero: str | None, axis: int) -> str:
    """x minus its zero point, as float32; of constants, the difference is one. Of int8 ones, those
    that are 128 more, less as much more."""
    numbers, zeros = body.array(x), body.array(zero)
    other = body.known.unsigned.get(x)
    if other is not None and (zero is None or zeros is not None):
        x, zero = other, _more(body, zeros)
    if body.integers and numbers is not None and zeros is not None and zeros.ndim < 2:
        zeros = row_along(zeros, numbers.ndim, axis)
        held = whole_constant(body, numbers, zeros) if np.any(zeros) else x
        return body.cast(held, TensorProto.FLOAT)
    wide = body.cast(x, TensorProto.FLOAT)
    if zero is None:
        return wide
    shift = _along(body, zero, len(body.shape(x)), axis)
    return body.op("Sub", wide, body.cast(shift, TensorProto.FLOAT))


def _more(body: NodeBody, zeros: OnnxArray | None) -> str:
    """Zero points of uint8 numbers that are 128 more than int8 ones; of none, those of 0."""
    own = np.zeros((), np.int16) if zeros is None else zeros.astype(np.int16)
    return body.const(own + int(OFFSET), TensorProto.UINT8)


def _along(body: NodeBody, row: str, rank: int, axis: int) -> str:
    """A row of numbers as a value that broadcasts along an axis; one number stays one."""
    extents = body.shape(row)
    if len(extents) > 1:
        return row
    count = math.prod(extents)
    if count == 1:
        return body.reshape(row)
    whole = [1] * rank
    whole[axis] = count
    return body.reshape(row, *whole)


def quantized(
    body: NodeBody, y: str, scale: int, zero: int, axis: int, kind: int = TensorProto.UINT8
) -> str:
    """y as quantized numbers of the zero point's type, or of a `kind` where there is none: rounded
    to even, and bounded. Int8 ones are made of uint8 ones that are 128 more, which what dequantizes
    them reads: CPUs multiply such numbers by int8 weights."""
    rank = len(body.shape(y))
    factor = body.cast(_along(body, body.read(scale), rank, axis), TensorProto.FLOAT)
    kind = body.dtype(body.read(zero)) if body.has(zero) else kind
    shift = body.input(zero)
    known = body.array(shift)
    unsigned = kind == TensorProto.INT8 and body.integers and (shift is None or known is not None)
    if unsigned:
        shift, kind = _more(body, known), TensorProto.UINT8
    rounded = body.op("Round", body.op("Div", y, factor))
    if shift is not None:
        along = _along(body, shift, rank, axis)
        rounded = body.op("Add", rounded, body.cast(along, TensorProto.FLOAT))
    bounds = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    low, high = (body.like(float(b), rounded) for b in (bounds.min, bounds.max))
    bounded = body.op("Clip", rounded, low, high)
    whole = body.cast(bounded, kind)
    if not unsigned:
        return whole
    body.known.unsigned[body.node.output[0]] = whole
    return body.cast(body.op("Sub", bounded, body.like(OFFSET, bounded)), TensorProto.INT8)
