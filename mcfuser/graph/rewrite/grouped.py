"""com.microsoft's GroupQueryAttention: causal attention with a cache, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.movement import placed, rows_at
from mcfuser.graph.rewrite.normalization import by_root_mean_square
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
    12: "its cache is quantized ('k_scale')",
    13: "its cache is quantized ('v_scale')",
    16: "its rows are padded ('query_seqlens')",
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
    if body.wants(3):
        raise body.refusal("its output of scores ('output_qk') is not computed; drop it")
    query, key, value = _three(body)
    query, key = _normalized(body, query, 14, "q"), _normalized(body, key, 15, "k")
    place = _place(body, body.shape(query)[1])
    if body.attribute("do_rotary", 0):
        query, key = _turned(body, query, key, place)
    query, key, value = (body.transpose(x, 0, 2, 1, 3) for x in (query, key, value))
    if body.attribute("sliding_window_cache", 0):
        return _within_window(body, Heads(query, key, value), place)
    if body.has(3):
        key = _cached(body, body.read(3), key, place)
        value = _cached(body, body.read(4), value, place)
    masking = _masking(body, query, _allowed(body, place))
    mixed = attention(body, Heads(query, key, value), masking)
    return [joined_heads(body, mixed), key, value]


def _normalized(body: NodeBody, x: str, position: int, name: str) -> str:
    """[batch, positions, heads, depth], each head divided by its root mean square and multiplied by
    the weights [depth] at a position of the node's inputs, if there are any."""
    weights = body.input(position)
    if weights is None:
        return x
    small = body.attribute("qk_norm_epsilon", 1e-6)
    small = body.attribute(f"{name}_norm_epsilon", small)
    y, _ = by_root_mean_square(body, x, weights, [3], small)
    return y


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
    columns = body.shape(cache, 4)[2]
    column = body.const(np.arange(columns).reshape(1, 1, columns, 1), TensorProto.INT64)
    end = _end(body, start, rows)
    zero = body.const(np.zeros(()), body.dtype(cache))
    return body.op("Where", body.op("Less", column, end), cache, zero)


def _allowed(body: NodeBody, place: _Place) -> list[str | OnnxArray]:
    """The masks of a cache whose columns are positions: causal, perhaps within a window that ends
    at each row."""
    start, rows, columns = place.start, place.rows, place.columns
    if not body.attribute("causal", 1):
        return _filled(body, place)
    before = _width(body) - 1 if _width(body) > 0 else None
    if isinstance(start, int):
        return [window(body, rows, columns, start, before, 0)]
    return moved_window(body, start, rows, columns, before, 0)


def _filled(body: NodeBody, place: _Place) -> list[str | OnnxArray]:
    """The mask of the columns of a cache that hold something."""
    start, rows, column = place.start, place.rows, np.arange(place.columns)
    if isinstance(start, int):
        return [(column < start + rows).reshape(1, -1)]
    end = _end(body, start, rows)
    return [body.op("Less", body.const(column, TensorProto.INT64), end)]


def _end(body: NodeBody, start: str, rows: int) -> str:
    """The position behind the new ones, which begin at `start`: [batch, 1, 1, 1]."""
    return body.op("Add", _each(body, start), body.const(rows, TensorProto.INT64))


def _width(body: NodeBody) -> int:
    """How many positions a row sees, itself included; less than one is no bound."""
    return int(body.attribute("local_window_size", -1))


def _masking(body: NodeBody, query: str, allowed: Sequence[str | OnnxArray]) -> Masking:
    """What is done to the scores of queries [batch, heads, rows, depth]."""
    bias, sink = body.input(10), body.input(11)
    if sink is not None:
        sink = body.reshape(sink, 1, -1, 1, 1)
    elif body.attribute("smooth_softmax", 0) == 1:
        sink = body.const(0.0, TensorProto.FLOAT)
    return Masking(
        scale=body.attribute("scale", 0.0) or 1 / math.sqrt(body.shape(query)[3]),
        softcap=body.attribute("softcap", 0.0),
        biases=[] if bias is None else [bias],
        allowed=allowed,
        sink=sink,
    )


# --- a cache that holds the last positions alone ---------------------------------------------


@dataclass(frozen=True, slots=True)
class _Window:
    """A cache of `capacity` rows, of which so many as `width` are needed, and new `rows`.

    `before` is the number of positions before these, [batch, 1, 1, 1] of int64, and `held` that of
    the last ones of them, which the cache has from its first row on.
    """

    capacity: int
    width: int
    rows: int
    before: str
    held: str


