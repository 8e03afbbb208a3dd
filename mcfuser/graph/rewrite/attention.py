"""ONNX's own Attention, of opset 23 and later."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.scores import (
    Heads,
    Masking,
    attention,
    joined_heads,
    moved_window,
    split_heads,
    window,
)
from mcfuser.graph.weights import OnnxArray


def onnx_attention(body: NodeBody) -> list[str | None]:
    """Attention with masks, a cache of keys and values, and heads that share keys and values.

    The fourth result, the scores, is refused.
    """
    if body.wants(3):
        raise body.refusal("its output of scores ('qk_matmul_output') is not computed; drop it")
    query, key, value = body.reads(3)
    flat = len(body.shape(query)) == 3
    if flat:
        query = split_heads(body, query, body.attribute("q_num_heads", 0))
        key, value = (split_heads(body, x, body.attribute("kv_num_heads", 0)) for x in (key, value))
    past = 0
    if body.has(4):
        past = body.shape(body.read(4))[2]
        key = body.concat(2, body.read(4), key)
        value = body.concat(2, body.read(5), value)
    mixed = attention(body, Heads(query, key, value), _masking(body, query, key, past))
    return [joined_heads(body, mixed) if flat else mixed, key, value]


def _masking(body: NodeBody, query: str, key: str, past: int) -> Masking:
    rows, columns, depth = body.shape(query)[2], body.shape(key)[2], body.shape(query)[3]
    biases, allowed = list[str](), list[str | OnnxArray]()
    if (mask := body.input(3)) is not None:
        is_bool = body.dtype(mask) == TensorProto.BOOL
        mask = _widened(body, mask, columns, False if is_bool else -np.inf)
        (allowed if is_bool else biases).append(mask)
    left, right = (body.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    before, after = (None if bound < 0 else bound for bound in (left, right))
    if body.attribute("is_causal", 0):
        after = 0
    if (lengths := body.input(6)) is None:
        allowed.append(window(body, rows, columns, past, before, after))
    else:
        allowed += _within(body, lengths, rows, columns, before, after)
    return Masking(
        scale=body.attribute("scale", None) or 1 / math.sqrt(depth),
        softcap=body.attribute("softcap", 0.0),
        biases=biases,
        allowed=allowed,
        precision=body.attribute("softmax_precision", None),
        guarded=bool(biases or any(isinstance(a, str) for a in allowed) or before is not None),
    )


def _widened(body: NodeBody, mask: str, columns: int, beyond: float) -> str:
    """A mask with as many columns as there are keys; those that it lacks are forbidden."""
    *outer, given = body.shape(mask)
    if given in (1, columns):
        return mask
    body.room(*outer, columns)
    rest = body.const(np.full((*outer, columns - given), beyond), body.dtype(mask))
    return body.concat(len(outer), mask, rest)


def _within(
    body: NodeBody, lengths: str, rows: int, columns: int, before: int | None, after: int | None
) -> list[str | OnnxArray]:
    """The masks of a cache of which each sequence of the batch uses its first columns alone.

    The last row is at the last column that is used.
    """
    batch = body.shape(lengths)[0]
    used = body.cast(lengths, TensorProto.INT64)
    column = body.const(np.arange(columns).reshape(1, 1, 1, columns), TensorProto.INT64)
    within = body.op("Less", column, body.reshape(used, batch, 1, 1, 1))
    start = body.op("Sub", used, body.const(rows, TensorProto.INT64))
    return [within, *moved_window(body, start, rows, columns, before, after)]
