"""Sequences of tensors. How many a sequence has, and which, is known before the model runs: so each
becomes the names of its tensors, and no operator of sequences is left."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody


def construct(body: NodeBody) -> list[str | None]:
    """SequenceConstruct: the inputs, in order."""
    return [body.sequence(list(body.node.input))]


def empty(body: NodeBody) -> list[str | None]:
    """SequenceEmpty."""
    return [body.sequence([])]


def insert(body: NodeBody) -> list[str | None]:
    """SequenceInsert: one tensor more, before a position or at the end."""
    items = body.items(0)
    at = _position(body, 2, len(items), len(items) + 1)
    return [body.sequence([*items[:at], body.read(1), *items[at:]])]


def erase(body: NodeBody) -> list[str | None]:
    """SequenceErase: without the tensor at a position, or the last one."""
    items = body.items(0)
    at = _position(body, 1, len(items) - 1, len(items))
    return [body.sequence([*items[:at], *items[at + 1 :]])]


def at(body: NodeBody) -> list[str | None]:
    """SequenceAt: the tensor at a position."""
    items = body.items(0)
    return [items[_position(body, 1, len(items) - 1, len(items))]]


def length(body: NodeBody) -> list[str | None]:
    """SequenceLength: how many tensors there are, a number without dimensions."""
    return [body.const(len(body.items(0)), TensorProto.INT64)]


def concatenation(body: NodeBody) -> list[str | None]:
    """ConcatFromSequence: the tensors joined along an axis, which is new if `new_axis`."""
    items = body.items(0)
    if not items:
        raise body.refusal("its sequence has no tensor")
    return [joined(body, items, body.attribute("axis", 0), body.attribute("new_axis", 0) == 1)]


def parts(body: NodeBody) -> list[str | None]:
    """SplitToSequence: a tensor's parts along an axis, of one extent, of given ones, or single
    rows, whose axis is left out if keepdims is 0."""
    x = body.read(0)
    shape = body.shape(x)
    axis = body.attribute("axis", 0) % len(shape)
    extent = shape[axis]
    if not body.has(1):
        rows = divided(body, x, axis)
        if body.attribute("keepdims", 1) == 1:
            rows = [body.reshape(row, *shape[:axis], 1, *shape[axis + 1 :]) for row in rows]
        return [body.sequence(rows)]
    given = body.array(body.read(1))
    if given is None:
        raise body.refusal("the extents of its parts are known only at run time")
    if given.ndim == 0:
        each = int(given)
        if each < 1:
            raise body.refusal(f"a part should have an extent of {each}")
        extents = [min(each, extent - start) for start in range(0, extent, each)]
    else:
        extents = [int(e) for e in given]
    if sum(extents) != extent or min(extents, default=0) < 0:
        raise body.refusal(f"its parts have the extents {extents}, and the axis has {extent}")
    found, start = [], 0
    for e in extents:
        found.append(body.slice(x, axis, start, start + e))
        start += e
    return [body.sequence(found)]


def same(body: NodeBody) -> list[str | None] | None:
    """Identity: of a sequence, the sequence; of a tensor it stays."""
    name = body.read(0)
    return [name] if name in body.known.sequences else None


def divided(body: NodeBody, x: str, axis: int) -> list[str]:
    """The tensors at each position of an axis, which they lack."""
    shape = body.shape(x)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return [body.reshape(row, *rest) for row in body.split(x, axis, shape[axis])]


def joined(body: NodeBody, items: Sequence[str], axis: int, new: bool) -> str:
    """Tensors of one rank joined along an axis, which is new if `new`."""
    rank = len(body.shape(items[0])) + new
    axis %= rank
    if new:
        shapes = [body.shape(item) for item in items]
        items = [
            body.reshape(item, *shape[:axis], 1, *shape[axis:])
            for item, shape in zip(items, shapes, strict=True)
        ]
    return body.concat(axis, *items)


def _position(body: NodeBody, number: int, default: int, end: int) -> int:
    """The position in a sequence that an input of the node gives, counted from 0; it is below
    `end`. Raises ModelError where it is not, or is known only at run time."""
    if not body.has(number):
        place = default
    else:
        given = body.array(body.read(number))
        if given is None or given.size != 1:
            raise body.refusal("the position in its sequence is known only at run time")
        place = int(given.reshape(()))
        place += len(body.items(0)) if place < 0 else 0
    if not 0 <= place < end:
        raise body.refusal(
            f"its sequence has {len(body.items(0))} tensors, and position {place} is outside of it"
        )
    return place
