"""com.microsoft's Attention, QAttention and MultiHeadAttention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import real
from mcfuser.graph.rewrite.scores import (
    Heads,
    Masking,
    attention,
    joined_heads,
    split_heads,
    window,
)

_FILTER = -10000.0
"""What is added to scores that a mask forbids, where the node does not say it."""
_ONE_BUFFER = "its cache is one buffer ('past_present_share_buffer')"


def packed_attention(body: NodeBody) -> list[str | None]:
    """Attention: queries, keys and values are one product of the input with the weights.

    The cache, past and present, is one value: [2, batch, heads, positions, depth].
    """
    if body.has(6):
        raise body.refusal(_ONE_BUFFER)
    return _self_attention(body, body.op("MatMul", *body.reads(2)), mask=3, past=4, bias=5)


def quantized_attention(body: NodeBody) -> list[str | None]:
    """QAttention: Attention of quantized inputs by quantized weights."""
    x, weights = real(body, 0, 3, 6, axis=-2), real(body, 1, 4, 7, axis=-1)
    return _self_attention(body, body.op("MatMul", x, weights), mask=5, past=8, bias=None)


def _self_attention(
    body: NodeBody, whole: str, mask: int, past: int, bias: int | None
) -> list[str | None]:
    """Attention after the product that gives queries, keys and values, [batch, positions, their
    widths]; with the positions of its inputs: the mask, the cache, the bias of its scores."""
    if body.attribute("do_rotary", 0):
        raise body.refusal("it rotates queries and keys ('do_rotary')")
    if body.attribute("past_present_share_buffer", 0):
        raise body.refusal(_ONE_BUFFER)
    heads = body.attribute("num_heads", 0)
    if (row := body.input(2)) is not None:
        whole = body.op("Add", whole, row)
    third = body.shape(whole)[2] // 3
    widths = body.attribute("qkv_hidden_sizes", None) or [third] * 3
    ends = np.cumsum([0, *widths]).tolist()
    if len(set(widths)) == 1:
        parts = body.split(whole, 2, 3)
    else:
        parts = [body.slice(whole, 2, a, b) for a, b in pairwise(ends)]
    query, key, value = (split_heads(body, p, heads) for p in parts)
    before = 0
    if (cache := body.input(past)) is not None:
        _, batch, _, before, depth = body.shape(cache, 5)
        old = (body.reshape(p, batch, heads, before, depth) for p in body.split(cache, 0, 2))
        key, value = (body.concat(2, o, new) for o, new in zip(old, (key, value), strict=True))
    found = Heads(query, key, value)
    mixed = joined_heads(body, attention(body, found, _masking(body, found, before, mask, bias)))
    if not body.wants(1):
        return [mixed]
    both = (body.reshape(x, 1, *body.shape(x)) for x in (key, value))
    return [mixed, body.concat(0, *both)]


def multi_head_attention(body: NodeBody) -> list[str | None]:
    """MultiHeadAttention: queries, keys and values apart, or packed, or keys and values cached."""
    if body.wants(3):
        raise body.refusal("its output of scores ('qk') is not computed; drop it")
    if body.has(8) or body.has(9):
        raise body.refusal("its cache is one buffer ('past_sequence_length')")
    count = body.attribute("num_heads", 0)
    query, key, value = _three(body, count)
    past = 0
    if body.has(6):
        past = body.shape(body.read(6))[2]
        key = body.concat(2, body.read(6), key)
        value = body.concat(2, body.read(7), value)
    found = Heads(query, key, value)
    mixed = attention(body, found, _masking(body, found, past, 4, 5))
    return [joined_heads(body, mixed), key, value]


def _three(body: NodeBody, count: int) -> list[str]:
    """Queries, keys and values of MultiHeadAttention: [batch, heads, positions, depth] each."""
    query, key, value = (body.input(i) for i in range(3))
    assert query is not None
    given = [query, key, value]
    if key is None:  # [batch, positions, heads, 3, depth]
        given = list(_unpacked(body, query, 3))
    elif value is None:  # [batch, positions, heads, 2, depth]
        given = [query, *_unpacked(body, key, 2)]
    bias, start = body.input(3), 0
    made = []
    for x in given:
        assert x is not None
        if len(body.shape(x)) == 4 and x in (key, value):  # heads apart, biases added
            made.append(x)
            continue
        width = body.shape(x, 3)[2]
        if bias is not None:
            x = body.op("Add", x, body.slice(bias, 0, start, start + width))
        start += width
        made.append(split_heads(body, x, count))
    return made


def _unpacked(body: NodeBody, x: str, parts: int) -> Sequence[str]:
    """The parts of a packed input, [batch, positions, heads x depth] each."""
    batch, positions, heads, _, depth = body.shape(x, 5)
    apart = body.split(x, 3, parts)
    return [body.reshape(p, batch, positions, heads * depth) for p in apart]


def _masking(body: NodeBody, heads: Heads, past: int, mask: int, bias: int | None) -> Masking:
    """The masks of the inputs at positions `mask` and `bias`, if a node has such a one; of each
    row, later columns too where the node is unidirectional."""
    _, _, rows, depth = body.shape(heads.query, 4)
    columns = body.shape(heads.key)[2]
    biases = []
    if (given := body.input(mask)) is not None:
        biases.append(_padding(body, given, heads, past))
    if bias is not None and (given := body.input(bias)) is not None:
        biases.append(given)
    causal = bool(body.attribute("unidirectional", 0))
    return Masking(
        scale=body.attribute("scale", 0.0) or 1 / math.sqrt(depth),
        biases=biases,
        allowed=[window(body, rows, columns, past, None, 0)] if causal else [],
    )


def _padding(body: NodeBody, mask: str, heads: Heads, past: int) -> str:
    """What a mask of integers adds to the scores.

    It has ones for columns, [batch, columns] or [batch, rows, columns] or [batch, 1, positions,
    positions]; or the number of columns of each sequence, [batch], and after these numbers the
    first column of each.
    """
    batch, _, rows, _ = body.shape(heads.query, 4)
    columns = body.shape(heads.key)[2]
    extents = body.shape(mask)
    if len(extents) == 1:
        if extents[0] not in (batch, 2 * batch):
            raise body.refusal(f"its mask has the shape {extents}, for a batch of {batch}")
        column = body.const(np.arange(columns).reshape(1, columns), TensorProto.INT32)
        end, *start = (body.reshape(p, batch, 1) for p in body.split(mask, 0, extents[0] // batch))
        kept = body.op("Less", column, end)
        for first in start:
            kept = body.op("And", kept, body.op("Not", body.op("Less", column, first)))
        kept = body.reshape(kept, batch, 1, 1, columns)
    else:
        if len(extents) == 4:
            mask = body.slice(body.slice(mask, 2, past, past + rows), 3, 0, columns)
        elif len(extents) == 3:
            mask = body.reshape(mask, extents[0], 1, *extents[1:])
        else:
            mask = body.reshape(mask, extents[0], 1, 1, extents[1])
        kept = body.cast(mask, TensorProto.BOOL)
    dtype = body.dtype(heads.query)
    forbidden = body.attribute("mask_filter_value", _FILTER)
    return body.op("Where", kept, body.const(0.0, dtype), body.const(forbidden, dtype))
