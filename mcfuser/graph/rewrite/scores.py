"""Attention as products and a softmax, for all operators that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NARROW, NodeBody
from mcfuser.graph.weights import OnnxArray


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries, keys and values: [batch, heads, positions, depth] each.

    Keys and values have the same number of heads, which divides that of the queries.
    """

    query: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Masking:
    """What is done to scores, [batch, heads, rows, columns], before their softmax.

    They are multiplied by `scale`, and capped at `softcap` where that is not 0. `biases` are added.
    Then those that one of the bools in `allowed` forbids become `forbidden`. Biases and bools have
    shapes that broadcast to the scores'. `precision` is the element type of the softmax. A row
    without any allowed column has weights of zero where `guarded`. `sink` is the score of one more
    column, which has no value; its shape broadcasts to that of a column of scores.
    """

    scale: float
    softcap: float = 0.0
    biases: Sequence[str] = ()
    allowed: Sequence[str | OnnxArray] = ()
    forbidden: float = -np.inf
    precision: int | None = None
    guarded: bool = False
    sink: str | None = None


def split_heads(body: NodeBody, x: str, heads: int) -> str:
    """[batch, positions, heads x depth] as [batch, heads, positions, depth]."""
    batch, positions, width = body.shape(x, 3)
    if heads < 1 or width % heads:
        raise body.refusal(f"{width} numbers of '{x}' cannot be divided among {heads} heads")
    apart = body.reshape(x, batch, positions, heads, width // heads)
    return body.transpose(apart, 0, 2, 1, 3)


def joined_heads(body: NodeBody, x: str) -> str:
    """[batch, heads, positions, depth] as [batch, positions, heads x depth]."""
    batch, heads, positions, depth = body.shape(x, 4)
    return body.reshape(body.transpose(x, 0, 2, 1, 3), batch, positions, heads * depth)


def attention(body: NodeBody, heads: Heads, masking: Masking) -> str:
    """The values, weighted by the softmax of the scores: [batch, heads, rows, depth].

    Heads of queries that share a head of keys and values are rows of one product.
    """
    batch, count, rows, depth = body.shape(heads.query, 4)
    _, shared, columns, width = body.shape(heads.value, 4)
    if count % shared:
        raise body.refusal(f"its {count} heads cannot share {shared} heads of keys and values")
    query, scale = heads.query, masking.scale
    if body.dtype(query) in NARROW:  # scores that are not scaled may overflow
        query, scale = body.scaled(query, scale), 1.0
    query = body.reshape(query, batch, shared, -1, depth)
    scores = body.op("MatMul", query, body.transpose(heads.key, 0, 1, 3, 2))
    scores = body.scaled(body.reshape(scores, batch, count, rows, columns), scale)
    weights = body.reshape(_weights(body, scores, masking), batch, shared, -1, columns)
    return body.reshape(body.op("MatMul", weights, heads.value), batch, count, rows, width)


def _weights(body: NodeBody, scores: str, masking: Masking) -> str:
    """The softmax of scores."""
    dtype = body.dtype(scores)
    if masking.softcap:
        tanh = body.op("Tanh", body.scaled(scores, 1 / masking.softcap))
        scores = body.scaled(tanh, masking.softcap)
    for bias in masking.biases:
        scores = body.op("Add", scores, bias)
    allowed = _conjunction(body, masking.allowed)
    if allowed is not None:
        scores = body.op("Where", allowed, scores, body.const(masking.forbidden, dtype))
    scores = body.cast(scores, masking.precision or dtype)
    weights = body.softmax(scores) if masking.sink is None else _drained(body, scores, masking.sink)
    if masking.guarded and (masking.biases or allowed is not None):
        zero = body.const(0.0, body.dtype(weights))
        empty = body.op("IsNaN", body.widened(weights))
        weights = body.op("Where", empty, zero, weights)
    return body.cast(weights, dtype)


def _drained(body: NodeBody, scores: str, sink: str) -> str:
    """The softmax of scores and a sink, without the sink's weight. A sink that is far above all
    scores makes an infinite sum of them, and weights of zero."""
    wide, last = body.widened(scores), len(body.shape(scores)) - 1
    top = body.reduced("ReduceMax", wide, [last], kept=True)
    above = body.op("Exp", body.op("Sub", wide, top))
    rest = body.op("Exp", body.op("Sub", body.cast(sink, body.dtype(wide)), top))
    whole = body.op("Add", body.sum(above, last, kept=True), rest)
    return body.cast(body.op("Div", above, whole), body.dtype(scores))


def _conjunction(body: NodeBody, allowed: Sequence[str | OnnxArray]) -> str | None:
    """What all masks allow; those that are known are one constant. None where that is
    everything."""
    fixed = np.ones((), np.bool_)
    others = []
    for mask in allowed:
        if isinstance(mask, str):
            others.append(mask)
        else:
            fixed = fixed & mask.astype(np.bool_)
    if not fixed.all():
        others.insert(0, body.const(fixed, TensorProto.BOOL))
    whole = None
    for mask in others:
        whole = mask if whole is None else body.op("And", whole, mask)
    return whole


def window(
    body: NodeBody, rows: int, columns: int, offset: int, before: int | None, after: int | None
) -> OnnxArray:
    """Whether row i may read column j: i + offset - before <= j <= i + offset + after.

    None is no bound on that side.
    """
    body.room(rows, columns)
    distance = np.arange(columns)[None, :] - (np.arange(rows)[:, None] + offset)
    allowed = np.ones((rows, columns), np.bool_)
    if before is not None:
        allowed &= distance >= -before
    if after is not None:
        allowed &= distance <= after
    return allowed


def moved_window(
    body: NodeBody, start: str, rows: int, columns: int, before: int | None, after: int | None
) -> list[str | OnnxArray]:
    """As `window`, with an offset for each sequence of the batch: `start`, [batch] of int64."""
    body.room(rows, columns)
    batch = body.shape(start)[0]
    first = body.reshape(start, batch, 1, 1, 1)
    row = np.arange(rows).reshape(1, 1, rows, 1)
    column = body.const(np.arange(columns).reshape(1, 1, 1, columns), TensorProto.INT64)
    masks: list[str | OnnxArray] = []
    if before is not None:
        least = body.op("Add", first, body.const(row - before, TensorProto.INT64))
        masks.append(body.op("Not", body.op("Less", column, least)))
    if after is not None:
        end = body.op("Add", first, body.const(row + after + 1, TensorProto.INT64))
        masks.append(body.op("Less", column, end))
    return masks
