"""What cannot be computed at extents known at run time is refused in words."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.rules.table import ROWS, RULES
from tests.support.dynamic_nets import dynamic, spans, whole_bucket
from tests.support.nets import Net

ROWS_OF_8: InputShapes = {"x": (spans(1, 9), 8)}


def refusal(net: Net, *outputs: str, shapes: InputShapes = ROWS_OF_8) -> str:
    with pytest.raises(ModelError) as error:
        whole_bucket(dynamic(net.model(*outputs), shapes))
    return str(error.value)


def test_an_operator_without_a_rule_is_named() -> None:
    net = Net()
    x = net.input("x", "n", 8)
    words = refusal(net, net.op("Compress", x, net.const([True] * 8, np.bool_), axis=1))
    assert "operator 'Compress' of domain 'ai.onnx', opset 17 (node 'Compress_0')" in words
    assert "dimension 0 of its input 'x' has such an extent" in words
    assert words.endswith("fix the extent with --shape")


def test_elements_between_which_padding_would_be_are_refused() -> None:
    net = Net()
    x = net.input("x", 2, "n")
    flat = net.op("Reshape", x, net.ints(-1, 2))
    words = refusal(net, flat, shapes={"x": (2, spans(1, 9))})
    assert "operator 'Reshape'" in words and "padding would be between elements" in words


def test_two_extents_that_only_happen_to_be_equal_are_refused() -> None:
    net = Net()
    total = net.op("Add", net.input("x", "n", 8), net.input("y", "m", 8))
    words = refusal(net, total, shapes={"x": (spans(1, 9), 8), "y": (spans(1, 9), 8)})
    assert "different run-time extents along dimension 0, which are 9, 9 here" in words


def test_a_division_of_a_run_time_extent_is_refused() -> None:
    net = Net()
    x = net.input("x", "n", 8)
    rows = net.op("Slice", net.op("Shape", x), net.ints(0), net.ints(1))
    left = net.op("Concat", net.ints(1), net.op("Sub", rows, net.ints(1)), axis=0)
    net.op("Split", x, left, outputs=2, axis=0)
    words = refusal(net, net.nodes[-1].output[1], shapes={"x": (spans(2, 9), 8)})
    assert "operator 'Split'" in words and "dimension 0 of 'x', which it divides" in words


def test_a_result_whose_shape_depends_on_elements_is_refused() -> None:
    net = Net()
    x = net.input("x", "n", 8)
    words = refusal(net, net.op("NonZero", net.op("Relu", x)))
    assert "operator 'NonZero'" in words


def test_pooling_that_rounds_up_is_refused() -> None:
    net = Net()
    x = net.input("x", 1, 2, "n")
    pooled = net.op("MaxPool", x, kernel_shape=[2], strides=[2], ceil_mode=1)
    assert "rounds the number of its windows up" in refusal(
        net, pooled, shapes={"x": (1, 2, spans(4, 9))}
    )


def test_recurrences_over_a_run_time_extent_are_refused() -> None:
    net = Net()
    x = net.input("x", "n", 2, 4)
    y = net.op("RNN", x, net.weight(1, 4, 4), net.weight(1, 4, 4), hidden_size=4)
    words = refusal(net, y, shapes={"x": (spans(2, 5), 2, 4)})
    assert "is written in another way at n=2 than at n=5" in words


def test_no_operator_has_two_rules() -> None:
    assert not set(RULES) & set(ROWS)
