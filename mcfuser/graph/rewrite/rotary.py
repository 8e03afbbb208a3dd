"""Rotary embeddings: pairs of a head's numbers, turned by an angle that grows with the position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of the angles, [batch or 1, positions, pairs] each.

    Pairs are neighbours where `interleaved`; else the first half of the numbers with the second.
    """

    cosine: str
    sine: str
    interleaved: bool


def looked_up(
    body: NodeBody, cosines: str, sines: str, positions: str, interleaved: bool
) -> Rotation:
    """The rotation of positions, [batch, positions], by tables: [positions, pairs]."""
    cosine, sine = (body.op("Gather", table, positions, axis=0) for table in (cosines, sines))
    return Rotation(cosine, sine, interleaved)


def rotated(body: NodeBody, x: str, rotation: Rotation) -> str:
    """x, [batch, positions, heads, depth], with the first numbers of each head turned in pairs."""
    batch, positions, heads, depth = body.shape(x, 4)
    rows, _, pairs = body.shape(rotation.cosine, 3)
    cosine, sine = (
        body.reshape(t, rows, positions, 1, pairs) for t in (rotation.cosine, rotation.sine)
    )
    turning = body.slice(x, 3, 0, 2 * pairs)
    if rotation.interleaved:
        apart = body.reshape(turning, batch, positions, heads, pairs, 2)
        ends = (body.slice(apart, 4, i, i + 1) for i in (0, 1))
        a, b = (body.reshape(e, batch, positions, heads, pairs) for e in ends)
    else:
        a, b = (body.slice(turning, 3, i * pairs, (i + 1) * pairs) for i in (0, 1))
    first = body.op("Sub", body.op("Mul", a, cosine), body.op("Mul", b, sine))
    second = body.op("Add", body.op("Mul", a, sine), body.op("Mul", b, cosine))
    if rotation.interleaved:
        ends = (body.reshape(e, batch, positions, heads, pairs, 1) for e in (first, second))
        turned = body.reshape(body.concat(4, *ends), batch, positions, heads, 2 * pairs)
    else:
        turned = body.concat(3, first, second)
    if 2 * pairs == depth:
        return turned
    return body.concat(3, turned, body.slice(x, 3, 2 * pairs, depth))


def onnx_rotary(body: NodeBody) -> list[str | None]:
    """ONNX's RotaryEmbedding: of heads apart, or in one row; tables, or angles of each position."""
    x, cosine, sine = body.reads(3)
    interleaved = bool(body.attribute("interleaved", 0))
    if (positions := body.input(3)) is not None:
        rotation = looked_up(body, cosine, sine, positions, interleaved)
    else:
        rotation = Rotation(cosine, sine, interleaved)
    return [_of_either_form(body, x, rotation, body.attribute("num_heads", 0))]


def microsoft_rotary(body: NodeBody) -> list[str | None]:
    """com.microsoft's RotaryEmbedding: positions may be given by the first one."""
    x, positions, cosine, sine = body.reads(4)
    if body.attribute("is_packed_batching", 0):
        raise body.refusal("it packs its batch ('is_packed_batching')")
    if len(body.shape(positions)) == 1:
        count = body.shape(x)[-2]
        steps = body.const(np.arange(count).reshape(1, count), TensorProto.INT64)
        positions = body.op("Add", body.reshape(positions, 1, 1), steps)
    rotation = looked_up(body, cosine, sine, positions, bool(body.attribute("interleaved", 0)))
    heads = body.attribute("num_heads", 0)
    if not heads and len(body.shape(x)) == 3:
        heads = body.shape(x)[2] // (2 * body.shape(cosine)[1])
    return [body.scaled(_of_either_form(body, x, rotation, heads), body.attribute("scale", 1.0))]


def _of_either_form(body: NodeBody, x: str, rotation: Rotation, heads: int) -> str:
    """x rotated: [batch, heads, positions, depth] or [batch, positions, heads x depth]."""
    extents = body.shape(x)
    if len(extents) == 4:
        turned = rotated(body, body.transpose(x, 0, 2, 1, 3), rotation)
        return body.transpose(turned, 0, 2, 1, 3)
    batch, positions, width = extents
    apart = body.reshape(x, batch, positions, heads, width // heads)
    return body.reshape(rotated(body, apart, rotation), batch, positions, width)
