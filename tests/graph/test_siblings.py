"""Products with one operand in common become one product, and the model computes the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.siblings import combine_siblings
from mcfuser.graph.weights import OnnxModel

DEPTH, COLUMNS = 8, (4, 6, 4)


def model(
    biases: tuple[bool, ...], combined: str = "", opset: int = 17, dtype: type = np.float32
) -> onnx.ModelProto:
    """Products of one input by constant matrices, each with or without a bias. `combined` is an
    elementwise operator of the first and the last result."""
    rng = np.random.default_rng(0)
    nodes, weights, outs = [], [], list[str]()

    def constant(name: str, *shape: int) -> str:
        array = rng.standard_normal(shape).astype(dtype)
        weights.append(numpy_helper.from_array(array, name))
        return name

    for i, (bias, columns) in enumerate(zip(biases, COLUMNS, strict=False)):
        weight = constant(f"w{i}", DEPTH, columns)
        nodes.append(helper.make_node("MatMul", ["x", weight], [f"p{i}"], f"product{i}"))
        outs.append(f"p{i}")
        if bias:
            row = constant(f"b{i}", columns)
            nodes.append(helper.make_node("Add", [row, f"p{i}"], [f"y{i}"], f"add{i}"))
            outs[-1] = f"y{i}"
    if combined:
        nodes.append(helper.make_node(combined, [outs[0], outs[2]], ["gate"], "gate"))
        outs = [outs[1], "gate"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "siblings",
        [helper.make_tensor_value_info("x", kind, [2, 3, DEPTH])],
        [helper.make_tensor_value_info(o, kind, [2, 3, "columns"]) for o in outs],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def unchanged(made: onnx.ModelProto) -> bool:
    given = OnnxModel(made)
    return combine_siblings(given) is given


def kinds(made: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in made.graph.node)


def computed(made: onnx.ModelProto) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(made.SerializeToString())
    dtype = np.float16 if session.get_inputs()[0].type == "tensor(float16)" else np.float32
    x = np.random.default_rng(1).standard_normal((2, 3, DEPTH)).astype(dtype)
    return [np.asarray(y) for y in session.run(None, {"x": x})]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("biases", [(True,) * 3, (False,) * 3, (True, False, True)])
def test_siblings_become_one_product(biases: tuple[bool, ...], opset: int) -> None:
    before = model(biases, opset=opset)
    after = combine_siblings(OnnxModel(before)).proto
    onnx.checker.check_model(after)
    assert kinds(after) == {"MatMul": 1, "Split": 1} | ({"Add": 1} if any(biases) else {})
    for one, two in zip(computed(before), computed(after), strict=True):
        assert one.shape == two.shape and np.allclose(one, two, atol=1e-5)


def test_half_precision_stays_so() -> None:
    after = combine_siblings(OnnxModel(model((True,) * 3, dtype=np.float16))).proto
    weights = {t.name: t.data_type for t in after.graph.initializer}
    assert weights["y0_siblings_weight"] == TensorProto.FLOAT16
    assert all(y.dtype == np.float16 for y in computed(after))


def test_a_gate_stays_apart_from_its_sibling() -> None:
    before = model((True,) * 3, "Mul")
    assert unchanged(before)  # of the others there is only one


def test_products_of_different_values_stay_apart() -> None:
    made = model((False, False))
    made.graph.node[1].input[0] = "w0"
    assert unchanged(made)


def test_a_weight_that_is_computed_is_none() -> None:
    made = model((False, False))
    made.graph.node.insert(0, helper.make_node("Neg", ["w1"], ["negative"], "neg"))
    made.graph.node[2].input[1] = "negative"
    assert unchanged(made)