def _within_window(body: NodeBody, new: Heads, place: _Place) -> list[str | None]:
    """Attention with a cache that loses its oldest positions, and the cache after it."""
    if body.has(10):
        raise body.refusal("it has a bias ('attention_bias') and the cache of a window")
    past, width, rows = (body.read(3), body.read(4)), _width(body), place.rows
    batch, _, capacity, _ = body.shape(past[0], 4)
    if not 0 < width <= capacity:
        raise body.refusal(f"its cache has {capacity} rows, and its window {width} positions")
    start = place.start
    if isinstance(start, int):
        start = body.ints([start] * batch)
    before = _each(body, start)
    cache = _Window(capacity, width, rows, before, _held(body, before, capacity, width))
    key, value = (body.concat(2, p, n) for p, n in zip(past, (new.key, new.value), strict=True))
    masking = _masking(body, new.query, _seen(body, cache))
    mixed = attention(body, Heads(new.query, key, value), masking)
    row = _moved_rows(body, cache)
    return [joined_heads(body, mixed), *(_picked(body, x, row) for x in (key, value))]


def _held(body: NodeBody, positions: str, capacity: int, width: int) -> str:
    """How many of the first so many positions a cache holds: all that it can, or, when it was full,
    fewer by what it has beyond the window."""
    spare = capacity - width + 1
    over = body.op("Add", positions, body.const(spare - 1 - capacity, TensorProto.INT64))
    lost = body.op("Div", over, body.const(spare, TensorProto.INT64))
    lost = body.op("Max", lost, body.const(0, TensorProto.INT64))
    return body.op("Sub", positions, body.op("Mul", lost, body.const(spare, TensorProto.INT64)))


def _seen(body: NodeBody, cache: _Window) -> list[str | OnnxArray]:
    """The masks of the rows that are held, and the new ones behind the cache."""
    row = body.const(np.arange(cache.rows).reshape(1, 1, -1, 1), TensorProto.INT64)
    column = np.arange(cache.capacity + cache.rows).reshape(1, 1, 1, -1)
    old = column < cache.capacity
    # positions, counted from the first new one
    since = body.const(np.where(old, column, column - cache.capacity), TensorProto.INT64)
    moved = body.op("Where", body.const(old, TensorProto.BOOL), cache.held,
                    body.const(0, TensorProto.INT64))  # fmt: skip
    since = body.op("Sub", since, moved)
    behind = body.op("Sub", row, since)
    seen = body.op("Less", behind, body.const(cache.width, TensorProto.INT64))
    ahead = body.op("Less", behind, body.const(0, TensorProto.INT64))
    number = np.where(old, column, -1)
    there = body.op("Less", body.const(number, TensorProto.INT64), cache.held)
    return [seen, body.op("Not", ahead), there]


def _moved_rows(body: NodeBody, cache: _Window) -> str:
    """Which row of the cache and the new ones behind it each row of the next cache is,
    [batch, 1, capacity, 1]; behind those that hold something it is any one."""
    after = body.op("Add", cache.before, body.const(cache.rows, TensorProto.INT64))
    kept = _held(body, after, cache.capacity, cache.width)
    lost = body.op("Sub", body.op("Add", cache.held, body.ints([cache.rows])), kept)
    index = body.const(np.arange(cache.capacity).reshape(1, 1, -1, 1), TensorProto.INT64)
    row = body.op("Add", index, lost)
    empty = body.op("Sub", body.ints([cache.capacity]), cache.held)
    row = body.op("Where", body.op("Less", row, cache.held), row, body.op("Add", row, empty))
    return body.op("Min", row, body.ints([cache.capacity + cache.rows - 1]))


def _picked(body: NodeBody, x: str, row: str) -> str:
    """Rows of [batch, heads, rows, depth], by their numbers [batch, 1, rows, 1]."""
    batch, heads, _, depth = body.shape(x, 4)
    count = body.shape(row, 4)[2]
    if batch == 1:
        return body.op("Gather", x, body.reshape(row, count), axis=2)
    return rows_at(body, x, row, (batch, heads, count, depth))


def _each(body: NodeBody, x: str) -> str:
    """[batch] as [batch, 1, 1, 1]: a number for each sequence's scores."""
    return body.reshape(x, -1, 1, 1, 1)
