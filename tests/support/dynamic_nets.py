"""Models with dimensions that are known at run time, and their buckets in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto

from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.extents import ExtentRange, InputShapes
from mcfuser.graph.dynamic.analysis import PaddedModel
from mcfuser.graph.dynamic.axes import runtime_shapes
from mcfuser.graph.dynamic.bucket import DynamicModel, bucket_model
from mcfuser.graph.dynamic.length import evaluate
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import checked_model
from mcfuser.graph.session import session
from tests.support.nets import Net

Arrays = Mapping[str, NDArray[np.generic]]


def dynamic(
    model: onnx.ModelProto, shapes: InputShapes, recurrences: RecurrenceLimits = NO_RECURRENCES
) -> DynamicModel:
    """A model whose inputs have these shapes."""
    checked = checked_model(model.SerializeToString(), DEFAULTS, None)
    extents = runtime_shapes(checked.proto, shapes)
    return DynamicModel(checked, extents, DEFAULTS, recurrences=recurrences)


def whole_bucket(model: DynamicModel) -> PaddedModel:
    """One bucket for all shapes of a model."""
    extents = model.shapes.extents
    return bucket_model(model, {e.name: e.low for e in extents}, {e.name: e.high for e in extents})


def run(model: object, feeds: Arrays) -> list[NDArray[np.generic]]:
    """The outputs of an OnnxModel in onnxruntime, unoptimized."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return [np.asarray(a) for a in session(model, options).run(None, dict(feeds))]


def in_bucket(
    bucket: PaddedModel, feeds: Arrays, point: Mapping[str, int]
) -> list[NDArray[np.generic]]:
    """The outputs of a bucket for inputs at a point: padded, computed, and cut."""
    padded, extents = {}, iter(bucket.extents)
    for value in bucket.model.proto.graph.input:
        upper = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name in feeds:
            array = feeds[value.name]
            margins = [(0, u - n) for u, n in zip(upper, array.shape, strict=True)]
            padded[value.name] = np.pad(array, margins)
        else:
            padded[value.name] = np.asarray([point[next(extents)]], np.int64)
    made = run(bucket.model, padded)
    cut = []
    for array, lengths in zip(made, bucket.results, strict=True):
        ends = [n if isinstance(n, int) else evaluate(n, point) for n in lengths]
        cut.append(array[tuple(slice(e) for e in ends)])
    return cut


def drawn(model: DynamicModel, point: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Random inputs at a point: floats, indices below 16, masks."""
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.fixed(point).proto.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.type.tensor_type.elem_type == TensorProto.BOOL:
            array = random.random(shape) < 0.7
            array[..., 0] = True
        elif dtype.kind in "iu":
            array = random.integers(1, 16, shape)
        else:
            array = random.standard_normal(shape)
        feeds[value.name] = np.asarray(array, dtype)
    return feeds


def spans(low: int, high: int) -> ExtentRange:
    return ExtentRange(low, high)


def attention(net: Net, x: str, mask: str | None, hidden: int, heads: int, *shape: object) -> str:
    """Self-attention of `heads` heads; its shapes are computed from that of x, as exporters do."""
    width = hidden // heads
    whole = net.op("Shape", x)
    batch, length = (net.op("Gather", whole, net.const(i, np.int64), axis=0) for i in (0, 1))
    rows = [net.op("Unsqueeze", one, net.ints(0)) for one in (batch, length)]
    divided = net.op("Concat", *rows, net.ints(heads), net.ints(width), axis=0)
    merged = net.op("Concat", *rows, net.ints(hidden), axis=0)

    def projected() -> str:
        product = net.op("MatMul", x, net.weight(hidden, hidden))
        return net.op("Reshape", net.op("Add", product, net.weight(hidden)), divided)

    query = net.op("Transpose", projected(), perm=[0, 2, 1, 3])
    key = net.op("Transpose", projected(), perm=[0, 2, 3, 1])
    value = net.op("Transpose", projected(), perm=[0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, key), net.const(width**0.5))
    if mask is not None:
        scores = net.op("Add", scores, mask)
    weights = net.op("Softmax", scores, axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    return net.op("MatMul", net.op("Reshape", mixed, merged), net.weight(hidden, hidden))


def normalized(net: Net, x: str, hidden: int) -> str:
    """A layer normalization, written out."""
    mean = net.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = net.op("Sub", x, mean)
    square = net.op("Pow", centred, net.const(2.0))
    variance = net.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = net.op("Sqrt", net.op("Add", variance, net.const(1e-5)))
    return net.op(
        "Add", net.op("Mul", net.op("Div", centred, root), net.weight(hidden)), net.weight(hidden)
    )


def encoder(masked: bool = False, hidden: int = 32, heads: int = 2) -> onnx.ModelProto:
    """A transformer block on token numbers, with positions and perhaps a mask of numbers, and the
    mean of its rows."""
    net = Net()
    ids = net.input("ids", "batch", "length", dtype=np.int64)
    mask = net.input("mask", "batch", "length", dtype=np.int64) if masked else None
    length = net.op("Gather", net.op("Shape", ids), net.const(1, np.int64), axis=0)
    places = net.op("Range", net.const(0, np.int64), length, net.const(1, np.int64))
    x = net.op("Gather", net.weight(50, hidden), ids)
    x = net.op("Add", x, net.op("Gather", net.weight(80, hidden), places))
    added = None
    if mask is not None:
        hidden_rows = net.op("Sub", net.const(1.0), net.op("Cast", mask, to=TensorProto.FLOAT))
        added = net.op("Mul", net.op("Unsqueeze", hidden_rows, net.ints(1, 2)), net.const(-1e4))
    x = normalized(net, net.op("Add", x, attention(net, x, added, hidden, heads)), hidden)
    inner = net.op("Relu", net.op("MatMul", x, net.weight(hidden, 4 * hidden)))
    x = normalized(
        net, net.op("Add", x, net.op("MatMul", inner, net.weight(4 * hidden, hidden))), hidden
    )
    pooled = net.op("ReduceMean", x, axes=[1], keepdims=0)
    return net.model(x, pooled)
