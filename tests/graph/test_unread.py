"""Weights that onnxruntime computes nothing from are not written by it, and come back."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from mcfuser.graph.fold import fold
from mcfuser.graph.session import session
from mcfuser.graph.unread import unread_weights, with_weights_as_inputs, with_weights_back
from mcfuser.graph.weights import OnnxArray, OnnxModel, stored
from tests.support.nets import Net

SIDE = 192
"""A matrix of so many rows and columns is large enough to be an array of its own."""


def read(net: Net, *outputs: str) -> OnnxModel:
    """The model with its large weights as arrays, as those of a large model are."""
    proto = net.model(*outputs)
    weights: dict[str, OnnxArray] = {}
    given = [stored(w.name, numpy_helper.to_array(w), weights) for w in proto.graph.initializer]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(given)
    return OnnxModel(proto, weights)


def computed(model: OnnxModel) -> np.ndarray:
    ready = session(model, onnxruntime.SessionOptions())
    (x,) = ready.get_inputs()
    dtype = np.float32 if x.type == "tensor(float)" else np.float16
    return np.asarray(
        ready.run(
            None, {"x": np.linspace(-3, 3, math.prod(x.shape)).reshape(x.shape).astype(dtype)}
        )[0]
    )


def square(net: Net, *more: int) -> str:
    return net.weight(SIDE, SIDE, *more)


def multiplied(net: Net) -> tuple[str, list[str]]:
    x = net.input("x", 4, SIDE)
    one, two = square(net), square(net)
    y = net.op("Gemm", net.op("MatMul", x, one), two, net.weight(SIDE))
    return y, [one, two]


def convolved(net: Net) -> tuple[str, list[str]]:
    weight = square(net, 1)
    y = net.op("Conv", net.input("x", 2, SIDE, 9), weight)
    return net.op("Add", y, net.op("Sigmoid", y)), [weight]


def looked_up(net: Net) -> tuple[str, list[str]]:
    table = square(net)
    x = net.input("x", 4)
    ids = net.op("Cast", net.op("Abs", x), to=onnx.TensorProto.INT64)
    return net.op("Gather", table, ids), [table]


@pytest.mark.parametrize("made", [multiplied, convolved, looked_up])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_multiplied_or_looked_up_stays_as_it_is(
    made: Callable[[Net], tuple[str, list[str]]], dtype: type[np.generic]
) -> None:
    net = Net(dtype)
    y, weights = made(net)
    model = read(net, y)
    assert unread_weights(model) == {*weights}
    folded = fold(model)
    for name in weights:
        assert folded.weights[name] is model.weights[name]
    assert [i.name for i in folded.proto.graph.input] == ["x"]
    before, after = computed(model), computed(folded)
    np.testing.assert_allclose(after, before, rtol=1e-5 if dtype is np.float32 else 1e-2)


def test_what_nothing_reads_any_more_does_not_come_back() -> None:
    net = Net()
    y, weights = multiplied(net)
    model = read(net, y)
    bare = with_weights_as_inputs(model, weights)
    assert [i.name for i in bare.proto.graph.input] == ["x", *weights] and not bare.weights
    del bare.proto.graph.node[1:]
    bare.proto.graph.output[0].name = bare.proto.graph.node[0].output[0]
    back = with_weights_back(bare, model, weights)
    assert [i.name for i in back.proto.graph.input] == ["x"]
    assert [*back.weights] == weights[:1]


def of_constants(net: Net) -> str:
    return net.op("Add", net.input("x", SIDE), net.op("MatMul", square(net), square(net)))


def transposed(net: Net) -> str:
    return net.op("MatMul", net.input("x", 2, SIDE), net.op("Transpose", square(net)))


def added_to(net: Net) -> str:
    y = net.op("Conv", net.input("x", 1, SIDE, 5), square(net, 1))
    return net.op("Add", y, net.weight(SIDE, 1))


def normed(net: Net) -> str:
    x = net.op("MatMul", net.input("x", 4, SIDE), square(net))
    return net.op("BatchNormalization", x, *(net.const(np.ones(SIDE)) for _ in range(4)))


def on_the_left(net: Net) -> str:
    return net.op("MatMul", square(net), net.input("x", SIDE, 3))


def of_one_known_row(net: Net) -> str:
    return net.op("Add", net.input("x", SIDE), net.op("Gather", square(net), net.ints(3)))


@pytest.mark.parametrize(
    "made", [of_constants, transposed, added_to, normed, on_the_left, of_one_known_row]
)
def test_what_something_is_computed_from_is_read(made: Callable[[Net], str]) -> None:
    net = Net()
    y = made(net)
    model = read(net, y)
    assert not unread_weights(model)
    np.testing.assert_allclose(computed(fold(model)), computed(model), rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_read_for_something_else_is_no_input() -> None:
    net = Net()
    y, (one, two) = multiplied(net)
    other = net.op("Relu", two)
    assert unread_weights(read(net, y, other)) == {one}
    assert not unread_weights(read(net, y, other, one))


def test_a_weight_that_is_an_input_besides_is_none_here() -> None:
    net = Net()
    y, weights = multiplied(net)
    net.inputs.append(onnx.helper.make_tensor_value_info(weights[0], 1, [SIDE, SIDE]))
    assert unread_weights(read(net, y)) <= {weights[1]}
