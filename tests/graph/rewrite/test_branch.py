"""An If whose condition is known becomes the branch that is taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import run

X = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}


def branch(factor: float, inner: list[onnx.NodeProto] | None = None) -> onnx.GraphProto:
    """x times a number; its names are those of every other branch. Or other nodes, from `factor` to
    `out`."""
    nodes = inner or [helper.make_node("Mul", ["x", "factor"], ["out"], name="times")]
    weight = numpy_helper.from_array(np.float32(factor), "factor")
    result = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [result], [weight])


def chosen(condition: str, result: str, then: onnx.GraphProto, other: onnx.GraphProto):
    return helper.make_node(
        "If", [condition], [result], name=result, then_branch=then, else_branch=other
    )


def model(nodes: list[onnx.NodeProto], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """From x to y. `yes` and `no` are constants; `wide` says whether x has 4 columns."""
    first = [
        helper.make_node("Shape", ["x"], ["extents"]),
        helper.make_node("Gather", ["extents", "one"], ["columns"]),
        helper.make_node("Equal", ["columns", "four"], ["wide"]),
    ]
    constants = {"yes": np.array(True), "no": np.array([False]), "one": np.int64(1)}
    constants["four"] = np.int64(4)
    graph = helper.make_graph(
        [*first, *nodes], "g", [helper.make_tensor_value_info("x", dtype, [2, 4])],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("condition", "factor"), [("yes", 2.0), ("no", 3.0), ("wide", 2.0)])
def test_the_branch_is_taken(condition: str, factor: float) -> None:
    proto = model([chosen(condition, "y", branch(2.0), branch(3.0))])
    assert rewrite(proto)
    assert "If" not in {n.op_type for n in proto.graph.node}
    np.testing.assert_array_equal(run(proto, X)[0], factor * X["x"])


def test_branches_with_equal_names_and_branches_in_branches() -> None:
    deep = [
        chosen("no", "middle", branch(5.0), branch(7.0)),
        helper.make_node("Mul", ["middle", "factor"], ["out"], name="times"),
    ]
    nodes = [
        chosen("yes", "a", branch(2.0), branch(3.0)),
        chosen("no", "b", branch(2.0), branch(11.0, deep)),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    proto = model(nodes)
    before = run(proto, X)
    assert rewrite(proto)
    assert "If" not in {n.op_type for n in proto.graph.node}
    np.testing.assert_array_equal(run(proto, X)[0], before[0])
    np.testing.assert_allclose(before[0], (2 + 77) * X["x"], rtol=1e-6)


def test_what_is_known_only_at_run_time_stays() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["positive"], to=TensorProto.BOOL),
        chosen("positive", "y", branch(2.0), branch(3.0)),
    ]
    proto = model(nodes)
    rewrite(proto)
    assert [n.op_type for n in proto.graph.node].count("If") == 1


def test_the_branch_is_compiled() -> None:
    proto = model([chosen("wide", "y", branch(2.0), branch(3.0))])
    assert "R.multiply" in load(proto.SerializeToString(), {}).module.script()
