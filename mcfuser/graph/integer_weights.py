"""Weights that are integers, kept as such until what reads them is compiled.

Folding constants would write each as a float, of four times its bytes, or eight. So while a model
is folded and imported, such weights are inputs of it: what is computed from them alone, as their
product with scales, is written in the module, and becomes part of the kernels that multiply by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import onnx
import tvm
from onnx import TensorProto, helper

from mcfuser.graph.messages import inside
from mcfuser.graph.tensors import tensor_over
from mcfuser.graph.weights import (
    NARROW_TYPES,
    OnnxArray,
    OnnxModel,
    names_read,
    operand_readers,
)

LEAST = 1 << 12
"""The fewest elements of a weight that is kept: smaller ones are faster as floats."""
_SCALING = frozenset({
    "Add", "BitShift", "Cast", "Identity", "Mod", "Mul", "Reshape", "Squeeze", "Sub", "Transpose",
    "Unsqueeze",
})  # fmt: skip
"""Operators that make real numbers of integers, or move them."""
_MULTIPLYING: Mapping[str, int] = MappingProxyType({"MatMul": 1, "Gemm": 1})
"""Operators that multiply by a matrix, and which of their inputs it is."""


def without_integer_weights(model: OnnxModel) -> tuple[OnnxModel, dict[str, OnnxArray]]:
    """The model with inputs in place of those integer weights that it multiplies by, after the
    inputs that it has, and the weights by their names, in that order."""
    graph = model.proto.graph
    kept = [w for w in graph.initializer if _is_large(w)]
    readers = _Readers(graph)
    held = {w.name: model.array(w) for w in kept if readers.multiplied(w.name)}
    if not held:
        return model, {}
    made = onnx.ModelProto()
    made.CopyFrom(model.proto)
    others = [w for w in made.graph.initializer if w.name not in held]
    inputs = [
        helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in kept if w.name in held
    ]
    del made.graph.initializer[:]
    made.graph.initializer.extend(others)
    made.graph.input.extend(inputs)
    return OnnxModel(made, {n: a for n, a in model.weights.items() if n not in held}), held


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


def _is_large(weight: TensorProto) -> bool:
    return weight.data_type in NARROW_TYPES and math.prod(weight.dims) >= LEAST


class _Readers:
    """What reads the values of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constant = {w.name for w in graph.initializer}
        self.by_name = operand_readers(graph)
        self.elsewhere = {o.name for o in graph.output}
        for node in graph.node:
            if not any(node.input) or self.constant.issuperset(filter(None, node.input)):
                self.constant.update(node.output)
            for part in inside(node, onnx.GraphProto):
                self.elsewhere |= names_read(part)

    def multiplied(self, name: str) -> bool:
        """Whether a constant is multiplied by, once it is scaled, and read by nothing else."""
        if name in self.elsewhere or name not in self.by_name:
            return False
        return all(self._multiplies(node, i) for node, i in self.by_name[name])

    def _multiplies(self, node: onnx.NodeProto, i: int) -> bool:
        if node.domain:
            return False
        if _MULTIPLYING.get(node.op_type) == i:
            return node.input[0] not in self.constant
        scaled = node.op_type in _SCALING and node.output[0] in self.constant
        return scaled and self.multiplied(node.output[0])
