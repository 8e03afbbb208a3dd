"""Operators that TVM's importer makes opaque are elementwise here, and compute what ONNX says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.load import load
from tests.support.computed_naively import agreed
from tests.support.nets import Net

Build = Callable[[Net, str], str]


def channels(n: Net, low: float, high: float) -> str:
    return n.const(n.random.uniform(low, high, 8))


NODES: dict[str, Build] = {
    "bounds on both sides": lambda n, x: n.op("Clip", x, n.const(-0.5), n.const(0.25)),
    "a lower bound": lambda n, x: n.op("Clip", x, n.const(0.5)),
    "an upper bound": lambda n, x: n.op("Clip", x, "", n.const(0.5)),
    "no bound": lambda n, x: n.op("Clip", x),
    "a bound that is no number": lambda n, x: n.op("Clip", x, n.const(np.nan), n.const(0.5)),
    "three maxima": lambda n, x: n.op("Max", x, n.const(0.1), n.op("Neg", x)),
    "three summands": lambda n, x: n.op("Sum", x, n.const(0.1), n.op("Neg", n.weight(8, 1, 1))),
    "one summand": lambda n, x: n.op("Sum", x),
    "a mean of three": lambda n, x: n.op("Mean", x, n.weight(8, 1, 1), n.op("Abs", x)),
    "a single part": lambda n, x: n.op("Concat", n.op("Concat", x, axis=2), axis=-1),
    "minimum": lambda n, x: n.op("Min", x, n.weight(8, 1, 1)),
    "slopes": lambda n, x: n.op("PRelu", x, n.weight(8, 1, 1)),
    "batch": lambda n, x: n.op(
        "BatchNormalization", x, channels(n, -1, 1), channels(n, -1, 1), channels(n, -1, 1),
        channels(n, 0.5, 2), epsilon=1e-3,
    ),
    "instance": lambda n, x: n.op(
        "InstanceNormalization", x, channels(n, -1, 1), channels(n, -1, 1), epsilon=1e-3
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES)
def test_it_computes_what_onnxruntime_does(case: str, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 2, 8, 12, 11)
    agreed(net.model(net.op("Add", NODES[case](net, x), x)), tmp_path)


@pytest.mark.parametrize("case", NODES)
def test_nothing_of_it_is_opaque(case: str) -> None:
    net = Net()
    x = net.input("x", 2, 8, 12, 11)
    model = net.model(net.op("Add", NODES[case](net, x), x))
    flow = dataflow(load(model.SerializeToString(), {}).module["main"])
    assert "other" not in set(flow.kinds.values())


def test_bounds_that_are_attributes_are_those_of_old_opsets(tmp_path: Path) -> None:
    net = Net(opset=10)
    x = net.input("x", 2, 8, 12, 11)
    agreed(net.model(net.op("Abs", net.op("Clip", x, min=-0.5, max=0.25))), tmp_path)


def test_bounds_that_are_computed_are_tvm_s(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 4, 5)
    low = net.op("ReduceMin", net.input("y", 3), keepdims=0)
    agreed(net.model(net.op("Clip", x, low)), tmp_path)


NARROWED: dict[str, tuple[Build, int, bool]] = {
    "clipped": (lambda n, x: n.op("Clip", x, n.const(-128.0), n.const(127.0)), TensorProto.INT8,
                True),
    "clipped to less": (lambda n, x: n.op("Clip", x, n.const(0.0), n.const(9.5)),
                        TensorProto.UINT8, True),
    "clipped twice": (lambda n, x: n.op("Min", n.op("Clip", x, n.const(-5.0)), n.const(300.0)),
                      TensorProto.INT16, True),
    "clipped to nothing": (lambda n, x: n.op("Max", n.op("Clip", x, "", n.const(5.0)),
                                             n.const(300.0)), TensorProto.UINT8, False),
    "clipped to more": (lambda n, x: n.op("Clip", x, n.const(0.0), n.const(256.0)),
                        TensorProto.UINT8, False),
    "clipped on one side": (lambda n, x: n.op("Clip", x, n.const(0.0)), TensorProto.UINT8, False),
    "to a type of more bytes": (lambda n, x: n.op("Clip", x, n.const(0.0), n.const(9.0)),
                                TensorProto.INT32, False),
}  # fmt: skip


@pytest.mark.parametrize("case", NARROWED)
def test_numbers_that_fit_are_cast_at_once(case: str, tmp_path: Path) -> None:
    """One that may not fit is left to TVM's converter, which lets its bits wrap around."""
    build, to, fits = NARROWED[case]
    net = Net()
    x = net.op("Mul", net.input("x", 2, 8, 12, 11), net.const(40.0))
    model = net.model(net.op("Cast", net.op("Cast", build(net, x), to=to), to=TensorProto.FLOAT))
    agreed(model, tmp_path)
    flow = dataflow(load(model.SerializeToString(), {}).module["main"])
    assert ("bitwise_and" not in {flow.operator(v) for v in flow.order}) == (
        fits or to == TensorProto.INT32
    )


COPIES: dict[str, Build] = {
    "within dimensions": lambda n, x: n.op(
        "Slice", n.op("Tile", x, n.ints(1, 3, 1, 2)), n.ints(4, 5), n.ints(12, 16), n.ints(1, 3)
    ),
    "of a row": lambda n, x: n.op("Tile", n.op("ReduceMax", x, axes=[1]), n.ints(1, 8, 1, 1)),
    "none": lambda n, x: n.op("Tile", x, n.ints(1, 1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("rows", [4, 12, 240])
@pytest.mark.parametrize("case", COPIES)
def test_copies_are_read_where_their_origin_is(case: str, rows: int, tmp_path: Path) -> None:
    """Behind the last row of a copy is the first one of the next, which lies before it."""
    net = Net()
    x = net.input("x", 2, 8, rows, 11)
    model = net.model(net.op("Mul", COPIES[case](net, x), x))
    agreed(model, tmp_path)
    flow = dataflow(load(model.SerializeToString(), {}).module["main"])
    assert "call_tir" not in {flow.operator(v) for v in flow.order}


def test_repeated_heads_are_no_operand_of_attention(tmp_path: Path) -> None:
    """As torch exports repeat_interleave: keys of four heads for the queries of eight."""
    net = Net()
    q, k, v = (net.input(n, 1, heads, 16, 8) for n, heads in (("q", 8), ("k", 4), ("v", 4)))
    k, v = (
        net.op(
            "Reshape",
            net.op("Tile", net.op("Unsqueeze", x, net.ints(2)), net.ints(1, 1, 2, 1, 1)),
            net.ints(1, 8, 16, 8),
        )
        for x in (k, v)
    )
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    model = net.model(net.op("MatMul", net.op("Softmax", scores, axis=-1), v))
    (match,) = agreed(model, tmp_path).matches
    assert {v.name for v in match.arguments.values()} == {"q", "k", "v"}
