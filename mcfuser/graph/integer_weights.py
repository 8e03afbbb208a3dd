"""Weights that are integers, kept as such until what reads them is compiled.

Folding constants would write each as a float, of four times its bytes, or eight. So while a model
is folded and imported, such weights are inputs of it: what is computed from them alone, as their
product with scales, is written in the module, and becomes part of the kernels that multiply by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

import onnx
import tvm
from onnx import TensorProto, helper

from mcfuser.graph.tensors import tensor_over
from mcfuser.graph.unread import with_weights_as_inputs
from mcfuser.graph.weights import (
    NARROW_TYPES,
    OnnxArray,
    OnnxModel,
    constant_names,
    names_elsewhere,
    operand_readers,
)

LEAST = 1 << 12
"""The fewest elements of a matrix that is kept: smaller ones are faster as floats."""
LEAST_OF_WINDOWS, CHANNELS = 1 << 8, 4
"""The fewest elements and channels of a convolution's weights that are kept. It multiplies each of
them many times, and its channels at once, if there are as many (lowering.tensorir.dots)."""
_MOVING = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that move numbers."""
_SCALING = frozenset({"Add", "BitShift", "Cast", "Mod", "Mul", "Sub"}) | _MOVING
"""Operators that make real numbers of integers, or move them."""
_MULTIPLYING: Mapping[str, int] = MappingProxyType({"MatMul": 1, "Gemm": 1, "Conv": 1})
"""Operators that multiply by weights, and which of their inputs these are."""


def without_integer_weights(model: OnnxModel) -> tuple[OnnxModel, dict[str, OnnxArray]]:
    """The model with inputs in place of those integer weights that it multiplies by, after the
    inputs that it has, and the weights by their names, in that order."""
    graph = model.proto.graph
    kept = [w for w in graph.initializer if _is_large(w, LEAST_OF_WINDOWS)]
    readers = _Readers(graph)
    held = {w.name: model.array(w) for w in kept if readers.multiplied(w)}
    if not held:
        return model, {}
    return with_weights_as_inputs(model, held.keys()), held


def with_integer_weights(module: tvm.IRModule, held: Mapping[str, OnnxArray]) -> tvm.IRModule:
    """The module with weights in place of the last parameters of `main`."""
    if not held:
        return module
    main = module["main"]
    last = main.params[len(main.params) - len(held) :]
    values = {p: tensor_over(a) for p, a in zip(last, held.values(), strict=True)}
    made = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    bound = main.bind_params(values)
    made["main"] = bound.with_attr("num_input", len(bound.params))
    return made


def scaled_weights(graph: onnx.GraphProto) -> set[str]:
    """What is made of integer weights by scaling or moving them, as real numbers are."""
    made = {w.name for w in graph.initializer if _is_large(w)}
    if made:
        for node in graph.node:
            if node.op_type in _SCALING and not made.isdisjoint(node.input):
                made.update(node.output)
    return made


def _is_large(weight: TensorProto, least: int = LEAST) -> bool:
    return weight.data_type in NARROW_TYPES and math.prod(weight.dims) >= least


class _Readers:
    """What reads the values of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constant = constant_names(graph)
        self.by_name = operand_readers(graph)
        self.elsewhere = names_elsewhere(graph)
        self.dequantized = set(_dequantized(graph, self.constant))

    def multiplied(self, weight: TensorProto) -> bool:
        """Whether a constant is multiplied by, once it is scaled, and read by nothing else."""
        return self._multiplied(weight.name, weight)

    def _multiplied(self, name: str, weight: TensorProto) -> bool:
        if name in self.elsewhere or name not in self.by_name:
            return False
        return all(self._multiplies(node, i, weight) for node, i in self.by_name[name])

    def _multiplies(self, node: onnx.NodeProto, i: int, weight: TensorProto) -> bool:
        if node.domain:
            return False
        if _MULTIPLYING.get(node.op_type) == i:
            if node.op_type == "Conv":
                return node.input[0] in self.dequantized and _convolves(node, weight)
            return node.input[0] not in self.constant and _is_large(weight)
        scaled = node.op_type in _SCALING and node.output[0] in self.constant
        return scaled and self._multiplied(node.output[0], weight)


def _convolves(node: onnx.NodeProto, weight: TensorProto) -> bool:
    """Whether a convolution keeps its weights: it is not in groups, and has enough channels."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    positions = weight.dims[0] * math.prod(given.get("kernel_shape", ()))
    enough = math.prod(weight.dims) >= CHANNELS * positions
    return bool(given.get("group", 1) == 1 and enough)


def _dequantized(graph: onnx.GraphProto, constant: AbstractSet[str]) -> Iterator[str]:
    """The real values that are made of integers alone, of those that the model computes, and of
    constants."""
    whole = {i.name for i in graph.input if i.type.tensor_type.elem_type in NARROW_TYPES}
    real = set[str]()
    for node in graph.node:
        others = [x for x in node.input if x not in constant]
        if node.domain or node.op_type not in _SCALING or not others:
            continue
        to = next((a.i for a in node.attribute if a.name == "to"), TensorProto.UNDEFINED)
        moved = node.op_type in _MOVING and whole.issuperset(others)
        if moved or to in NARROW_TYPES:
            whole.update(node.output)
        elif (whole | real).issuperset(others):
            real.update(node.output)
            yield from node.output
