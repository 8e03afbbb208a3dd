"""What exporters spell out is one operator, and the weights around it stay where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mcfuser.graph.dataflow import array
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.matching import called, calls
from tests.support.nets import Net

WIDTH = 160


def squares(n: Net, x: str) -> str:
    return n.op("Pow", x, n.const(2.0))


def roots(n: Net, x: str) -> str:
    return n.op("Pow", n.op("Abs", x), n.const(0.5))


def softmax(n: Net, x: str) -> str:
    shifted = n.op("Sub", x, n.op("ReduceMax", x, axes=[-1]))
    grown = n.op("Exp", shifted)
    return n.op("Div", grown, n.op("ReduceSum", grown, n.ints(-1)))


def layer_norm(n: Net, x: str) -> str:
    centred = n.op("Sub", x, n.op("ReduceMean", x, axes=[-1]))
    variance = n.op("ReduceMean", n.op("Mul", centred, centred), axes=[-1])
    normal = n.op("Div", centred, n.op("Sqrt", n.op("Add", variance, n.const(1e-5))))
    return n.op("Add", n.op("Mul", normal, n.weight(WIDTH)), n.weight(WIDTH))


def loaded(build: Callable[[Net, str], str]) -> Loaded:
    """A model with an idiom between two products, whose weights are large."""
    n = Net(opset=13)
    x = n.op("MatMul", n.input("x", 4, WIDTH), n.weight(WIDTH, WIDTH))
    y = n.op("MatMul", build(n, x), n.weight(WIDTH, WIDTH))
    return load(n.model(y).SerializeToString(), {})


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (squares, ["multiply"]),
        (roots, ["abs", "sqrt"]),
        (softmax, ["nn.softmax"]),
        (layer_norm, ["nn.layer_norm"]),
    ],
)
def test_an_idiom_is_one_operator(build: Callable[[Net, str], str], found: list[str]) -> None:
    module = loaded(build).module
    main = module["main"]
    expected = [f"relax.{name}" for name in ("matmul", *found, "matmul")]
    assert list(called(main.body)) == expected and len(main.params) == 1
    assert int(main.attrs["num_input"]) == 1
    weights = [array(call.args[1]) for name, call in calls(main.body) if name == "relax.matmul"]
    assert [w.shape for w in weights if w is not None] == [(WIDTH, WIDTH)] * 2
    assert not np.array_equal(*weights)


def test_a_model_without_idioms_is_as_it_was() -> None:
    assert list(called(loaded(lambda n, x: n.op("Tanh", x)).module["main"].body)) == [
        "relax.matmul", "relax.tanh", "relax.matmul",
    ]  # fmt: skip
