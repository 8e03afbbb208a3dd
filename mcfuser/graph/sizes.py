"""The bytes that the values of a model take, computed from their shapes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx.shape_inference

from mcfuser.graph.constants import check_extents, element_bytes, is_large
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.refusal import refused

_PASSED_ON = 1_000_000  # numbers that shape inference may propagate in all
_DIMENSIONS = 64  # the largest rank, and so the largest length of a shape
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial"})


def outline(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each large constant of its graph replaced by an input of the same shape.

    Names, types and shapes are the same, so checks of these give the same results much faster.
    """
    made = onnx.ModelProto()
    made.ir_version = proto.ir_version
    made.opset_import.extend(proto.opset_import)
    graph, light = proto.graph, made.graph
    light.name = graph.name
    light.input.extend(graph.input)
    light.output.extend(graph.output)
    light.value_info.extend(graph.value_info)
    light.sparse_initializer.extend(graph.sparse_initializer)
    for weight in graph.initializer:
        if is_large(weight):
            _as_input(light, weight, weight.name)
        else:
            light.initializer.add().CopyFrom(weight)
    for node in graph.node:
        values = [a.t for a in node.attribute if a.HasField("t") and is_large(a.t)]
        if node.op_type == "Constant" and len(node.output) == len(values) == 1:
            _as_input(light, values[0], node.output[0])
        else:
            light.node.add().CopyFrom(node)
    return made


def check_sizes(proto: onnx.ModelProto, limits: ModelLimits) -> None:
    """Raises ModelError where a value, or all values together, exceed the limits.

    Input shapes must be fixed. Only shapes are computed; where one is known only at run time, its
    known extents count.
    """
    for value in proto.graph.input:
        _size(value, limits)
    inferred = inferred_shapes(outline(proto))
    sizes = {v.name: _size(v, limits) for v in inside(inferred.graph, onnx.ValueInfoProto)}
    total = sum(s.bytes for s in sizes.values())
    limits.check("total_bytes", total, "the values of the model have {} bytes in all")
    for graph in inside(proto.graph, onnx.GraphProto):
        sizes |= {w.name: _Size(math.prod(w.dims)) for w in graph.initializer}
    computed = _computed(proto.graph, sizes)
    limits.check(
        "constant_bytes",
        computed,
        "constants that the model computes have {} bytes more than what they are made from",
    )


def inferred_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that onnx infers; raises ModelError where that fails.

    One-dimensional constants, which may be shapes, are propagated from node to node, unless there
    are very many elements: onnx needs a message for each of them.
    """
    with refused("the shapes in the model are not valid"):
        inferred = onnx.shape_inference.infer_shapes(proto)
        if _rows(inferred.graph) + _joined(inferred.graph) > _PASSED_ON:
            return inferred
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)


@dataclass(frozen=True, slots=True)
class _Size:
    elements: int = 0
    bytes: int = 0


def _size(value: onnx.ValueInfoProto, limits: ModelLimits) -> _Size:
    """The size of a value; of a sequence or optional value, that of its largest tensor."""
    largest = _Size()
    for tensor in inside(value.type, onnx.TypeProto.Tensor):
        extents = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
        limits.check("rank", len(tensor.shape.dim), f"value '{value.name}' has {{}} dimensions")
        elements = check_extents(extents, f"value '{value.name}'", limits)
        largest = _Size(elements, max(largest.bytes, element_bytes(tensor.elem_type, elements)))
    return largest


def _computed(graph: onnx.GraphProto, sizes: Mapping[str, _Size]) -> int:
    """The bytes by which the constants that folding computes exceed the constants that they read.

    A transposed or converted weight has as many elements as it reads; a mask made from a shape has
    more. No node is taken to read more elements than all weights have together.
    """
    constants = {w.name for g in inside(graph, onnx.GraphProto) for w in g.initializer}
    weights = sum(math.prod(t.dims) for t in inside(graph, onnx.TensorProto))
    total = 0
    for node in inside(graph, onnx.NodeProto):
        fixed = all(name in constants for name in node.input if name)
        if not fixed or node.op_type in _RANDOM:
            continue
        constants.update(node.output)
        if node.op_type == "Constant":
            continue
        read = min(weights, sum(sizes.get(n, _Size()).elements for n in set(node.input)))
        for name in node.output:
            size = sizes.get(name, _Size())
            if size.elements > read:
                total += size.bytes * (size.elements - read) // size.elements
    return total


def _rows(graph: onnx.GraphProto) -> int:
    """The number of elements of all one-dimensional values of known length."""
    shapes = (v.type.tensor_type.shape.dim for v in inside(graph, onnx.ValueInfoProto))
    return sum(max(0, dims[0].dim_value) for dims in shapes if len(dims) == 1)


def _joined(graph: onnx.GraphProto) -> int:
    """A bound on the number of elements that Concat nodes join, where shapes are not known."""
    lengths = {w.name: math.prod(w.dims) for w in graph.initializer}
    tables = {v.name for v in inside(graph, onnx.ValueInfoProto) if _rank(v) > 1}
    total = 0
    for node in inside(graph, onnx.NodeProto):
        given = [lengths.get(name, _DIMENSIONS) for name in node.input if name not in tables]
        given += [math.prod(a.t.dims) for a in node.attribute if a.HasField("t")]
        joined = node.op_type == "Concat"
        length = min(sum(given) if joined else max(given, default=1), _PASSED_ON)
        lengths.update(dict.fromkeys(node.output, length))
        total += length if joined else 0
    return total


def _rank(value: onnx.ValueInfoProto) -> int:
    """The number of dimensions; 0 where it is not known."""
    return len(value.type.tensor_type.shape.dim)


def _as_input(graph: onnx.GraphProto, weight: onnx.TensorProto, name: str) -> None:
    tensor = graph.input.add(name=name).type.tensor_type
    tensor.elem_type = weight.data_type
    for extent in weight.dims:
        tensor.shape.dim.add(dim_value=extent)
