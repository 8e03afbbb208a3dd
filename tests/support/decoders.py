"""Steps of decoders, whose keys and values are a cache and new rows side by side."""

from __future__ import annotations

import math

import numpy as np
import onnx

from tests.support.blocks import fed_forward, norm, repeated, rotated, split
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
    """One layer at fixed positions: norms, projections, rotated queries and keys, the cache of
    `groups` heads, softmax, projection, gated feed-forward block.

    It gives the new keys and values, too; where it is `whole`, the cache with them. A mask is an
    input where the layer is `masked`; new rows stand before the cache where they are `first`.
    """
    n = Net(dtype)
    width, total = heads * depth, cached + rows
    x = n.input("x", 1, rows, width)
    past = [n.input(name, 1, groups, cached, depth) for name in ("keys", "values")]
    normal = norm(n, x, width)
    q, k, v = (split(n, normal, count, rows, depth) for count in (heads, groups, groups))
    q, k = (rotated(n, one, rows, depth, cached) for one in (q, k))
    joined = [
        n.op("Concat", *((new, old) if first else (old, new)), axis=2)
        for old, new in zip(past, (k, v), strict=True)
    ]
    keys, values = (repeated(n, one, heads, groups, total, depth) for one in joined)
    scores = n.op("MatMul", q, n.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = n.op("Mul", scores, n.const(1 / math.sqrt(depth)))
    if masked:
        scores = n.op("Add", scores, n.input("mask", 1, 1, rows, total))
    mixed = n.op("MatMul", n.op("Softmax", scores, axis=-1), values)
    mixed = n.op("Reshape", n.op("Transpose", mixed, perm=[0, 2, 1, 3]), n.ints(1, rows, width))
    out = n.op("Add", x, n.op("MatMul", mixed, n.weight(width, width)))
    out = fed_forward(n, out, width, 2 * width)
    return n.model(out, *(joined if whole else (k, v)))
