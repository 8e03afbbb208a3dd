"""Steps of decoders, whose keys and values are a cache and new rows side by side."""

from __future__ import annotations

import math

import numpy as np
import onnx

from tests.support.nets import Net


def decoder(
    rows: int = 1,
    cached: int = 33,
    heads: int = 4,
    groups: int = 2,
    depth: int = 16,
    dtype: type[np.generic] = np.float32,
    masked: bool = False,
    first: bool = False,
    whole: bool = False,
) -> onnx.ModelProto:
    """One layer's attention at fixed positions: projections, rotated queries and keys, the cache
    of `groups` heads, softmax, projection, residual. It gives the new keys and values, too; where
    it is `whole`, the cache with them. A mask is an input where the layer is `masked`; new rows
    stand before the cache where they are `first`."""
    n = Net(dtype)
    width, total = heads * depth, cached + rows
    x = n.input("x", 1, rows, width)
    past = [n.input(name, 1, groups, cached, depth) for name in ("keys", "values")]
    q, k, v = (_heads(n, x, count, rows, depth) for count in (heads, groups, groups))
    q, k = _rotated(n, q, rows, cached, depth), _rotated(n, k, rows, cached, depth)
    joined = [
        n.op("Concat", *((new, old) if first else (old, new)), axis=2)
        for old, new in zip(past, (k, v), strict=True)
    ]
    keys, values = (_repeated(n, one, heads, groups, total, depth) for one in joined)
    scores = n.op("MatMul", q, n.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = n.op("Mul", scores, n.const(1 / math.sqrt(depth)))
    if masked:
        scores = n.op("Add", scores, n.input("mask", 1, 1, rows, total))
    mixed = n.op("MatMul", n.op("Softmax", scores, axis=-1), values)
    mixed = n.op("Reshape", n.op("Transpose", mixed, perm=[0, 2, 1, 3]), n.ints(1, rows, width))
    out = n.op("Add", x, n.op("MatMul", mixed, n.weight(width, width)))
    return n.model(out, *(joined if whole else (k, v)))


def _heads(n: Net, x: str, count: int, rows: int, depth: int) -> str:
    width = int(n.inputs[0].type.tensor_type.shape.dim[2].dim_value)
    product = n.op("MatMul", x, n.weight(width, count * depth))
    split = n.op("Reshape", product, n.ints(1, rows, count, depth))
    return n.op("Transpose", split, perm=[0, 2, 1, 3])


def _rotated(n: Net, x: str, rows: int, before: int, depth: int) -> str:
    """x cos + (its halves swapped, one negated) sin, at the positions after `before`."""
    at = (before + np.arange(rows))[:, None] / 1e4 ** (np.arange(depth // 2) / (depth // 2))
    angles = np.concatenate([at, at], axis=1)[None, None]
    low, high = (
        n.op("Slice", x, n.ints(a), n.ints(b), n.ints(3))
        for a, b in ((0, depth // 2), (depth // 2, depth))
    )
    swapped = n.op("Concat", n.op("Neg", high), low, axis=-1)
    one = n.op("Mul", x, n.const(np.cos(angles)))
    return n.op("Add", one, n.op("Mul", swapped, n.const(np.sin(angles))))


def _repeated(n: Net, x: str, heads: int, groups: int, length: int, depth: int) -> str:
    """Every head of keys or values, for each head of queries that shares it."""
    if heads == groups:
        return x
    wide = n.op("Unsqueeze", x, n.ints(2))
    many = n.op("Expand", wide, n.ints(1, groups, heads // groups, length, depth))
    return n.op("Reshape", many, n.ints(1, heads, length, depth))
