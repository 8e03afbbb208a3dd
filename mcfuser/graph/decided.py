"""Operators whose results have as many elements as the elements of their operands decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import onnx
from onnx import TensorProto, helper

from mcfuser.graph.messages import inside
from mcfuser.graph.weights import OnnxArray

DECIDING = frozenset({"NonMaxSuppression", "NonZero"})
"""Operators of which as many elements are found as there are."""
_BEFORE = frozenset({"Compress"})
"""Operators that are written with them."""


class KnownModel(Protocol):
    """What is known of the values of a model before it runs."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value; None where it is not known."""

    def array(self, name: str) -> OnnxArray | None:
        """The elements of a constant; None of any other value."""


Decide = Callable[[onnx.NodeProto, KnownModel], Mapping[str, onnx.TypeProto]]
"""The types of a node's results, by name, where some number of elements is found; none where what
they are found in has no known shape."""


def decides(proto: onnx.ModelProto) -> bool:
    """Whether a model has such operators."""
    kinds = {n.op_type for n in inside(proto.graph, onnx.NodeProto) if not n.domain}
    return not kinds.isdisjoint(DECIDING | _BEFORE)


def most_found(node: onnx.NodeProto, known: KnownModel) -> int | None:
    """How many elements a node may find; None where that is not known."""
    if node.op_type == "NonZero":
        shape = known.shape(node.input[0])
        return None if shape is None else math.prod(shape)
    scores = known.shape(node.input[1])
    if scores is None:
        return None
    given = known.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    most = 0 if given is None else int(given.item())
    return math.prod(scores[:-1]) * min(scores[-1], max(most, 0))


def found_type(node: onnx.NodeProto, count: int, known: KnownModel) -> dict[str, onnx.TypeProto]:
    """The type of a node's result, by its name, where it finds so many elements."""
    rank = len(known.shape(node.input[0]) or ())
    shape = (rank, count) if node.op_type == "NonZero" else (count, 3)
    return {node.output[0]: helper.make_tensor_type_proto(TensorProto.INT64, shape)}


def found_extent(node: onnx.NodeProto, known: KnownModel) -> int | None:
    """How many elements a node finds, given its result's shape; None where that is not known."""
    shape = known.shape(node.output[0])
    return None if shape is None else shape[node.op_type == "NonZero"]
