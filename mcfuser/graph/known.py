"""What is known of an ONNX graph's values before it runs: shapes, readers, ranges of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from mcfuser.graph.sizes import inferred_shapes, outline
from mcfuser.graph.weights import OnnxArray, OnnxModel, is_declared, operand_readers

_MOST = 1 << 20
"""Elements of a constant whose least and largest one are looked for."""
_STEPS = 32
_ALL = 1 << 31
"""The end of a row of extents that has all of them."""
_SAME = frozenset({
    "Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Expand", "Tile",
    "Transpose",
})  # fmt: skip
"""Operators whose results have the elements of their first operand, and no others."""
_VALUES = {"value_float": "f", "value_int": "i", "value_floats": "floats", "value_ints": "ints"}


@dataclass(frozen=True)
class Known:
    """A graph whose inputs have fixed shapes; the shapes of its values by name, as far as they are
    inferred; and the readers of each value, with the number of the operand."""

    graph: onnx.GraphProto
    shapes: Mapping[str, tuple[int, ...]]
    readers: Mapping[str, tuple[tuple[onnx.NodeProto, int], ...]]
    weights: Mapping[str, OnnxArray]
    _made_by: Mapping[str, onnx.NodeProto]
    _tensors: Mapping[str, onnx.TensorProto]
    _intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)

    def shape(self, node: onnx.NodeProto, i: int) -> tuple[int, ...] | None:
        """The shape of a node's operand; None where it is missing or not known."""
        return self.shapes.get(node.input[i]) if i < len(node.input) else None

    def extent(self, node: onnx.NodeProto, i: int, axis: int) -> int | None:
        """One extent of a node's operand; None where it is not known."""
        extents = self.shape(node, i)
        return extents[axis] if extents and -len(extents) <= axis < len(extents) else None

    def integer(self, node: onnx.NodeProto, name: str, default: int) -> int:
        """An attribute of a node."""
        return next((a.i for a in node.attribute if a.name == name), default)

    def interval(self, name: str) -> tuple[float, float] | None:
        """The least and the largest element of a constant, of a Range whose length is known, or of
        the extents of a shape; None where the value is none of these, or very large."""
        if name not in self._intervals:
            self._intervals[name] = self._found(name)
        return self._intervals[name]

    def _found(self, name: str) -> tuple[float, float] | None:
        for _ in range(_STEPS):
            if name in self.weights or name in self._tensors:
                return self._of_weight(name)
            node = self._made_by.get(name)
            if node is None:
                return None
            if node.op_type in ("Constant", "ConstantOfShape"):
                return _of_node(node)
            if node.op_type == "Range":
                return self._of_range(node)
            if node.op_type == "Shape":
                extents = self._extents(node)
                return _ends(np.asarray(extents)) if extents else None
            if node.op_type == "Gather":
                return self._of_extent(node)
            if node.op_type not in _SAME:
                return None
            name = node.input[0]
        return None

    def _of_weight(self, name: str) -> tuple[float, float] | None:
        if name in self.weights:
            return _ends(self.weights[name])
        tensor = self._tensors[name]
        if is_declared(tensor) or math.prod(tensor.dims) > _MOST:
            return None
        return _ends(numpy_helper.to_array(tensor))

    def _of_range(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """The numbers of a Range that counts up by ones, from a constant."""
        first, step = self.interval(node.input[0]), self.interval(node.input[2])
        extents = self.shapes.get(node.output[0])
        if first is None or step != (1.0, 1.0) or not extents:
            return None
        return first[0], first[0] + extents[0] - 1

    def _extents(self, node: onnx.NodeProto) -> tuple[int, ...] | None:
        """What a Shape gives."""
        shape = self.shape(node, 0)
        start, end = self.integer(node, "start", 0), self.integer(node, "end", _ALL)
        return None if shape is None else shape[start:end]

    def _of_extent(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """The extent that a Gather picks from what a Shape gives."""
        source, index = self._made_by.get(node.input[0]), self.interval(node.input[1])
        if source is None or source.op_type != "Shape" or index is None or index[0] != index[1]:
            return None
        extents, place = self._extents(source), int(index[0])
        if extents is None or not -len(extents) <= place < len(extents):
            return None
        return float(extents[place]), float(extents[place])


def known(model: OnnxModel) -> Known:
    """What is known of a model whose inputs have fixed shapes. Raises ModelError where its shapes
    contradict each other."""
    graph = model.proto.graph
    inferred = inferred_shapes(outline(model.proto)).graph
    shapes = {}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    tensors = {t.name: t for t in graph.initializer}
    shapes |= {name: tuple(t.dims) for name, t in tensors.items()}
    made_by: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        made_by.update(dict.fromkeys(node.output, node))
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
    every = {name: tuple(read) for name, read in operand_readers(graph).items()}
    return Known(graph, shapes, every, model.weights, made_by, tensors)


def _of_node(node: onnx.NodeProto) -> tuple[float, float] | None:
    """The ends of what a Constant or ConstantOfShape node holds."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            if math.prod(attribute.t.dims) > _MOST:
                return None
            return _ends(numpy_helper.to_array(attribute.t))
        if attribute.name in _VALUES:
            return _ends(np.asarray(getattr(attribute, _VALUES[attribute.name])))
    return (0.0, 0.0) if node.op_type == "ConstantOfShape" else None


def _ends(array: OnnxArray) -> tuple[float, float] | None:
    if not 0 < array.size <= _MOST or array.dtype.kind in "SUOc":
        return None
    numbers = np.asarray(array).astype(np.float64)
    return float(numbers.min()), float(numbers.max())
