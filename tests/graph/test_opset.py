"""Models of old operator sets, written in newer operators: equal results, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.opset import OLDEST, raised
from mcfuser.graph.weights import declaration, is_declared
from tests.support.one_node import run

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((1, 4, 5, 6)).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], opset: int, ir_version: int = 8, **weights: np.ndarray
) -> onnx.ModelProto:
    """From x, of X's shape, to y."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    if ir_version < 4:  # initializers are inputs too
        inputs += [
            helper.make_tensor_value_info(c.name, c.data_type, list(c.dims)) for c in constants
        ]
    graph = helper.make_graph(nodes, "old", inputs, outputs, constants)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=ir_version)


def node(kind: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, ["x", *inputs], ["y"], name="the_node", **attributes)


FACTORS = np.array([1, 1, 2, 2], np.float32)
SMALLER = np.array([1, 1, 0.6, 0.5], np.float32)
UNEVEN = np.array([1, 1, 2.3, 1.7], np.float32)


@pytest.mark.parametrize(
    ("old", "opset", "weights"),
    [
        (node("Slice", starts=[1], ends=[3], axes=[2]), 9, {}),
        (node("Pad", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5), 9, {}),
        (node("Clip", max=0.5), 9, {}),
        (node("Upsample", "s", mode="linear"), 9, {"s": FACTORS}),
        (node("Upsample", scales=FACTORS.tolist(), mode="nearest"), 8, {}),
        (node("Resize", "s", mode="nearest"), 10, {"s": SMALLER}),
        (node("Resize", "s", mode="nearest"), 10, {"s": UNEVEN}),
        (node("Resize", "s", mode="linear"), 10, {"s": UNEVEN}),
        (node("Dropout"), 9, {}),
        (node("Sum", "x", "s"), 8, {"s": FACTORS[:1]}),
    ],
)
def test_results_stay(old: onnx.NodeProto, opset: int, weights: dict[str, np.ndarray]) -> None:
    proto = model([old], opset, **weights)
    (wanted,) = run(proto, {"x": X})
    made = raised(proto)
    assert [o.version for o in made.opset_import if not o.domain] == [OLDEST]
    (found,) = run(made, {"x": X})
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("backward", ["forward", "bidirectional"])
def test_a_recurrence_of_an_old_model_is_unrolled(backward: str) -> None:
    ways = 2 if backward == "bidirectional" else 1
    nodes = [
        helper.make_node("Squeeze", ["x"], ["steps"], axes=[0]),
        helper.make_node(
            "GRU", ["steps", "w", "r", "b", "", "h"], ["y"], name="memory", hidden_size=3,
            linear_before_reset=1, direction=backward,
        ),
    ]  # fmt: skip
    shapes = {"w": (ways, 9, 6), "r": (ways, 9, 3), "b": (ways, 18), "h": (ways, 5, 3)}
    weights = {n: RANDOM.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    loaded = load(model(nodes, 9, **weights).SerializeToString(), {})
    assert loaded.outputs[0].shape == (4, ways, 5, 3)


def test_old_files_list_weights_as_inputs() -> None:
    proto = model([node("Add", "s")], 9, 3, s=FACTORS[:1])
    assert [p.name for p in load(proto.SerializeToString(), {}).inputs] == ["x"]


def test_weights_that_are_only_declared_stay_so() -> None:
    proto = model([node("Add", "s")], 9)
    proto.graph.initializer.append(declaration("s", TensorProto.FLOAT, [6]))
    (weight,) = raised(proto).graph.initializer
    assert is_declared(weight) and weight.name == "s" and list(weight.dims) == [6]


def test_names_and_other_domains_stay() -> None:
    other = helper.make_node("QuickGelu", ["a"], ["y"], name="q", domain="com.microsoft")
    first = helper.make_node("Slice", ["x"], ["a"], name="s", starts=[1], ends=[3])
    made = raised(model([first, other], 9))
    assert made.graph.node[-1] == other
    assert [list(n.output) for n in made.graph.node if n.op_type == "Slice"] == [["a"]]


def test_a_newer_model_is_left() -> None:
    proto = model([node("Relu")], OLDEST)
    assert raised(proto) is proto


def test_what_cannot_be_written_newer_is_refused() -> None:
    both_ways = np.array([1, 1, 0.5, 2], np.float32)
    proto = model([node("Resize", "s", mode="nearest")], 10, s=both_ways)
    with pytest.raises(ModelError, match=r"opset 10 cannot be .* opset 11: node 'the_node'"):
        raised(proto)
    proto = model([node("Scan", body=helper.make_graph([], "body", [], []), num_scan_inputs=1)], 8)
    with pytest.raises(ModelError, match=r"opset 8 cannot be written as those of opset 11"):
        raised(proto)
