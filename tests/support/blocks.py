"""Blocks of transformers as exporters spell them, in float32, and the same in float16."""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.support.nets import Net
from tests.support.paths import ROOT

MASKED = -3.4028234663852886e38
"""What exporters add to hidden scores: the lowest float32."""


def bert(
    layers: int = 1, hidden: int = 64, heads: int = 2, length: int = 32, inner: int = 128
) -> onnx.ModelProto:
    """The encoder of examples/bert.py."""
    made = _example()
    extents = made.Encoder(layers, hidden, heads, length, inner, vocabulary=50)
    encoder: onnx.ModelProto = made.encoder(extents)
    return encoder


@cache
def _example() -> Any:
    spec = importlib.util.spec_from_file_location("example_bert", ROOT / "examples" / "bert.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def llama(
    length: int = 32,
    heads: int = 4,
    groups: int = 2,
    depth: int = 16,
    inner: int = 96,
    scale: float = 1.0,
    dtype: type[np.generic] = np.float32,
    masked: float = MASKED,
) -> onnx.ModelProto:
    """One layer of a decoder: root-mean-square norms, rotated queries and keys, `groups` heads of
    keys, a causal mask with the additive number `masked`, a gated feed-forward block. The residual
    is multiplied by `scale` first."""
    n = Net(dtype)
    width = heads * depth
    x = n.op("Mul", n.input("x", 1, length, width), n.const(scale))
    h = norm(n, x, width)
    queries, keys = (
        rotated(n, split(n, h, count, length, depth), length, depth) for count in (heads, groups)
    )
    values = split(n, h, groups, length, depth)
    keys, values = (repeated(n, one, heads, groups, length, depth) for one in (keys, values))
    scores = n.op("MatMul", queries, n.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = n.op("Mul", scores, n.const(1 / math.sqrt(depth)))
    mask = np.where(np.tri(length, dtype=bool), 0, masked)[None, None]
    weights = n.op("Softmax", n.op("Add", scaled, n.const(mask)), axis=-1)
    mixed = n.op("Transpose", n.op("MatMul", weights, values), perm=[0, 2, 1, 3])
    joined = n.op("Reshape", mixed, n.ints(1, length, width))
    x = n.op("Add", x, n.op("MatMul", joined, n.weight(width, width)))
    x = fed_forward(n, x, width, inner)
    return n.model(norm(n, x, width))


def fed_forward(n: Net, x: str, width: int, inner: int) -> str:
    """x and what a norm, two projections, a gate and a third projection make of it."""
    return n.op("Add", x, gated(n, norm(n, x, width), width, inner))


def gated(n: Net, h: str, width: int, inner: int) -> str:
    """What two projections of h, a gate and a third projection make of it."""
    gate, up = (n.op("MatMul", h, n.weight(width, inner)) for _ in range(2))
    both = n.op("Mul", n.op("Mul", gate, n.op("Sigmoid", gate)), up)
    return n.op("MatMul", both, n.weight(inner, width))


def decoding(
    width: int = 256,
    heads: int = 4,
    groups: int = 2,
    inner: int = 896,
    cached: int = 64,
    dtype: type[np.generic] = np.float32,
    parallel: bool = False,
) -> onnx.ModelProto:
    """One token's step of a decoder's layer, after `cached` tokens whose keys and values are
    inputs; results are the new hidden states, keys and values. Where it is `parallel`, attention
    and the feed-forward block read the same norm."""
    n, depth = Net(dtype), width // heads
    x = n.input("x", 1, 1, width)
    past = [n.input(name, 1, groups, cached, depth) for name in ("keys", "values")]
    h = norm(n, x, width)
    q, k = (rotated(n, split(n, h, c, 1, depth), 1, depth) for c in (heads, groups))
    v = split(n, h, groups, 1, depth)
    keys, values = (n.op("Concat", *pair, axis=2) for pair in zip(past, (k, v), strict=True))
    many = [repeated(n, one, heads, groups, cached + 1, depth) for one in (keys, values)]
    scores = n.op("MatMul", q, n.op("Transpose", many[0], perm=[0, 1, 3, 2]))
    weights = n.op("Softmax", n.op("Mul", scores, n.const(1 / math.sqrt(depth))), axis=-1)
    mixed = n.op("Transpose", n.op("MatMul", weights, many[1]), perm=[0, 2, 1, 3])
    attended = n.op("MatMul", n.op("Reshape", mixed, n.ints(1, 1, width)), n.weight(width, width))
    if not parallel:
        x = n.op("Add", x, attended)
        h = norm(n, x, width)
    down = gated(n, h, width, inner)
    if parallel:
        x = n.op("Add", x, attended)
    return n.model(n.op("Add", x, down), keys, values)


def norm(n: Net, x: str, width: int) -> str:
    """x / sqrt(mean of squares + epsilon), spelled out, by a scale."""
    mean = n.op("ReduceMean", n.op("Pow", x, n.const(2)), axes=[-1], keepdims=1)
    root = n.op("Sqrt", n.op("Add", mean, n.const(1e-6 if n.dtype == np.float32 else 1e-5)))
    normal = n.op("Mul", x, n.op("Div", n.const(1), root))
    return n.op("Mul", n.const(1 + 0.1 * n.random.standard_normal(width)), normal)


def split(n: Net, h: str, count: int, length: int, depth: int) -> str:
    """A projection of h to some heads, which come before the rows."""
    width = int(n.inputs[0].type.tensor_type.shape.dim[2].dim_value)
    product = n.op("MatMul", h, n.weight(width, count * depth))
    apart = n.op("Reshape", product, n.ints(1, length, count, depth))
    return n.op("Transpose", apart, perm=[0, 2, 1, 3])


def rotated(n: Net, x: str, length: int, depth: int, before: int = 0) -> str:
    """x cos + (its halves swapped, one negated) sin, at the positions after `before` others."""
    at = (before + np.arange(length))[:, None] / 1e4 ** (np.arange(depth // 2) / (depth // 2))
    angles = np.concatenate([at, at], axis=1)[None, None]
    first, second = (
        n.op("Slice", x, n.ints(a), n.ints(b), n.ints(3))
        for a, b in ((0, depth // 2), (depth // 2, depth))
    )
    swapped = n.op("Concat", n.op("Neg", second), first, axis=-1)
    one = n.op("Mul", x, n.const(np.cos(angles)))
    return n.op("Add", one, n.op("Mul", swapped, n.const(np.sin(angles))))


def repeated(n: Net, x: str, heads: int, groups: int, length: int, depth: int) -> str:
    """Every head of keys or values, for each head of queries that shares it."""
    if heads == groups:
        return x
    wide = n.op("Unsqueeze", x, n.ints(2))
    many = n.op("Expand", wide, n.ints(1, groups, heads // groups, length, depth))
    return n.op("Reshape", many, n.ints(1, heads, length, depth))


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float32 model with float16 in every place of float32; numbers beyond it are its last."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for weight in made.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            array = np.clip(numpy_helper.to_array(weight), -65504, 65504)
            weight.CopyFrom(numpy_helper.from_array(array.astype(np.float16), weight.name))
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in made.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return made
