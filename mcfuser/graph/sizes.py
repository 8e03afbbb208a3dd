"""How many bytes the values of a model take, from their shapes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx.shape_inference

from mcfuser.graph.constants import check_extents, element_bytes
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.refusal import refused

_SMALL = 1 << 16  # bytes of a constant that may be a shape
_PASSED_ON = 1_000_000  # numbers in all that shape inference may pass from node to node
_DIMENSIONS = 64  # of a tensor, and so numbers of its shape, at most
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial"})


def outline(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with each large constant of its graph as one more input.

    What only looks at names, types and shapes finds the same in it, in a fraction of the time.
    """
    made = onnx.ModelProto()
    made.ir_version = proto.ir_version
    made.opset_import.extend(proto.opset_import)
    graph, found = proto.graph, made.graph
    found.name = graph.name
    found.input.extend(graph.input)
    found.output.extend(graph.output)
    found.value_info.extend(graph.value_info)
    found.sparse_initializer.extend(graph.sparse_initializer)
    for weight in graph.initializer:
        if _is_large(weight):
            _as_input(found, weight, weight.name)
        else:
            found.initializer.add().CopyFrom(weight)
    for node in graph.node:
        values = [a.t for a in node.attribute if a.HasField("t") and _is_large(a.t)]
        if node.op_type == "Constant" and len(node.output) == len(values) == 1:
            _as_input(found, values[0], node.output[0])
        else:
            found.node.add().CopyFrom(node)
    return made


def check_sizes(proto: onnx.ModelProto, limits: ModelLimits) -> None:
    """Raises ModelError where a value, or all of them together, are larger than is allowed.

    The shapes of the inputs must be bound. Nothing is computed but shapes; of a value whose shape
    is not known before the model runs, the extents that are known count.
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
        "constant_bytes", computed,
        "constants that the model computes have {} bytes more than what they are made from",
    )  # fmt: skip


def inferred_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that onnx infers; raises ModelError where that fails.

    Rows of numbers are passed on from node to node, for they may be shapes, where these rows are
    short in all: onnx keeps a message for each number, also of a row that is no shape.
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
    """The size of a value; that of the largest where it is a sequence or the like."""
    found = _Size()
    for tensor in inside(value.type, onnx.TypeProto.Tensor):
        extents = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
        limits.check("rank", len(tensor.shape.dim), f"value '{value.name}' has {{}} dimensions")
        elements = check_extents(extents, f"value '{value.name}'", limits)
        found = _Size(elements, max(found.bytes, element_bytes(tensor.elem_type, elements)))
    return found


def _computed(graph: onnx.GraphProto, sizes: Mapping[str, _Size]) -> int:
    """Bytes of the constants that folding computes, less those of as many elements as they read.

    A weight that is transposed or widened has as many; a mask made from a shape does not. None
    has more elements than all weights together without having grown.
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
    """Numbers in all values of one dimension, as far as that is known."""
    shapes = (v.type.tensor_type.shape.dim for v in inside(graph, onnx.ValueInfoProto))
    return sum(max(0, dims[0].dim_value) for dims in shapes if len(dims) == 1)


def _joined(graph: onnx.GraphProto) -> int:
    """A bound on the numbers in the rows that Concat joins, where their shapes are not known."""
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


def _is_large(tensor: onnx.TensorProto) -> bool:
    return element_bytes(tensor.data_type, math.prod(tensor.dims)) > _SMALL


def _as_input(graph: onnx.GraphProto, weight: onnx.TensorProto, name: str) -> None:
    tensor = graph.input.add(name=name).type.tensor_type
    tensor.elem_type = weight.data_type
    for extent in weight.dims:
        tensor.shape.dim.add(dim_value=extent)
