"""com.microsoft's GroupQueryAttention: causal attention with a cache, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.movement import placed
from mcfuser.graph.rewrite.rotary import looked_up, rotated
from mcfuser.graph.rewrite.scores import (
    Heads,
    Masking,
    attention,
    joined_heads,
    moved_window,
    window,
)
from mcfuser.graph.weights import OnnxArray

_REFUSED = {
    11: "its softmax has a sink ('head_sink')",
    12: "its cache is quantized ('k_scale')",
    13: "its cache is quantized ('v_scale')",
}
"""Inputs that are not accepted, by position."""


_SHARED = "past_present_share_buffer"
"""The attribute that marks a node whose cache is one buffer, which other operators of this domain
have."""


def mark_shared(graph: onnx.GraphProto, outputs: Collection[str]) -> None:
    """Marks the nodes that compute caches among these outputs: such a cache is one buffer before
    and after, and what lies behind the new positions stays. Of others that is zero."""
    for node in graph.node:
        if node.op_type == "GroupQueryAttention" and not {*node.output[1:3]}.isdisjoint(outputs):
            node.attribute.append(helper.make_attribute(_SHARED, 1))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the new positions are in the cache.

    `start` is the first one: a number, or [batch] of int64. The cache has `columns` in the end.
    """

    start: int | str
    rows: int
    columns: int


def group_query_attention(body: NodeBody) -> list[str | None]:
    """GroupQueryAttention: the mixed values, and the cache of keys and of values."""
    for position, why in _REFUSED.items():
        if body.has(position):
            raise body.refusal(why)
    if body.attribute("smooth_softmax", 0) == 1:
        raise body.refusal("its softmax has a sink ('smooth_softmax')")
    if body.wants(3):
        raise body.refusal("its output of scores ('output_qk') is not computed; drop it")
    query, key, value = _three(body)
    place = _place(body, body.shape(query)[1])
    if body.attribute("do_rotary", 0):
        query, key = _turned(body, query, key, place)
    query, key, value = (body.transpose(x, 0, 2, 1, 3) for x in (query, key, value))
    if body.has(3):
        key = _cached(body, body.read(3), key, place)
        value = _cached(body, body.read(4), value, place)
    mixed = attention(body, Heads(query, key, value), _masking(body, query, place))
    return [joined_heads(body, mixed), key, value]


def _three(body: NodeBody) -> list[str]:
    """Queries, keys and values: [batch, positions, heads, depth] each."""
    heads, shared = body.attribute("num_heads", 0), body.attribute("kv_num_heads", 0)
    query = body.read(0)
    batch, rows, width = body.shape(query, 3)
    if body.has(1):
        depth, given = width // heads, body.reads(3)
    else:
        depth = width // (heads + 2 * shared)
        ends = (0, heads * depth, (heads + shared) * depth, (heads + 2 * shared) * depth)
        given = [body.slice(query, 2, a, b) for a, b in pairwise(ends)]
    counts = (heads, shared, shared)
    return [body.reshape(x, batch, rows, n, depth) for x, n in zip(given, counts, strict=True)]


def _place(body: NodeBody, rows: int) -> _Place:
    """Where the new positions are. Raises ModelError where the length of the whole is not known."""
    total = body.array(body.read(6))
    if total is None or total.size != 1:
        raise body.refusal(
            "the number of all positions ('total_sequence_length') is not known before the model "
            "runs; compute it from shapes, or make it a constant"
        )
    whole = int(np.asarray(total, np.int64).reshape(()))
    past = body.shape(body.read(3), 4)[2] if body.has(3) else 0
    columns = max(whole, past)
    if whole == rows:
        return _Place(0, rows, columns)
    lengths = body.array(body.read(5))
    if lengths is not None and np.unique(lengths).size == 1:
        return _Place(int(np.asarray(lengths, np.int64).flat[0]) + 1 - rows, rows, columns)
    last = body.cast(body.reshape(body.read(5), -1), TensorProto.INT64)
    start = body.op("Add", last, body.const(1 - rows, TensorProto.INT64))
    return _Place(start, rows, columns)


def _turned(body: NodeBody, query: str, key: str, place: _Place) -> tuple[str, str]:
    """Queries and keys, turned by the angles of their positions."""
    batch, rows = body.shape(query)[:2]
    positions = body.input(9)
    if positions is None:
        steps = np.arange(rows).reshape(1, rows)
        if isinstance(place.start, int):
            positions = body.const(steps + place.start, TensorProto.INT64)
        else:
            counted = body.const(steps, TensorProto.INT64)
            positions = body.op("Add", body.reshape(place.start, batch, 1), counted)
    interleaved = bool(body.attribute("rotary_interleaved", 0))
    rotation = looked_up(body, body.read(7), body.read(8), positions, interleaved)
    return rotated(body, query, rotation), rotated(body, key, rotation)


def _cached(body: NodeBody, past: str, new: str, place: _Place) -> str:
    """The cache with the new positions in their place: [batch, heads, columns, depth].

    What is behind them is zero; where the cache is one buffer before and after, it is the old
    cache's.
    """
    batch, heads, held, depth = body.shape(past, 4)
    start, rows, columns = place.start, place.rows, place.columns
    shared = bool(body.attribute(_SHARED, 0))
    if held < columns:
        past = body.concat(2, past, _nothing(body, past, (batch, heads, columns - held, depth)))
    if not isinstance(start, int):
        made = placed(body, past, new, start)
        return made if shared else _valid(body, made, start, rows)
    behind = (batch, heads, columns - start - rows, depth)
    parts = [body.slice(past, 2, 0, start)] if start else []
    if behind[2] > 0:
        rest = body.slice(past, 2, start + rows, columns) if shared else None
        parts += [new, rest if rest is not None else _nothing(body, past, behind)]
        return body.concat(2, *parts)
    return body.concat(2, *parts, new)


def _nothing(body: NodeBody, cache: str, shape: tuple[int, ...]) -> str:
    """Positions of a cache that hold zeros."""
    body.room(*shape)
    return body.const(np.zeros(shape), body.dtype(cache))


def _valid(body: NodeBody, cache: str, start: str, rows: int) -> str:
    """The cache with zeros behind the last of the new positions, which begin at `start`."""
    batch, _, columns, _ = body.shape(cache, 4)
    column = body.const(np.arange(columns).reshape(1, 1, columns, 1), TensorProto.INT64)
    end = body.op("Add", body.reshape(start, batch, 1, 1, 1), body.const(rows, TensorProto.INT64))
    zero = body.const(np.zeros(()), body.dtype(cache))
    return body.op("Where", body.op("Less", column, end), cache, zero)


def _masking(body: NodeBody, query: str, place: _Place) -> Masking:
    """Causal, perhaps within a window that ends at each row."""
    width = body.attribute("local_window_size", -1)
    before = width - 1 if width > 0 else None
    allowed: list[str | OnnxArray]
    if isinstance(place.start, int):
        allowed = [window(body, place.rows, place.columns, place.start, before, 0)]
    else:
        allowed = moved_window(body, place.start, place.rows, place.columns, before, 0)
    bias = body.input(10)
    return Masking(
        scale=body.attribute("scale", 0.0) or 1 / math.sqrt(body.shape(query)[3]),
        softcap=body.attribute("softcap", 0.0),
        biases=[] if bias is None else [bias],
        allowed=allowed,
    )
