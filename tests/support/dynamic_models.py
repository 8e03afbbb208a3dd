"""Models whose inputs have extents that are known at run time, with their ranges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from mcfuser.extents import InputShapes
from tests.support.dynamic_nets import encoder, spans
from tests.support.nets import Net

I64 = np.int64


def convolutional() -> onnx.ModelProto:
    """Convolutions along time, one of them with a stride, pooling, and the mean over time."""
    net = Net()
    x = net.input("x", "batch", 4, "time")
    wide = net.op("Conv", x, net.weight(8, 4, 3), net.weight(8), pads=[1, 1], strides=[2])
    x = net.op("Conv", net.op("Relu", wide), net.weight(8, 8, 3), pads=[2, 2], dilations=[2])
    x = net.op("Exp", net.op("Mul", x, net.const(0.1)))
    y = net.op("MaxPool", x, kernel_shape=[2], strides=[2])
    z = net.op("AveragePool", x, kernel_shape=[3], strides=[1])
    means = [net.op("GlobalAveragePool", one) for one in (x, y, z)]
    return net.model(net.op("Concat", *means, axis=1), net.op("GlobalMaxPool", y), x)


def vision() -> onnx.ModelProto:
    """A small image classifier of a batch."""
    net = Net()
    x = net.input("x", "batch", 3, 8, 8)
    x = net.op("Relu", net.op("Conv", x, net.weight(8, 3, 3, 3), pads=[1, 1, 1, 1]))
    ones = [net.op("Abs", net.weight(8)) for _ in range(4)]
    x = net.op("BatchNormalization", x, *ones)
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.model(net.op("Softmax", net.op("Gemm", x, net.weight(8, 5), net.weight(5)), axis=-1))


def merged_heads() -> onnx.ModelProto:
    """Attention whose batch and heads are one dimension, as some exporters write it."""
    net = Net()
    x = net.input("x", "batch", "length", 16)
    whole = net.op("Shape", x)
    batch, length = (net.op("Slice", whole, net.ints(i), net.ints(i + 1)) for i in (0, 1))
    apart = net.op("Concat", batch, length, net.ints(2, 8), axis=0)
    merged = net.op("Concat", net.op("Mul", batch, net.ints(2)), length, net.ints(8), axis=0)

    def heads() -> str:
        product = net.op("Reshape", net.op("MatMul", x, net.weight(16, 16)), apart)
        return net.op("Reshape", net.op("Transpose", product, perm=[0, 2, 1, 3]), merged)

    query, key, value = heads(), heads(), heads()
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    four = net.op("Concat", batch, net.ints(2), length, net.ints(8), axis=0)
    back = net.op("Transpose", net.op("Reshape", mixed, four), perm=[0, 2, 1, 3])
    return net.model(net.op("Reshape", back, whole))


def decoder() -> onnx.ModelProto:
    """One step of a decoder: new tokens after a cache of keys and values, which it returns."""
    net = Net()
    x = net.input("x", "batch", "new", 8)
    past_key = net.input("past_key", "batch", 2, "past", 4)
    past_value = net.input("past_value", "batch", 2, "past", 4)

    def heads() -> str:
        product = net.op("MatMul", x, net.weight(8, 8))
        apart = net.op("Reshape", product, net.ints(0, 0, 2, 4))
        return net.op("Transpose", apart, perm=[0, 2, 1, 3])

    key = net.op("Concat", past_key, heads(), axis=2)
    value = net.op("Concat", past_value, heads(), axis=2)
    scores = net.op("MatMul", heads(), net.op("Transpose", key, perm=[0, 1, 3, 2]))
    new, whole = (
        net.op("Gather", net.op("Shape", v), net.const(d, I64), axis=0)
        for v, d in ((x, 1), (key, 2))
    )
    zero, one = net.const(0, I64), net.const(1, I64)
    columns = net.op("Range", zero, whole, one)
    rows = net.op("Range", net.op("Sub", whole, new), whole, one)
    seen = net.op("LessOrEqual", columns, net.op("Unsqueeze", rows, net.ints(1)))
    masked = net.op("Where", seen, scores, net.const(-np.inf))
    mixed = net.op("MatMul", net.op("Softmax", masked, axis=-1), value)
    out = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, 8))
    return net.model(net.op("MatMul", out, net.weight(8, 8)), key, value)


def hidden_sum() -> onnx.ModelProto:
    """The mean of the rows that a mask shows."""
    net = Net()
    x, mask = net.input("x", "batch", "length", 8), net.input("mask", "batch", "length", dtype=I64)
    shown = net.op("Unsqueeze", net.op("Cast", mask, to=TensorProto.FLOAT), net.ints(2))
    total = net.op("ReduceSum", net.op("Mul", x, shown), net.ints(1), keepdims=0)
    count = net.op("ReduceSum", shown, net.ints(1), keepdims=0)
    return net.model(net.op("Div", total, net.op("Clip", count, net.const(1e-9))))


def flattened() -> onnx.ModelProto:
    """All rows of a batch, one after the other, whole and cut."""
    net = Net()
    x = net.input("x", "batch", "length", 4)
    rows = net.op("Reshape", x, net.ints(-1, 4))
    last = net.op("Slice", rows, net.ints(-1), net.ints(1 << 40), net.ints(0))
    count = net.op("CumSum", rows, net.const(0, I64))
    place = net.op("Cast", net.op("ArgMax", rows, axis=0), to=TensorProto.FLOAT)
    return net.model(net.op("Reshape", x, net.ints(-1)), last, count, place)


def recurrent() -> onnx.ModelProto:
    """An LSTM of a batch that is known at run time."""
    net = Net()
    x = net.input("x", 5, "batch", 4)
    weights = (net.weight(1, 16, 4), net.weight(1, 16, 4))
    return net.model(net.op("LSTM", x, *weights, hidden_size=4))


def opset_23_attention() -> onnx.ModelProto:
    """ONNX's own attention operator, causal."""
    net = Net(opset=23)
    x = net.input("x", "batch", "length", 16)
    three = [net.op("MatMul", x, net.weight(16, 16)) for _ in range(3)]
    model = net.model(net.op("Attention", *three, q_num_heads=2, kv_num_heads=2, is_causal=1))
    model.ir_version = 10
    return model


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], InputShapes]] = {
    "encoder": (encoder, {"ids": (spans(1, 4), spans(2, 24))}),
    "masked encoder": (
        lambda: encoder(masked=True),
        {"ids": (spans(1, 4), spans(2, 24)), "mask": (spans(1, 4), spans(2, 24))},
    ),
    "convolutional": (convolutional, {"x": (spans(1, 3), 4, spans(8, 40))}),
    "vision": (vision, {"x": (spans(1, 8), 3, 8, 8)}),
    "merged heads": (merged_heads, {"x": (spans(1, 4), spans(1, 12), 16)}),
    "decoder": (
        decoder,
        {
            "x": (spans(1, 3), spans(1, 4), 8),
            "past_key": (spans(1, 3), 2, spans(1, 9), 4),
            "past_value": (spans(1, 3), 2, spans(1, 9), 4),
        },
    ),
    "flattened": (flattened, {"x": (spans(1, 4), spans(1, 9), 4)}),
    "recurrent": (recurrent, {"x": (5, spans(1, 4), 4)}),
    "attention operator": (opset_23_attention, {"x": (spans(1, 3), spans(1, 9), 16)}),
    "hidden sum": (
        hidden_sum,
        {"x": (spans(1, 4), spans(1, 12), 8), "mask": (spans(1, 4), spans(1, 12))},
    ),
}
