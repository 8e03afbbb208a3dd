"""Whether a model is written with the same nodes at two shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def first_difference(one: onnx.GraphProto, other: onnx.GraphProto) -> str | None:
    """The first node that one of two graphs has and the other has not; None where they are equal
    but for their constants."""
    for a, b in zip(one.node, other.node, strict=False):
        if _form(a) != _form(b):
            return f"operator '{a.op_type}' (node '{a.name}')"
    if len(one.node) != len(other.node):
        more: Sequence[onnx.NodeProto] = max(one.node, other.node, key=len)
        extra = more[min(len(one.node), len(other.node))]
        return f"operator '{extra.op_type}' (node '{extra.name}')"
    return None


def _form(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = [] if node.op_type == "Constant" else node.attribute
    written = sorted(a.SerializeToString(deterministic=True) for a in attributes)
    return node.op_type, node.domain, tuple(node.input), tuple(node.output), tuple(written)
