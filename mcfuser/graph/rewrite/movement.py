"""Operators that move elements: to places that are known only as the model runs, or as ONNX's own
do that onnxruntime has twice."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, defs, helper

from mcfuser.graph.rewrite.body import NodeBody


def placed(body: NodeBody, cache: str, new: str, start: str, circular: bool = False) -> str:
    """A cache, [batch, heads, columns, depth], with new columns from `start`, [batch] of int64.

    Those past its end are lost, or come to its beginning where it is circular.
    """
    batch, heads, columns, depth = body.shape(cache, 4)
    rows = body.shape(new, 4)[2]
    body.room(columns)
    column = body.const(np.arange(columns).reshape(1, 1, columns, 1), TensorProto.INT64)
    since = body.op("Sub", column, body.reshape(start, batch, 1, 1, 1))
    if circular:
        since = body.op("Mod", since, body.const(columns, TensorProto.INT64))
    within = body.op("Less", since, body.const(rows, TensorProto.INT64))
    if not circular:
        before = body.op("Less", since, body.const(0, TensorProto.INT64))
        within = body.op("And", within, body.op("Not", before))
    if rows > 1:
        lowest, highest = (body.const(n, TensorProto.INT64) for n in (0, rows - 1))
        index = body.op("Clip", since, lowest, highest)
        new = rows_at(body, new, index, (batch, heads, columns, depth))
    return body.op("Where", within, new, cache)


def rows_at(body: NodeBody, x: str, index: str, shape: tuple[int, ...]) -> str:
    """Rows of [batch, heads, rows, depth] by their numbers, which broadcast to the `shape` of the
    result."""
    index = body.op("Expand", index, body.ints(shape))
    return body.op("GatherElements", x, index, axis=2)


def concatenation(body: NodeBody) -> list[str | None] | None:
    """A Concat without the parts that have no elements, as a cache before the first step."""
    parts = body.reads(len(body.node.input))
    axis, shapes = body.attribute("axis", 0), [body.known.shape(p) for p in parts]
    left = [p for p, s in zip(parts, shapes, strict=True) if s is None or 0 not in s]
    if len(left) == len(parts) or not left:
        return None
    return [body.op("Identity", left[0]) if len(left) == 1 else body.concat(axis, *left)]


def scattered_rows(body: NodeBody) -> list[str | None] | None:
    """A ScatterElements along the first dimension whose positions are one for each row, repeated
    over it, as exporters write what is put into some rows: a ScatterND of whole rows."""
    x, places, new = (body.read(i) for i in range(3))
    repeated, known = body.known.expanded.get(places), body.known
    shapes = [known.shape(n) for n in (x, places, new, repeated or "")]
    if repeated is None or any(s is None for s in shapes):
        return None
    data, all_places, changes, own = (s or () for s in shapes)
    along = int(body.attribute("axis", 0)) % max(1, len(data))
    wide = (1,) * (len(data) - len(own)) + own
    whole = along == 0 and len(data) > 1 and changes == all_places and changes[1:] == data[1:]
    if not whole or math.prod(wide[1:]) > 1 or wide[0] != changes[0]:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in body.node.attribute if a.name != "axis"}
    return [body.op("ScatterND", x, body.reshape(repeated, -1, 1), new, **given)]


def tensor_scatter(body: NodeBody) -> list[str | None]:
    """ONNX's TensorScatter: new rows written into a cache, for each sequence from its own index."""
    cache, new = body.reads(2)
    extents = body.shape(cache)
    axis = body.attribute("axis", -2) % len(extents)
    batch, inner, outer = extents[0], math.prod(extents[axis + 1 :]), math.prod(extents[1:axis])
    start = body.input(2)
    if start is None:
        start = body.ints([0] * batch)
    flat = [
        body.reshape(x, batch, outer, body.shape(x, len(extents))[axis], inner)
        for x in (cache, new)
    ]
    circular = body.attribute("mode", "linear") == "circular"
    made = placed(body, flat[0], flat[1], body.cast(start, TensorProto.INT64), circular)
    return [body.reshape(made, *extents)]


