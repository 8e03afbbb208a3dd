"""ONNX models of a few nodes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def model(operator: str = "MatMul", domain: str = "", rows: int | str = 4) -> bytes:
    """y = x w, or another operator of two inputs."""
    node = helper.make_node(operator, ["x", "w"], ["y"], name="the_node", domain=domain)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 4])],
        [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()
