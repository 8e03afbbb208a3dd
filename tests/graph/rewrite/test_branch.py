"""An If whose condition is known becomes the branch that is taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.check import answer, reference_session
from mcfuser.graph.draw import inputs
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.weights import OnnxModel
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


def test_a_truth_that_both_branches_give_is_known() -> None:
    """So ends a loop that TorchScript wrote: `while total < limit and steps < 5`."""
    small = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["late"], to=TensorProto.BOOL),
    ]
    other = helper.make_graph(
        [helper.make_node("And", ["no", "late"], ["out"])], "other", [],
        [helper.make_tensor_value_info("out", TensorProto.BOOL, None)],
    )  # fmt: skip
    same = helper.make_graph(
        [helper.make_node("Identity", ["no"], ["out"])], "same", [],
        [helper.make_tensor_value_info("out", TensorProto.BOOL, None)],
    )  # fmt: skip
    nodes = [
        *small,
        chosen("late", "again", same, other),
        chosen("again", "y", branch(2.0), branch(3.0)),
    ]
    proto = model(nodes)
    assert rewrite(proto)
    assert [n.output[0] for n in proto.graph.node if n.op_type == "If"] == ["again"]
    np.testing.assert_array_equal(run(proto, X)[0], 3 * X["x"])


def test_what_is_known_only_at_run_time_stays() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["positive"], to=TensorProto.BOOL),
        chosen("positive", "y", branch(2.0), branch(3.0)),
    ]
    proto = model(nodes)
    rewrite(proto)
    assert [n.op_type for n in proto.graph.node].count("If") == 1


def doubled(factor: float, columns: int = 4) -> onnx.GraphProto:
    """A branch of two results: x times a number, some columns of it, and its number of rows."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"], name="times"),
        helper.make_node("Slice", ["scaled", "zero", "columns", "last"], ["out"], name="part"),
        helper.make_node("Shape", ["x"], ["counts"], name="counts"),
    ]
    made = branch(factor, nodes)
    made.output.append(helper.make_tensor_value_info("counts", TensorProto.INT64, None))
    rows = {"zero": [0], "columns": [columns], "last": [1]}
    made.initializer.extend(numpy_helper.from_array(np.array(v), n) for n, v in rows.items())
    return made


def of_two_results(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    both = helper.make_node(
        "If", ["fast"], ["y", "counts"], name="the_if", then_branch=then, else_branch=other
    )
    proto = compared(branch(1.0), branch(1.0))
    del proto.graph.node[-1:]
    proto.graph.node.append(both)
    proto.graph.output.append(helper.make_tensor_value_info("counts", TensorProto.INT64, None))
    return proto


@pytest.mark.parametrize("rate", [16, 8])
def test_of_several_results_both_branches_are_computed(rate: int) -> None:
    proto = of_two_results(doubled(2.0), doubled(3.0))
    given = {**X, "rate": np.asarray(rate)}
    before = run(proto, given)
    assert rewrite(proto)
    assert "If" not in {n.op_type for n in proto.graph.node}
    for found, wanted in zip(run(proto, given), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(load(proto.SerializeToString(), {}).outputs) == 2


def test_branches_with_results_of_unequal_shapes_stay() -> None:
    proto = of_two_results(doubled(2.0), doubled(3.0, columns=3))
    rewrite(proto)
    assert [n.op_type for n in proto.graph.node].count("If") == 1


def test_the_branch_is_compiled() -> None:
    proto = model([chosen("wide", "y", branch(2.0), branch(3.0))])
    assert "R.multiply" in load(proto.SerializeToString(), {}).module.script()


def recurrent(result: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """A branch for inputs of three dimensions; x has two."""
    inner = [
        helper.make_node("LSTM", ["x", "w", "r"], ["rows"], name="lstm", hidden_size=1),
        helper.make_node("Cast", ["rows"], ["out"], to=result),
    ]
    made = branch(1.0, inner)
    made.output[0].type.tensor_type.elem_type = result
    for name, columns in (("w", 4), ("r", 1)):
        weight = np.ones((1, 4, columns), np.float32)
        made.initializer.append(numpy_helper.from_array(weight, name))
    return made


def compared(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    """The first branch where the integer `rate` is 16."""
    nodes = [
        helper.make_node("Equal", ["rate", "sixteen"], ["fast"]),
        chosen("fast", "y", then, other),
    ]
    proto = model(nodes)
    proto.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(16), "sixteen"))
    return proto


@pytest.mark.parametrize("first", [True, False])
def test_of_branches_for_other_shapes_the_one_for_these_is_taken(first: bool) -> None:
    """Nothing is finite where the condition asks for the other one, which would be an error."""
    branches = (branch(2.0), recurrent())
    proto = compared(*(branches if first else branches[::-1]))
    assert rewrite(proto)
    assert "If" not in {n.op_type for n in proto.graph.node}
    for rate in (16, 8):
        (found,) = run(proto, {**X, "rate": np.asarray(rate)})
        if (rate == 16) is first:
            np.testing.assert_array_equal(found, 2 * X["x"])
        else:
            assert not np.isfinite(found).any()


def test_where_no_branch_can_be_computed_the_first_refusal_is_told() -> None:
    with pytest.raises(ModelError, match=r"'LSTM'.*'x' has 2 dimensions, and should have 3"):
        rewrite(compared(recurrent(), recurrent()))


def test_results_that_cannot_be_made_infinite_are_not_guarded() -> None:
    whole = branch(1.0, [helper.make_node("Cast", ["x"], ["out"], to=TensorProto.INT32)])
    whole.output[0].type.tensor_type.elem_type = TensorProto.INT32
    with pytest.raises(ModelError, match="should have 3"):
        rewrite(compared(whole, recurrent(TensorProto.INT32)))


def test_a_model_with_a_branch_for_other_shapes_is_compared_with_onnxruntime() -> None:
    """onnxruntime loads it where its inputs have no fixed shapes; the inputs that are drawn choose
    the branch that there is."""
    proto = compared(branch(2.0), recurrent())
    fixed = OnnxModel(proto)
    feeds = inputs(fixed, np.random.default_rng(0))
    assert feeds["rate"] == 16
    (found,) = answer(reference_session(fixed), feeds)
    np.testing.assert_array_equal(found, 2 * feeds["x"])
