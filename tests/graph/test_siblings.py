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
from tests.support.nets import Net

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


def projected(kind: str, bias: bool, rows: int = 5) -> onnx.ModelProto:
    """Two projections of one row each, by which rows of two inputs are scaled, each by its own; the
    second one of what the first one gives."""
    n = Net()
    x, y = n.input("x", 1, DEPTH), n.input("y", 1, rows, DEPTH)
    for _ in range(2):
        if kind == "Gemm":
            c = (n.weight(DEPTH),) if bias else ()
            scale = n.op("Gemm", x, n.weight(DEPTH, DEPTH), *c, transB=1)
        else:
            scale = n.op("MatMul", x, n.weight(DEPTH, DEPTH))
            scale = n.op("Add", scale, n.weight(DEPTH)) if bias else scale
        y = n.op("Mul", y, n.op("Unsqueeze", scale, n.ints(1)))
    return n.model(y)


def outputs(made: onnx.ModelProto) -> list[np.ndarray]:
    """The outputs of a model for random inputs."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    random = np.random.default_rng(1)
    given = {i.name: random.standard_normal(i.shape).astype(np.float32)
             for i in session.get_inputs()}  # fmt: skip
    return [np.asarray(y) for y in session.run(None, given)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_what_scales_something_larger_is_one_product(kind: str, bias: bool) -> None:
    before = projected(kind, bias)
    after = combine_siblings(OnnxModel(before)).proto
    assert kinds(after)[kind] == 1 and kinds(before)[kind] == 2
    assert np.allclose(*outputs(before), *outputs(after), atol=1e-5)


def test_what_meets_in_a_value_of_their_own_size_stays_apart() -> None:
    assert unchanged(projected("Gemm", True, rows=1))


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 0.5}, {"transA": 1}])
def test_a_product_that_is_scaled_or_turned_is_none(attributes: dict[str, object]) -> None:
    made = projected("Gemm", True)
    for node in made.graph.node:
        if node.op_type == "Gemm":
            node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    assert unchanged(made)


def test_so_many_weights_are_several_products(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Net()
    x = made.input("x", 1, DEPTH)
    outs = [made.op("MatMul", x, made.weight(DEPTH, 4)) for _ in range(7)]
    before = made.model(*outs)
    monkeypatch.setattr("mcfuser.graph.siblings._MOST", 3 * 4 * DEPTH)
    after = combine_siblings(OnnxModel(before)).proto
    assert kinds(after)["MatMul"] == 3, "of three, three and one"
    for one, two in zip(outputs(before), outputs(after), strict=True):
        assert np.allclose(one, two, atol=1e-5)


GELU = ("Div", "Erf", "Add", "Mul", "Mul")


def activated(steps: tuple[str, ...], both: bool = False, other: bool = False) -> onnx.ModelProto:
    """Three products of one input, of which the last one has an activation behind it, or the last
    two; in which something `other` takes part, if that is given."""
    n = Net(opset=20)
    x = n.input("x", 3, DEPTH)
    outs = [n.op("MatMul", x, n.weight(DEPTH, DEPTH)) for _ in range(3)]
    for i in (1, 2) if both else (2,):
        value = outs[i]
        for kind in steps:
            constant = kind in ("Add", "Div", "Mul", "Pow")
            more = (n.input(f"y{i}", 3, DEPTH) if other else n.const(0.5),) if constant else ()
            value = n.op(kind, value, *more)
        outs[i] = value
    weights = [n.weight(DEPTH, DEPTH) for _ in outs]
    return n.model(*(n.op("MatMul", v, w) for v, w in zip(outs, weights, strict=True)))


@pytest.mark.parametrize("steps", [("Gelu",), ("Relu",), GELU])
def test_the_one_with_an_activation_stays_apart(steps: tuple[str, ...]) -> None:
    before = activated(steps)
    after = combine_siblings(OnnxModel(before)).proto
    assert kinds(after)["MatMul"] == kinds(before)["MatMul"] - 1
    for one, two in zip(outputs(before), outputs(after), strict=True):
        assert np.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "both", "other"),
    [(("Relu",), True, False), (("Mul",), False, False), (("Sigmoid", "Mul"), False, True),
     (("Reshape", "Relu"), False, False)],
    ids=["two of them", "a scale", "a gate of something else", "heads first"],
)  # fmt: skip
def test_all_are_one_where_an_activation_is_no_epilogue(
    steps: tuple[str, ...], both: bool, other: bool
) -> None:
    made = activated(tuple(s for s in steps if s != "Reshape"), both, other)
    if "Reshape" in steps:
        (relu,) = (node for node in made.graph.node if node.op_type == "Relu")
        made.graph.initializer.append(numpy_helper.from_array(np.array([3, 2, -1]), "shape"))
        made.graph.initializer.append(numpy_helper.from_array(np.array([3, -1]), "back"))
        at = [*made.graph.node].index(relu)
        first = helper.make_node("Reshape", [relu.input[0], "shape"], ["heads"], "heads")
        last = helper.make_node("Reshape", ["of_heads", "back"], [relu.output[0]], "back")
        relu.input[0], relu.output[0] = "heads", "of_heads"
        made.graph.node.insert(at, first)
        made.graph.node.insert(at + 2, last)
    after = combine_siblings(OnnxModel(made)).proto
    assert kinds(after)["MatMul"] == 4
    for one, two in zip(outputs(made), outputs(after), strict=True):
        assert np.allclose(one, two, atol=1e-5)


def test_what_a_branch_reads_before_a_constant_is_added_stays() -> None:
    made = model((True, True))
    for which, name in (("then", "p0"), ("else", "y0")):
        out = helper.make_tensor_value_info(f"{which}_out", TensorProto.FLOAT, None)
        same = helper.make_node("Identity", [name], [out.name], which)
        made.graph.node.append(
            helper.make_node("If", ["which"], [f"{which}_chosen"], f"if_{which}", **{
                f"{branch}_branch": helper.make_graph([same], branch, [], [out])
                for branch in ("then", "else")
            })
        )  # fmt: skip
        made.graph.output.append(
            helper.make_tensor_value_info(f"{which}_chosen", TensorProto.FLOAT, None)
        )
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "which"))
    after = combine_siblings(OnnxModel(made)).proto
    assert kinds(after)["MatMul"] == 1
    for one, two in zip(computed(made), computed(after), strict=True):
        assert np.allclose(one, two, atol=1e-5)
