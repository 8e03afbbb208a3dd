"""Which dimensions of a model's inputs are one run-time extent."""

from __future__ import annotations

import pytest

from mcfuser.errors import ModelError
from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.axes import RuntimeShapes, runtime_shapes, tied
from tests.support.dynamic_nets import spans
from tests.support.nets import Net


def found(shapes: InputShapes) -> RuntimeShapes:
    net = Net()
    net.input("ids", "batch", "length")
    net.input("mask", "batch", "length")
    net.input("table", 4, "rows")
    return runtime_shapes(net.model(net.op("Relu", "ids")), shapes)


def test_dimensions_of_one_name_are_one_extent() -> None:
    shapes = found({"ids": (spans(1, 4), spans(2, 9))})
    assert [(e.name, e.low, e.high) for e in shapes.extents] == [("batch", 1, 4), ("length", 2, 9)]
    assert shapes.extents[1].places == (("ids", 1), ("mask", 1))
    assert shapes.at({"batch": 3, "length": 5}) == {"ids": (3, 5)}


def test_a_range_may_be_given_by_the_name_of_a_dimension() -> None:
    shapes = found({"length": (spans(2, 9),), "batch": (1,)})
    assert [(e.name, e.low, e.high) for e in shapes.extents] == [("length", 2, 9)]
    assert shapes.extents[0].places == (("ids", 1), ("mask", 1))
    assert shapes.at({"length": 5}) == {"length": (5,), "batch": (1,)}


def test_fixed_extents_stay() -> None:
    shapes = found({"ids": (1, spans(2, 9)), "mask": (1, spans(2, 9))})
    assert shapes.at({"length": 5}) == {"ids": (1, 5), "mask": (1, 5)}


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"ids": (1, spans(2, 9)), "mask": (1, spans(2, 8))}, "in the model both are 'length'"),
        ({"ids": (1, spans(2, 9)), "mask": (1, 5)}, "fixes dimension 1 of input 'mask' at 5"),
        ({"table": (spans(1, 4), 8)}, r"the range 1\.\.4; the model fixes it at 4"),
        ({"ids": (spans(1, 4),)}, "gives input 'ids' 1 dimensions; it has 2"),
        (
            {"other": (spans(1, 4),)},
            "names 'other'; the model has the inputs ids, mask, table, and the "
            "dimensions batch, length, rows",
        ),
        ({"length": (spans(2, 9),), "mask": (1, 5)}, "fixes dimension 1 of input 'mask' at 5"),
        ({"length": (spans(2, 9),), "ids": (1, spans(2, 8))}, "in the model both are 'length'"),
        (
            {"length": (4,), "ids": (1, spans(2, 8))},
            "fixes dimension 'length' at 4, and gives dimension 1 of input 'ids'",
        ),
    ],
)
def test_contradictions_are_named(shapes: InputShapes, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        found(shapes)


def test_extents_of_one_range_may_be_tied() -> None:
    """Not those of one input, nor those of different ranges."""
    net = Net()
    net.input("ids", "s1", "s2", "s3")
    net.input("mask", "s4", "s5")
    shapes = {"ids": (spans(1, 4), spans(1, 4), spans(2, 9)), "mask": (spans(1, 4), spans(2, 8))}
    made = tied(runtime_shapes(net.model(net.op("Relu", "ids")), shapes))
    assert {e.name: e.places for e in made.extents} == {
        "s1": (("ids", 0), ("mask", 0)), "s2": (("ids", 1),), "s3": (("ids", 2),),
        "s5": (("mask", 1),),
    }  # fmt: skip
    assert made.at({"s1": 3, "s2": 2, "s3": 5, "s5": 7}) == {"ids": (3, 2, 5), "mask": (3, 7)}


def test_named_dimensions_may_be_tied() -> None:
    net = Net()
    net.input("ids", "s1")
    net.input("mask", "s2")
    shapes = {"s1": (spans(1, 4),), "s2": (spans(1, 4),)}
    made = tied(runtime_shapes(net.model(net.op("Relu", "ids")), shapes))
    assert [e.places for e in made.extents] == [(("ids", 0), ("mask", 0))]
    assert made.at({"s1": 3}) == {"s1": (3,), "s2": (3,)}
