"""What a model computes before it runs, where its inputs have given extents: the shapes of all its
values, and those values that depend on shapes and constants alone."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.decided import DECIDING, Decide
from mcfuser.graph.evaluate import Unfolded, evaluate
from mcfuser.graph.rewrite.known import fixed_shape, inferred_types, literal
from mcfuser.graph.weights import OnnxArray, OnnxModel

_SHOWN = 4096
"""Elements of a constant that shape inference is shown: it may be a shape."""
_MOST = 256 << 20
"""Bytes that one value computed from shapes may have."""

Evaluations = dict[tuple[object, ...], dict[int, OnnxArray]]
"""Results of nodes by what they compute and from what: layers repeat the same shape arithmetic."""


@dataclass
class ShapeFacts:
    """The values of a model at one set of extents.

    `types` has every value whose type is known; `weights` are those of the graph, and `constants`
    the arrays that were needed so far; `makers` has the node of each value that depends on no
    input; `from_shapes` are those of them that depend on the shape of a value. `decide` gives the
    types of the results of nodes whose elements decide how many these have (graph.decided).
    """

    model: OnnxModel
    evaluations: Evaluations
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    weights: dict[str, TensorProto] = field(default_factory=dict)
    constants: dict[str, OnnxArray] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    from_shapes: set[str] = field(default_factory=set)
    decide: Decide | None = None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value; None where it is not known before the model runs."""
        return fixed_shape(self.types[name]) if name in self.types else None

    def dtype(self, name: str) -> int:
        """The number of a value's element type; 0 where it is not known."""
        return self.types[name].tensor_type.elem_type if name in self.types else 0

    def is_constant(self, name: str) -> bool:
        """Whether a value depends on no input's elements."""
        return name in self.constants or name in self.weights or name in self.makers

    def array(self, name: str) -> OnnxArray | None:
        """The elements of a value that depends on no input; None of any other, and where they
        cannot be computed here."""
        if name not in self.constants and name in self.weights:
            self.constants[name] = self.model.array(self.weights[name])
        elif name not in self.constants and name in self.makers:
            self._compute(self.makers[name])
        return self.constants.get(name)

    def _compute(self, node: onnx.NodeProto) -> None:
        inputs = {}
        for name in dict.fromkeys(filter(None, node.input)):
            array = self.array(name)
            if array is None:
                return
            inputs[name] = array
        key = _key(node, inputs)
        if key not in self.evaluations:
            results: dict[int, OnnxArray] = {}
            with contextlib.suppress(Unfolded):
                made = evaluate(node, inputs, self.model.proto.opset_import, _MOST)
                results = {i: made[n] for i, n in enumerate(node.output) if n}
            self.evaluations[key] = results
        for i, array in self.evaluations[key].items():
            _set(self, node.output[i], array)


def shape_facts(
    model: OnnxModel,
    evaluations: Evaluations,
    original: Collection[str],
    decide: Decide | None = None,
) -> ShapeFacts:
    """The facts about a model whose input shapes are fixed.

    A constant that is not an `original` one of the model was made when its operators were written
    out, perhaps from their shapes.
    """
    facts = ShapeFacts(model, evaluations, decide=decide)
    graph = model.proto.graph
    for value in graph.input:
        facts.types[value.name] = value.type
    for weight in graph.initializer:
        facts.types[weight.name] = helper.make_tensor_type_proto(weight.data_type, weight.dims)
        facts.weights[weight.name] = weight
        if weight.name not in original:
            facts.from_shapes.add(weight.name)
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] not in original:
            facts.from_shapes.add(node.output[0])
        _add(facts, node)
    return facts


def _add(facts: ShapeFacts, node: onnx.NodeProto) -> None:
    read = [name for name in node.input if name]
    if node.op_type == "Constant":
        if (tensor := literal(node)) is not None:
            _set(facts, node.output[0], numpy_helper.to_array(tensor))
        return
    if node.op_type in ("Shape", "Size"):
        shape = facts.shape(node.input[0])
        if shape is not None:
            given = {a.name: a.i for a in node.attribute}
            part = shape[given.get("start") : given.get("end")]
            numbers = np.prod(shape, dtype=np.int64) if node.op_type == "Size" else part
            _set(facts, node.output[0], np.asarray(numbers, np.int64))
            facts.from_shapes.add(node.output[0])
            return
    branches = any(a.HasField("g") or a.graphs for a in node.attribute)
    if read and not branches and all(facts.is_constant(name) for name in read):
        facts.makers.update((name, node) for name in node.output if name)
        if any(name in facts.from_shapes for name in read):
            facts.from_shapes.update(filter(None, node.output))
            facts.array(node.output[0])
    decided = node.op_type in DECIDING and not node.domain
    if decided and facts.is_constant(node.output[0]):
        facts.array(node.output[0])
    elif decided and facts.decide is not None:
        facts.types.update(facts.decide(node, facts))
    if not branches and any(facts.shape(name) is None for name in node.output if name):
        shown = {n: t for n in read if (t := _shown(facts, n)) is not None}
        opsets = facts.model.proto.opset_import
        facts.types.update(inferred_types(node, facts.types, shown, opsets))


def _set(facts: ShapeFacts, name: str, array: OnnxArray) -> None:
    facts.constants[name] = array
    facts.types[name] = helper.make_tensor_type_proto(
        helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def _shown(facts: ShapeFacts, name: str) -> TensorProto | None:
    """A small constant of integers as shape inference wants it."""
    shape = facts.shape(name)
    integers = facts.dtype(name) in (TensorProto.INT64, TensorProto.INT32)
    floats = facts.dtype(name) == TensorProto.FLOAT and name not in facts.makers
    if shape is None or np.prod(shape) > _SHOWN or not (integers or floats):
        return None
    array = facts.array(name)
    return None if array is None else numpy_helper.from_array(np.asarray(array), name)


def _key(node: onnx.NodeProto, inputs: Mapping[str, OnnxArray]) -> tuple[object, ...]:
    """What a node computes, and from what."""
    attributes = tuple(sorted(a.SerializeToString() for a in node.attribute))
    positions = {name: i for i, name in enumerate(inputs)}
    read = tuple(positions.get(name) for name in node.input)
    arrays = tuple((a.dtype.str, a.shape, _content(a)) for a in inputs.values())
    return node.op_type, node.domain, attributes, read, len(node.output), arrays


def _content(array: OnnxArray) -> object:
    """A hash of the bytes of an array."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()
