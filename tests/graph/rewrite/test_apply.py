"""Where nodes are replaced, what is known of their inputs, and what is said of the others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.rewrite.loop import LOOPS
from mcfuser.graph.rewrite.table import REWRITES
from tests.support.nets import Net
from tests.support.one_node import agree, one_node, run
from tests.support.paths import ROOT

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "w": RANDOM.standard_normal((1, 16, 4)).astype(np.float32),
    "r": RANDOM.standard_normal((1, 16, 4)).astype(np.float32),
}


def tensor(name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], opset: int = 17
) -> onnx.ModelProto:
    """From x, 6 steps of 2 x 4 numbers, to y."""
    weights = [numpy_helper.from_array(a, n) for n, a in (WEIGHTS | constants).items()]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", [tensor("x", 6, 2, 4)], results, weights)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def lstm(*inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: object) -> onnx.NodeProto:
    given = ["x", "w", "r", *inputs]
    return helper.make_node("LSTM", given, outputs, name="memory", hidden_size=4, **attributes)


X = {"x": RANDOM.standard_normal((6, 2, 4)).astype(np.float32)}


def test_what_shape_arithmetic_computes_is_known() -> None:
    """Lengths as exporters write them: the extents of x, expanded."""
    nodes = [
        helper.make_node("Shape", ["x"], ["extents"]),
        helper.make_node("Gather", ["extents", "zero"], ["steps"]),
        helper.make_node("Slice", ["extents", "one", "two"], ["batch"]),
        helper.make_node("Expand", ["steps", "batch"], ["long"]),
        helper.make_node("Cast", ["long"], ["lengths"], to=TensorProto.INT32),
        lstm("", "lengths"),
    ]
    ends = {"zero": np.int64(0), "one": np.array([1]), "two": np.array([2])}
    made = agree(model(nodes, {n: np.asarray(a, np.int64) for n, a in ends.items()}), X)
    assert "Where" not in {n.op_type for n in made.graph.node}


def test_shapes_are_known_past_nodes_that_onnx_knows_nothing_of() -> None:
    nodes = [
        helper.make_node("FastGelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("LSTM", ["b", "w", "r"], ["y"], name="memory", hidden_size=4),
    ]
    agree(model(nodes, {}), X, 1e-4)


def test_nodes_in_branches_are_replaced() -> None:
    def branch(name: str, **attributes: object) -> onnx.GraphProto:
        node = helper.make_node("LSTM", ["b", "w", "r"], [name], hidden_size=4, **attributes)
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [result])

    nodes = [
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branch("one"),
            else_branch=branch("other", direction="reverse"),
        ),
    ]  # fmt: skip
    proto = model(nodes, {"zero": np.asarray(0, np.float32)})
    for sign in (1, -1):
        given = {"x": sign * np.abs(X["x"])}
        before = run(proto, given)
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        assert rewrite(copy)
        np.testing.assert_allclose(run(copy, given)[0], before[0], atol=1e-5)


def test_names_of_the_model_are_not_taken() -> None:
    taken = ["memory/MatMul_2", "memory/Split_3", "memory/constant_0", "memory/Reshape_0"]
    nodes = [helper.make_node("Identity", ["x" if i else "w"], [n]) for i, n in enumerate(taken)]
    agree(model([*nodes, lstm()], {}), X)


def test_a_model_without_such_nodes_is_left() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {})
    before = proto.SerializeToString()
    assert not rewrite(proto)
    assert proto.SerializeToString() == before


def test_a_shape_that_is_not_known_is_told() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["b", "axes"], ["c"]),
        helper.make_node("LSTM", ["c", "v", "r"], ["y"], name="memory", hidden_size=4),
    ]
    weights = {"axes": np.array([0]), "v": np.ones((1, 16, 3), np.float32)}
    with pytest.raises(ModelError, match=r"'LSTM'.*'memory'.*shape of 'c' is not known"):
        rewrite(model(nodes, weights))


@pytest.mark.parametrize(
    ("kind", "domain", "words"),
    [
        ("Det", "", ("'Det'", "'ai.onnx'", "opset 17", "'the_node'")),
        ("Sampling", "com.microsoft", ("'Sampling'", "'com.microsoft'", "opset 17", "'the_node'")),
        ("LSTM", "com.microsoft", ("'LSTM'", "'com.microsoft'", "opset 17", "'the_node'")),
        ("Relu", "com.microsoft", ("'Relu'", "'com.microsoft'", "opset 17", "'the_node'")),
        ("Wave", "org.ocean", ("'Wave'", "'org.ocean'", "opset 17", "'the_node'")),
    ],
)
def test_what_stays_unknown_is_named(kind: str, domain: str, words: tuple[str, ...]) -> None:
    proto = one_node(kind, ["x"], 1, X, domain=domain)
    proto.opset_import.add(domain="org.ocean", version=1)
    with pytest.raises(ModelError) as refused:
        load(proto.SerializeToString(), {})
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("node", "inputs", "words"),
    [
        (
            "MultiHeadAttention",
            {"q": (2, 6, 25), "k": (2, 6), "v": (2, 6, 25)},
            "'k' has 2 dimensions",
        ),
        ("MultiHeadAttention", {"q": (2, 6, 25)}, "'q' has 3 dimensions, and should have 5"),
        ("Attention", {"x": (2, 6, 24)}, "lacks its input number 1"),
        ("Attention", {"x": (2, 6, 24), "w": (24, 36)}, "12 numbers .* among 5 heads"),
        ("MatMulNBits", {"x": (2, 6)}, "cannot be used: "),
        ("RotaryEmbedding", {"x": (6,), "p": (1,), "c": (4, 2), "s": (4, 2)}, "cannot be used: "),
    ],
)
def test_inputs_that_do_not_fit_are_told(
    node: str, inputs: dict[str, tuple[int, ...]], words: str
) -> None:
    given = {n: np.zeros(shape, np.float32) for n, shape in inputs.items()}
    proto = one_node(node, list(inputs), 1, given, domain="com.microsoft", num_heads=5)
    with pytest.raises(ModelError, match=rf"^operator '{node}' .*'the_node'.*{words}") as refused:
        rewrite(proto)
    assert "\n" not in str(refused.value)


def test_what_is_made_is_counted_before_it_is_made() -> None:
    rows = 100_000
    shape = np.broadcast_to(np.float32(0), (1, 1, rows, 4))
    proto = one_node("Attention", ["x", "x", "x"], 1, {"x": shape}, opset=24, is_causal=1)
    with pytest.raises(ModelError, match=r"10000000000 elements.*MCFUSER_MAX_ELEMENTS"):
        rewrite(proto)
    weights = {"w": np.zeros((64, 1, 16), np.uint8), "s": np.ones((64, 1), np.float32)}
    proto = one_node(
        "MatMulNBits", ["x", "w", "s"], 1, {"x": np.zeros((2, 32), np.float32)}, weights,
        "com.microsoft", K=32, N=64, block_size=32,
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"1024 bytes, those of .*'MatMulNBits'.*CONSTANT_BYTES"):
        rewrite(proto, replace(DEFAULTS, constant_bytes=1000))


@pytest.mark.parametrize(("domain", "operator"), [*REWRITES, *(("", name) for name in LOOPS)])
def test_every_rewrite_has_a_test(domain: str, operator: str) -> None:
    texts = [p.read_text() for p in Path(__file__).parent.glob("test_*.py") if p != Path(__file__)]
    assert any(f'"{operator}"' in text for text in texts)


@pytest.mark.parametrize(("domain", "operator"), [*REWRITES, *(("", name) for name in LOOPS)])
def test_every_rewrite_is_documented(domain: str, operator: str) -> None:
    rows = (ROOT / "docs" / "operators.md").read_text().splitlines()
    words = [(row.split("|")[1], row.split("|")[2]) for row in rows if row.startswith("| ")]
    own = domain or "ai.onnx"
    assert any(re.search(rf"\b{operator}\b", names) and own in where for names, where in words)


def test_a_node_of_an_old_opset_that_stays_is_no_error() -> None:
    net = Net(opset=10)
    x = net.op("Pow", net.op("Cast", net.input("x", 3, 4), to=TensorProto.FLOAT), net.const(2.0))
    proto = net.model(x)
    rewrite(proto)
    assert [n.op_type for n in proto.graph.node] == ["Cast", "Pow"]
