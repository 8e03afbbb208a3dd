"""Rows that a model chooses may be in another order where rounding decides it, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mcfuser.graph.check import output_errors, settled_errors
from mcfuser.graph.unsettled import unsettled_errors
from mcfuser.graph.weights import OnnxModel
from tests.support.nets import Net

ROWS, BEST = 40, 12
PASSES = 1e-4


def chosen(equal: bool) -> OnnxModel:
    """The best rows of a product, and their scores: two rows are nearly equal if `equal`."""
    net = Net(opset=18)
    x = net.input("x", 1, 8)
    weight = net.random.standard_normal((8, ROWS, 3))
    if equal:
        weight[:, 1::2, 0] = weight[:, ::2, 0] * (1 + 1e-8)
    flat = net.op("MatMul", x, net.const(weight.reshape(8, -1)))
    rows = net.op("Reshape", flat, net.ints(ROWS, 3))
    score = net.op("Gather", rows, net.const(0, np.int64), axis=1)
    net.op("TopK", score, net.ints(BEST), outputs=2)
    values, at = net.nodes[-1].output
    return OnnxModel(net.model(net.op("Gather", rows, at, axis=0), values))


FEEDS = {"x": np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)}


def outputs(model: OnnxModel) -> dict[str, NDArray[np.generic]]:
    names = [o.name for o in model.proto.graph.output]
    from mcfuser.graph.intermediate import computed_by_onnxruntime

    return computed_by_onnxruntime(model, FEEDS, names)


def exchanged(found: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The outputs with the rows of equal scores in another order."""
    order = [i ^ 1 for i in range(BEST)]
    return {name: array[order] for name, array in found.items()}


def settled(model: OnnxModel, found: dict[str, NDArray[np.generic]]) -> float:
    wanted = outputs(model)
    errors = output_errors([*found], [*found.values()], [*wanted.values()])
    return max(settled_errors(errors, PASSES, model, FEEDS, [*found.values()]).values())


def test_rows_that_rounding_exchanges_agree() -> None:
    model = chosen(True)
    other = exchanged(outputs(model))
    assert max(unsettled_errors(model, FEEDS, other, PASSES).values()) < 1e-5
    assert settled(model, other) < 1e-5


def test_rows_that_it_does_not_exchange_do_not() -> None:
    model = chosen(False)
    assert unsettled_errors(model, FEEDS, exchanged(outputs(model)), PASSES) == {}
    assert settled(model, exchanged(outputs(model))) > PASSES


@pytest.mark.parametrize("part", [0.2, 1.0])
def test_other_rows_do_not_agree(part: float) -> None:
    model = chosen(True)
    other = exchanged(outputs(model))
    rows, scores = other
    wrong = np.array(other[rows])
    wrong[: round(part * BEST)] += 0.1
    assert settled(model, {rows: wrong, scores: other[scores]}) > PASSES


def test_a_model_that_chooses_nothing_is_not_run_again() -> None:
    net = Net()
    model = OnnxModel(net.model(net.op("Exp", net.input("x", 1, 8))))
    assert unsettled_errors(model, FEEDS, outputs(model), PASSES) == {}
