"""What is computed of a model before it is imported: rightly, within bounds, or not at all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph import fold as folding
from mcfuser.graph.bind import bind
from mcfuser.graph.load import load
from mcfuser.graph.read import read
from mcfuser.graph.weights import OnnxModel
from tests.support.paths import FIXTURES

BERT = (FIXTURES / "bert_half.onnx").read_bytes()


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], dtype: int = TensorProto.FLOAT16,
    result: int | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Nodes from `x` (4 elements) and constants to `y`."""
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", dtype, [4])],
        [helper.make_tensor_value_info("y", result or dtype, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(kind: str, *names: str, **attributes: object) -> onnx.NodeProto:
    """`node("Add", "a", "b", "y")`: the last one is the result, and the node's name."""
    return helper.make_node(kind, names[:-1], names[-1:], name=names[-1], **attributes)


def fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    return folding.fold(OnnxModel(proto)).proto


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def constants(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}


@pytest.mark.parametrize("shape", [(1, 16), (2, 24), (1, 1)])
def test_a_half_precision_bert_is_folded_as_onnxruntime_runs_it(shape: tuple[int, int]) -> None:
    proto = read(BERT, {n.op_type for n in onnx.load_from_string(BERT).graph.node}).proto
    bind(proto, {"ids": shape, "mask": shape})
    folded = fold(proto)
    assert not set(kinds(folded)) & {"Shape", "ConstantOfShape", "Concat", "Constant", "Range"}
    types = {w.data_type for w in folded.graph.initializer}
    assert TensorProto.FLOAT16 in types and TensorProto.FLOAT not in types
    random = np.random.default_rng(0)
    feeds = {"ids": random.integers(0, 48, shape), "mask": np.ones(shape, np.int64)}
    before, after = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        .run(None, feeds)[0]
        for m in (proto, folded)
    )  # fmt: skip
    np.testing.assert_allclose(before, after, atol=2e-2)
    assert load(BERT, {"ids": shape, "mask": shape}).outputs[0].dtype == "float16"


def test_a_shape_that_the_constants_do_not_fit_is_told_with_the_node() -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded: Node \(/model/embeddings/Add\)"):
        load(BERT, {"ids": (1, 64), "mask": (1, 64)})


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("Reshape", {"c": np.ones(6), "s": np.array([2, 4])}, "node 'b'"),
        ("Expand", {"c": np.ones((3, 2)), "s": np.array([4, 4])}, r"Node \(b\)"),
        ("Gather", {"c": np.ones(3), "s": np.array([7])}, "node 'b'"),
    ],
)
def test_constants_that_do_not_fit_are_told(
    kind: str, given: dict[str, np.ndarray], message: str, dtype: type
) -> None:
    values = {"c": given["c"].astype(dtype), "s": given["s"].astype(np.int64)}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node(kind, "c", "s", "b"), node("Mul", "x", "b", "y")], values, element)
    with pytest.raises(ModelError, match=message) as told:
        fold(proto)
    assert "\n" not in str(told.value)


def test_operands_of_two_types_are_told() -> None:
    values = {"c": np.ones(4, np.float32)}
    with pytest.raises(ModelError, match="bound to different types"):
        fold(model([node("Mul", "x", "c", "y")], values))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_constants_are_rounded_once(dtype: type) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(4).astype(dtype) for _ in range(2))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Mul", "a", "b", "p"),
        node("Cast", "w", "q", to=element),
        node("Add", "p", "q", "r"),
        node("ConstantOfShape", "n", "z", value=numpy_helper.from_array(a[:1], "v")),
        node("Add", "r", "z", "s"),
        node("Add", "x", "s", "y"),
    ]
    w = random.standard_normal(4).astype(np.float32)
    folded = fold(model(nodes, {"a": a, "b": b, "w": w, "n": np.array([4])}, element))
    assert kinds(folded) == ["Add"]
    p = (a.astype(np.float32) * b.astype(np.float32)).astype(dtype)
    r = (p.astype(np.float32) + w.astype(dtype).astype(np.float32)).astype(dtype)
    s = (r.astype(np.float32) + a[0].astype(np.float32)).astype(dtype)
    found = constants(folded)["s"]
    assert found.dtype == s.dtype and (found.view(np.uint16) == s.view(np.uint16)).all()


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("rank", [1, 4])
def test_what_would_be_large_is_left(narrow: bool, rank: int) -> None:
    """Refused before it is computed: 2^40 elements would end the test."""
    element = TensorProto.FLOAT16 if narrow else TensorProto.FLOAT
    value = numpy_helper.from_array(np.ones(1, np.float16 if narrow else np.float32), "v")
    size = {"n": np.array([2 ** (40 // rank)] * rank)}
    nodes = [
        node("ConstantOfShape", "n", "big", value=value),
        node("ReduceSum", "big", "total", keepdims=0),
        node("Add", "x", "total", "y"),
    ]
    assert "ConstantOfShape" in kinds(fold(model(nodes, size, element)))


def test_many_small_values_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_LARGEST", 1000)
    nodes = [node("ConstantOfShape", "n", f"c{i}") for i in range(100)]
    nodes += [node("Cast", f"c{i}", f"h{i}", to=TensorProto.FLOAT16) for i in range(100)]
    nodes.append(node("Sum", "x", *(f"h{i}" for i in range(100)), "y"))
    folded = fold(model(nodes, {"n": np.array([4])}))
    made = sum(a.nbytes for a in constants(folded).values())
    assert 0 < made <= 1000 + 4 * 100
    assert kinds(folded).count("Cast") > 0


def test_a_random_value_is_no_constant() -> None:
    nodes = [
        node("Cast", "c", "f", to=TensorProto.FLOAT),
        node("RandomNormalLike", "f", "r"),
        node("Cast", "r", "h", to=TensorProto.FLOAT16),
        node("Add", "x", "h", "y"),
    ]
    assert "RandomNormalLike" in kinds(fold(model(nodes, {"c": np.ones(4, np.float16)})))


def test_a_branch_may_read_what_is_folded() -> None:
    def branch(name: str, reads: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4])
        return helper.make_graph([helper.make_node("Neg", [reads], [name])], name, [], [out])

    nodes = [
        node("Neg", "c", "d"),
        node("ReduceSum", "x", "t", keepdims=0),
        node("Cast", "t", "b", to=TensorProto.BOOL),
        node("If", "b", "i", then_branch=branch("m", "d"), else_branch=branch("o", "c")),
        node("Add", "x", "i", "y"),
    ]
    folded = fold(model(nodes, {"c": np.ones(4, np.float16)}))
    assert {"c", "d"} <= set(constants(folded))


def test_extents_that_follow_from_each_other_are_all_computed() -> None:
    """onnxruntime itself folds no NonZero."""
    nodes, last = [], "n"
    one = numpy_helper.from_array(np.ones(1, np.int64), "v")
    for i in range(4):
        nodes += [
            node("ConstantOfShape", last, f"ones{i}", value=one),
            node("NonZero", f"ones{i}", f"found{i}"),
            node("Transpose", f"found{i}", f"rows{i}", perm=[1, 0]),
            node("Shape", f"rows{i}", f"shape{i}"),
            node("Gather", f"shape{i}", "first", f"n{i}"),
        ]
        last = f"n{i}"
    nodes.append(node("Expand", "x", last, "y"))
    given = {"n": np.array([4]), "first": np.array([0])}
    folded = fold(model(nodes, given, TensorProto.FLOAT))
    assert kinds(folded) == ["Expand"]
