"""Weights that folding constants does not read.

onnxruntime writes the folded model with all its weights, 3.4 GB of a diffusion model, though it has
changed none of them. So those that nothing constant is computed from are inputs of the model
meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import onnx
from onnx import helper

from mcfuser.graph.weights import (
    OnnxModel,
    constant_names,
    names_elsewhere,
    names_read,
    operand_readers,
)

_TAKEN: Mapping[str, int] = MappingProxyType({"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0})
"""Operators that take a weight with a value that is computed, and which of their inputs it is."""
_ABSORBED = frozenset({"Add", "Mul", "BatchNormalization"})
"""Operators that onnxruntime makes a part of the convolution before them, whose weights change."""
_NORM = "BatchNormalization"
"""One that it makes a part of the matrix product before it, too, past what moves elements."""


def with_weights_as_inputs(model: OnnxModel, names: Collection[str]) -> OnnxModel:
    """The model with inputs in place of some weights, after the inputs that it has."""
    made = onnx.ModelProto()
    made.CopyFrom(model.proto)
    graph = made.graph
    others = [w for w in graph.initializer if w.name not in names]
    graph.input.extend(
        helper.make_tensor_value_info(w.name, w.data_type, w.dims)
        for w in graph.initializer
        if w.name in names
    )
    del graph.initializer[:]
    graph.initializer.extend(others)
    return OnnxModel(made, {n: a for n, a in model.weights.items() if n not in names})


def with_weights_back(folded: OnnxModel, model: OnnxModel, names: Collection[str]) -> OnnxModel:
    """The folded model with those weights of the `model` that were inputs, if it still reads
    them."""
    proto = onnx.ModelProto()
    proto.CopyFrom(folded.proto)
    graph = proto.graph
    inputs = [i for i in graph.input if i.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    read = names_read(graph)
    back = [w for w in model.proto.graph.initializer if w.name in names and w.name in read]
    graph.initializer.extend(back)
    return OnnxModel(proto, {**folded.weights, **{w.name: model.weights[w.name] for w in back}})


def unread_weights(model: OnnxModel) -> frozenset[str]:
    """The weights, of those that are arrays, that onnxruntime computes nothing from."""
    graph = model.proto.graph
    readers = operand_readers(graph)
    elsewhere = names_elsewhere(graph) | {i.name for i in graph.input}
    fixed = constant_names(graph)
    normed = any(n.op_type == _NORM for n in graph.node)

    def taken(node: onnx.NodeProto, i: int) -> bool:
        """Whether a node multiplies by a weight, or looks up its rows, and it stays as it is."""
        if node.domain or _TAKEN.get(node.op_type) != i or node.input[1 - i] in fixed:
            return False
        if node.op_type == "Gather":
            return True
        if node.op_type != "Conv":
            return not normed
        return not any(
            after.op_type in _ABSORBED and any(x in fixed for x in after.input)
            for after, _ in readers.get(node.output[0], ())
        )

    return frozenset(
        name
        for name in model.weights
        if name not in elsewhere and name in readers and all(taken(n, i) for n, i in readers[name])
    )
