"""Small ONNX models with seeded weights, node by node."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Net:
    """Nodes, inputs and weights in the order in which they are written."""

    def __init__(self, dtype: type[np.generic] = np.float32, opset: int = 17) -> None:
        self.random = np.random.default_rng(0)
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, name: str, *shape: int | str, dtype: object = None) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def const(self, value: object, dtype: object = None) -> str:
        name = f"const{len(self.weights)}"
        array = np.asarray(value, dtype or self.dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.random.standard_normal(shape) / math.sqrt(shape[0]))

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"{kind.lower()}{len(self.nodes)}_{i}" for i in range(outputs)]
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names[0]

    def model(self, *outputs: str) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        values = [helper.make_tensor_value_info(o, kind, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "block", self.inputs, values, self.weights)
        domains = sorted({n.domain for n in self.nodes} - {""})
        opsets = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(d, 1) for d in domains),
        ]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)