def reverse_sequence(body: NodeBody) -> list[str | None]:
    """ONNX's ReverseSequence: the first elements of each sequence in the opposite order."""
    x, lengths = body.reads(2)
    extents = body.shape(x)
    time, batch = body.attribute("time_axis", 0), body.attribute("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise body.refusal(f"its axes {time} and {batch} are not 0 and 1")
    rank, count = len(extents), extents[time]
    along = [1] * rank
    along[time] = count
    position = body.const(np.arange(count).reshape(along), TensorProto.INT64)
    along[time], along[batch] = 1, extents[batch]
    length = body.reshape(body.cast(lengths, TensorProto.INT64), *along)
    opposite = body.op("Sub", body.op("Sub", length, body.const(1, TensorProto.INT64)), position)
    index = body.op("Where", body.op("Less", position, length), opposite, position)
    return [body.op("GatherElements", x, body.op("Expand", index, body.ints(extents)), axis=time)]


def one_hot(body: NodeBody) -> list[str | None]:
    """ONNX's OneHot, of a depth that is known."""
    indices, depth, values = body.reads(3)
    count = body.array(depth)
    if count is None:
        raise body.refusal(f"its depth '{depth}' is not known before the model runs")
    width, extents = int(np.asarray(count, np.int64).reshape(())), body.shape(indices)
    axis = body.attribute("axis", -1) % (len(extents) + 1)
    body.room(*extents, width)
    index = body.cast(indices, TensorProto.INT64)
    index = body.reshape(index, *extents[:axis], 1, *extents[axis:])
    along = [1] * (len(extents) + 1)
    along[axis] = width
    zero, whole = (body.const(n, TensorProto.INT64) for n in (0, width))
    index = body.op("Where", body.op("Less", index, zero), body.op("Add", index, whole), index)
    classes = body.const(np.arange(width).reshape(along), TensorProto.INT64)
    off, on = (body.reshape(v) for v in body.split(values, 0, 2))
    return [body.op("Where", body.op("Equal", index, classes), on, off)]


def unit_matrix(body: NodeBody) -> list[str | None]:
    """EyeLike: ones on a diagonal of a matrix, a constant."""
    x = body.read(0)
    rows, columns = body.shape(x, 2)
    body.room(rows, columns)
    dtype = body.attribute("dtype", None) or body.dtype(x)
    return [body.const(np.eye(rows, columns, k=body.attribute("k", 0)), dtype)]


_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes of GridSample, and their names since opset 20."""


def as_onnx(body: NodeBody) -> list[str | None]:
    """An operator of com.microsoft that ONNX has, too, with the same inputs and attributes. Raises
    ModelError where the model's opset lacks it."""
    kind = body.node.op_type
    try:
        since = defs.get_schema(kind, body.opset).since_version
    except defs.SchemaError as error:
        raise body.refusal(f"ONNX has no such operator in opset {body.opset}") from error
    attributes = {a.name: body.attribute(a.name, None) for a in body.node.attribute}
    if kind == "GridSample" and since >= 20 and (mode := attributes.get("mode")) is not None:
        attributes["mode"] = _MODES.get(mode, mode)
    return [body.op(kind, *body.node.input, **attributes)]


def expanded(body: NodeBody) -> list[str | None]:
    """com.microsoft's ExpandDims: one dimension of extent 1 more, at a constant place."""
    x = body.read(0)
    extents = list(body.shape(x))
    extents.insert(int(body.elements(1).reshape(-1)[0]) % (len(extents) + 1), 1)
    return [body.reshape(x, *extents)]


def counted(body: NodeBody) -> list[str | None]:
    """com.microsoft's Range: by steps of 1, if it has no others."""
    first, limit = body.reads(2)
    step = body.input(2)
    return [body.op("Range", first, limit, body.like(1, first) if step is None else step)]
