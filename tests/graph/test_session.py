"""Sessions of onnxruntime that lose nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mcfuser.graph.session import loses_updates, session
from mcfuser.graph.weights import OnnxModel

ROWS, COUNT, COLUMNS = 20_000, 200_000, 8


def scattering(reduction: str | None, operator: str = "ScatterND") -> onnx.ModelProto:
    given = {} if reduction is None else {"reduction": reduction}
    node = helper.make_node(operator, ["x", "at", "rows"], ["out"], **given)
    shapes = {"x": [ROWS, COLUMNS], "at": [COUNT, 1], "rows": [COUNT, COLUMNS]}
    kinds = {"at": TensorProto.INT64}
    inputs = [
        helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s)
        for n, s in shapes.items()
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shapes["x"])
    graph = helper.make_graph([node], "scattering", inputs, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_what_is_scattered_is_added_by_one_thread() -> None:
    rng = np.random.default_rng(0)
    at = rng.integers(0, ROWS, (COUNT, 1))
    feeds = {
        "x": np.zeros((ROWS, COLUMNS), np.float32), "at": at,
        "rows": np.ones((COUNT, COLUMNS), np.float32),
    }  # fmt: skip
    wanted = np.bincount(at[:, 0], minlength=ROWS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 8
    made = session(OnnxModel(scattering("add")), options)
    assert options.intra_op_num_threads == 1
    for _ in range(3):
        (found,) = made.run(None, feeds)
        assert (found == wanted[:, None]).all()


@pytest.mark.parametrize(
    ("model", "loses"),
    [
        (scattering("add"), True), (scattering("max"), True), (scattering("none"), False),
        (scattering(None), False), (scattering("add", "ScatterElements"), False),
    ],
)  # fmt: skip
def test_several_threads_lose_updates_of_reductions_only(
    model: onnx.ModelProto, loses: bool
) -> None:
    assert loses_updates(model) == loses


def test_the_usual_session_keeps_its_threads() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session(OnnxModel(scattering("add")), options, usual=True)
    assert options.intra_op_num_threads == 2
