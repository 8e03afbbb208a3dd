"""Positions of elements that are as good as the best agree, and of others do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mcfuser.graph.check import output_errors, settled_errors
from mcfuser.graph.ties import choice, tied_error
from mcfuser.graph.weights import OnnxModel
from tests.support.nets import Net

X = np.asarray([[0.5, 3.0, 3.0 + 1e-6, -1.0], [2.0, 2.0 - 1e-6, -5.0, 0.0]], np.float32)


def choosing(operator: str, *after: str, **given: int) -> OnnxModel:
    """A model that returns positions of X, as other operators pass them on."""
    net = Net(opset=18)
    x = net.input("x", *X.shape)
    if operator == "TopK":
        at = net.op("TopK", x, net.ints(2), outputs=2, **given).replace("_0", "_1")
    else:
        at = net.op(operator, x, **given)
    for one in after:
        at = net.op(one, at, *([net.ints(-1)] if one == "Reshape" else []))
    model = net.model(at)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return OnnxModel(model)


def error(model: OnnxModel, found: object) -> float | None:
    return tied_error(model, {"x": X}, model.proto.graph.output[0].name, np.asarray(found))


@pytest.mark.parametrize("after", [(), ("Identity",), ("Reshape",), ("Flatten",)])
def test_positions_of_equal_scores_agree(after: tuple[str, ...]) -> None:
    model = choosing("TopK", *after)
    for good in ([[2, 1], [0, 1]], [[1, 2], [1, 0]]):
        positions = np.asarray(good) if after != ("Reshape",) else np.ravel(good)
        found = error(model, positions)
        assert found is not None and found < 1e-6
    bad = np.asarray([[2, 0], [0, 1]]).reshape(positions.shape)
    assert (error(model, bad) or 0.0) > 0.4


@pytest.mark.parametrize(
    ("operator", "given", "good", "bad"),
    [
        ("ArgMax", {"axis": 1, "keepdims": 0}, [1, 1], [0, 1]),
        ("ArgMax", {"axis": 1}, [[1], [0]], [[1], [2]]),
        ("ArgMax", {}, [[1, 0, 0, 1]], [[0, 0, 0, 1]]),
        ("ArgMin", {"axis": -1, "keepdims": 0}, [3, 2], [0, 2]),
    ],
)  # fmt: skip
def test_of_lines_each_has_its_best(
    operator: str, given: dict[str, int], good: object, bad: object
) -> None:
    model = choosing(operator, **given)
    assert (error(model, good) or 0.0) < 1e-6 < (error(model, bad) or 0.0)


@pytest.mark.parametrize("found", [[[2, 4], [0, 1]], [[-1, 1], [0, 1]], [[2, 2], [0, 1]]])
def test_positions_outside_and_twice_do_not_agree(found: object) -> None:
    assert error(choosing("TopK"), found) == float("inf")


def test_other_outputs_are_no_choice() -> None:
    net = Net(opset=18)
    x = net.input("x", *X.shape)
    values = net.op("TopK", x, net.ints(2), outputs=2)
    model = net.model(values, net.op("Relu", x), x)
    assert [choice(model, o.name) for o in model.graph.output] == [None] * 3
    assert tied_error(OnnxModel(model), {"x": X}, values, np.asarray([[3, 3], [2, 2]])) is None
    assert error(choosing("TopK"), np.ones((2, 2), np.float32)) is None, "no positions"
    assert error(choosing("TopK"), [[1, 2]]) is None, "another shape"


def test_a_module_that_breaks_a_tie_otherwise_agrees() -> None:
    model = choosing("TopK")
    names = [o.name for o in model.proto.graph.output]
    expected, other = np.asarray([[2, 1], [0, 1]]), np.asarray([[1, 2], [0, 1]])
    errors = output_errors(names, [other], [expected])
    assert errors[names[0]] > 0.1
    assert settled_errors(errors, 1e-4, model, {"x": X}, [other])[names[0]] < 1e-6
    wrong = np.asarray([[3, 2], [0, 1]])
    errors = output_errors(names, [wrong], [expected])
    assert settled_errors(errors, 1e-4, model, {"x": X}, [wrong])[names[0]] > 0.1
