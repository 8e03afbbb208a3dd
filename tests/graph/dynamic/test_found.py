"""Models whose elements decide extents, with room for what is found, beside the models as they
are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.errors import InputError, ModelError
from mcfuser.graph.check import answer, reference_session
from mcfuser.graph.load import load
from mcfuser.graph.weights import OnnxModel
from tests.support.dynamic_nets import run
from tests.support.found_nets import COLUMNS, FOUND, ROWS, bounded, drawn, found_net, unless_empty
from tests.support.lifted import computed
from tests.support.nets import Net

PARTS = (0.0, 0.2, 0.5, 0.8, 1.0)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray | None:  # type: ignore[type-arg]
    """The result of the model; None where it has none, as that of no elements."""
    try:
        (found,) = answer(reference_session(OnnxModel(model)), {"x": x})
    except InputError:
        return None
    return None if np.isnan(found).any() else found


@pytest.mark.parametrize("case", FOUND)
def test_it_gives_what_the_model_gives(case: str) -> None:
    model = found_net(case)
    made = bounded(model)
    compared, sizes = 0, set()
    for seed in range(4):
        for part in PARTS:
            x = drawn(part, seed)
            wanted = expected(model, x)
            if wanted is not None:
                (found,) = run(made, {"x": x})
                assert found.shape == wanted.shape
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
                compared += 1
                sizes.add(wanted.shape)
    assert compared >= 15
    assert (
        len(sizes) > 1
        or case in ("few boxes", "a mean")
        or case.endswith(("put back", "filled up"))
    )


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.thorough
def test_a_module_gives_it(case: str, tmp_path: Path) -> None:
    model = found_net(case)
    loaded = load(model.SerializeToString(), {})
    for part in PARTS:
        x = drawn(part)
        wanted = expected(model, x)
        if wanted is not None:
            (found,) = computed(loaded.module, [x], tmp_path)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_module_gives_boxes(tmp_path: Path) -> None:
    model = found_net("boxes of rows")
    loaded = load(model.SerializeToString(), {})
    assert [p.shape for p in loaded.outputs] == [(-1, 7)]
    x = drawn(0.7)
    (found,) = computed(loaded.module, [x], tmp_path)
    wanted = expected(model, x)
    assert wanted is not None and len(wanted) > 1
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_where_nothing_is_found_in_inputs_the_model_stays() -> None:
    net = Net()
    x = net.input("x", ROWS, COLUMNS)
    places = net.op("NonZero", net.const([0.0, 1.0, 1.0]))
    model = net.model(net.op("Gather", x, net.op("Reshape", places, net.ints(-1)), axis=1))
    assert [n.op_type for n in bounded(model).proto.graph.node] == ["NonZero", "Reshape", "Gather"]


def test_what_has_no_rule_is_left_to_tvm(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", ROWS, COLUMNS)
    rows = net.op("NonZero", net.op("Relu", x))
    net.op("Unique", net.op("Reshape", rows, net.ints(-1)))
    model = net.model(net.op("Cast", net.nodes[-1].output[0], to=onnx.TensorProto.FLOAT))
    assert "NonZero" in [n.op_type for n in bounded(model).proto.graph.node]
    (found,) = computed(load(model.SerializeToString(), {}).module, [drawn(0.3)], tmp_path)
    np.testing.assert_array_equal(found, expected(model, drawn(0.3)))


def test_many_elements_are_looked_through_by_tvm() -> None:
    net = Net()
    x = net.input("x", 1 << 11, (1 << 9) + 1)
    model = net.model(net.op("Cast", net.op("NonZero", x), to=onnx.TensorProto.FLOAT))
    assert [n.op_type for n in bounded(model).proto.graph.node] == ["NonZero", "Cast"]


def test_another_result_where_nothing_is_found_is_refused() -> None:
    """The branch without elements gives a row of ones, and not none."""
    net = Net()
    x = net.input("x", ROWS, COLUMNS)
    rows = unless_empty(net, x, 1.0)
    boxes = net.op("Reshape", net.op("Slice", rows, net.ints(0), net.ints(4), net.ints(1)),
                   net.ints(1, -1, 4))  # fmt: skip
    score = net.op("Reshape", net.op("Slice", rows, net.ints(4), net.ints(5), net.ints(1)),
                   net.ints(1, 1, -1))  # fmt: skip
    chosen = net.op("NonMaxSuppression", boxes, score, net.ints(5))
    with pytest.raises(ModelError, match=r"'If' \(node 'If_\d+'\) does something else where no"):
        bounded(net.model(net.op("Cast", chosen, to=onnx.TensorProto.FLOAT)))


def test_limits_that_inputs_decide_are_refused() -> None:
    net = Net()
    boxes, scores = net.input("boxes", 1, 6, 4), net.input("scores", 1, 2, 6)
    most = net.op("Cast", net.op("ReduceMax", scores, keepdims=0), to=onnx.TensorProto.INT64)
    chosen = net.op("NonMaxSuppression", boxes, scores, most)
    with pytest.raises(ModelError, match=r"'NonMaxSuppression'.*number of boxes is known only"):
        bounded(net.model(chosen))


def test_a_loop_over_what_is_found_is_refused() -> None:
    body = Net()
    state = body.op("Add", "before", body.const(1.0))
    graph = body.model(state).graph
    graph.input.extend(
        onnx.helper.make_tensor_value_info(n, k, s)
        for n, k, s in (("i", 7, []), ("go", 9, []), ("before", 1, [ROWS, COLUMNS]))
    )
    graph.node.append(onnx.helper.make_node("Identity", ["go"], ["on"]))
    graph.output.insert(0, onnx.helper.make_tensor_value_info("on", 9, []))
    net = Net()
    x = net.input("x", ROWS, COLUMNS)
    box = net.op("Reshape", x, net.ints(1, -1, 4))
    score = net.op("ReduceSum", net.op("Transpose", box, perm=[0, 2, 1]), net.ints(1), keepdims=1)
    chosen = net.op("NonMaxSuppression", box, score, net.ints(5))
    rows = net.op("Gather", net.op("Shape", chosen), net.const(0, np.int64), axis=0)
    many = net.op("Loop", rows, net.const(True, np.bool_), x, body=graph)
    with pytest.raises(ModelError, match="depends on how many elements are found"):
        bounded(net.model(many))
