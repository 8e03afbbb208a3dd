"""A product whose halves meet elementwise is two products, and a gate of it is one chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mcfuser.graph.dataflow import Dataflow, dataflow, shape
from mcfuser.graph.load import load
from tests.support.computed_naively import agreed
from tests.support.nets import Net

ROWS, DEPTH, COLUMNS = 6, 16, 12


def flow_of(net: Net, *outputs: str) -> Dataflow:
    return dataflow(load(net.model(*outputs).SerializeToString(), {}).module["main"])


def columns_of_products(flow: Dataflow, at: int = -1) -> list[int]:
    return [shape(v)[at] for v in flow.products]


def wide(net: Net, bias: Sequence[int] = (2 * COLUMNS,), rows: Sequence[int] = (2, ROWS)) -> str:
    """A product of twice the columns; with a bias of this shape, if it has dimensions."""
    y = net.op("MatMul", net.input("x", *rows, DEPTH), net.weight(DEPTH, 2 * COLUMNS))
    return net.op("Add", net.weight(*bias), y) if bias else y


def halves(net: Net, y: str, axis: int = -1, columns: int = COLUMNS) -> tuple[str, str]:
    one = net.op("Slice", y, net.ints(-1 << 40), net.ints(columns), net.ints(axis))
    two = net.op("Slice", y, net.ints(-columns), net.ints(1 << 40), net.ints(axis))
    return one, two


def gate(net: Net, one: str, two: str) -> str:
    return net.op("Mul", net.op("Tanh", one), net.op("Mul", two, net.op("Sigmoid", two)))


@pytest.mark.parametrize(
    "bias", [(), (2 * COLUMNS,), (1,), (1, 1, 2 * COLUMNS), (2, 1, 1)], ids=str
)
def test_the_halves_of_a_gate_are_products_of_one_chain(
    bias: tuple[int, ...], tmp_path: Path
) -> None:
    net = Net()
    y = gate(net, *halves(net, wide(net, bias)))
    assert columns_of_products(flow_of(net, y)) == [COLUMNS, COLUMNS]
    parted = agreed(net.model(y), tmp_path)
    assert [len(m.chain.operators) >= 3 for m in parted.matches] == [True]
    assert not parted.left


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_split_is_two_halves(dtype: type[np.generic], tmp_path: Path) -> None:
    net = Net(dtype)
    one = net.op("Split", wide(net), net.ints(COLUMNS, COLUMNS), outputs=2, axis=2)
    two = f"{one[:-1]}1"
    y = gate(net, two, one)
    assert columns_of_products(flow_of(net, y)) == [COLUMNS, COLUMNS]
    agreed(net.model(y), tmp_path, 1e-5 if dtype is np.float32 else 5e-3)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_has_halves(transposed: int, tmp_path: Path) -> None:
    net = Net()
    order = (2 * COLUMNS, DEPTH) if transposed else (DEPTH, 2 * COLUMNS)
    x, weight, bias = net.input("x", ROWS, DEPTH), net.weight(*order), net.weight(2 * COLUMNS)
    y = gate(net, *halves(net, net.op("Gemm", x, weight, bias, transB=transposed), axis=1))
    assert columns_of_products(flow_of(net, y)) == [COLUMNS, COLUMNS]
    agreed(net.model(y), tmp_path)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("window", [(1,), (3,), (1, 1), (3, 3)], ids=str)
def test_the_channels_of_a_convolution_have_halves(
    window: tuple[int, ...], bias: bool, tmp_path: Path
) -> None:
    """As a gated unit of a Conformer, or the gate of an image restorer."""
    net = Net()
    x = net.input("x", 2, DEPTH, *(9 for _ in window))
    more = (net.weight(2 * COLUMNS),) if bias else ()
    pads = [n // 2 for n in window] * 2
    y = net.op("Conv", x, net.weight(2 * COLUMNS, DEPTH, *window), *more, pads=pads)
    y = net.op("Mul", *halves(net, y, axis=1))
    flow = flow_of(net, y)
    assert len(flow.products) == 2
    assert all(COLUMNS in shape(v) and 2 * COLUMNS not in shape(v) for v in flow.products)
    agreed(net.model(y), tmp_path)


def test_every_matrix_of_a_batch_has_halves(tmp_path: Path) -> None:
    net = Net()
    x, weight = net.input("x", 3, ROWS, DEPTH), net.weight(3, DEPTH, 2 * COLUMNS)
    y = gate(net, *halves(net, net.op("MatMul", x, weight)))
    assert columns_of_products(flow_of(net, y)) == [COLUMNS, COLUMNS]
    agreed(net.model(y), tmp_path)


def uneven(net: Net) -> Sequence[str]:
    y = wide(net)
    part = net.op("Slice", y, net.ints(0), net.ints(1), net.ints(-1))
    return [net.op("Mul", part, net.op("Slice", y, net.ints(1), net.ints(24), net.ints(-1)))]


def of_rows(net: Net) -> Sequence[str]:
    return [gate(net, *halves(net, wide(net), axis=1, columns=ROWS // 2))]


def with_a_third_reader(net: Net) -> Sequence[str]:
    y = wide(net)
    return [gate(net, *halves(net, y)), net.op("Relu", y)]


def with_a_half_read_elsewhere(net: Net) -> Sequence[str]:
    one, two = halves(net, wide(net))
    return [gate(net, one, two), net.op("ReduceMax", one, axes=[1])]


def with_a_half_that_is_a_result(net: Net) -> Sequence[str]:
    one, two = halves(net, wide(net))
    return [one, gate(net, one, two)]


def that_is_a_result_itself(net: Net) -> Sequence[str]:
    y = wide(net)
    return [y, gate(net, *halves(net, y))]


def that_meet_in_a_product(net: Net) -> Sequence[str]:
    one, two = halves(net, wide(net))
    return [net.op("MatMul", one, net.op("Transpose", two, perm=[0, 2, 1]))]


def that_meet_behind_a_norm(net: Net) -> Sequence[str]:
    one, two = halves(net, wide(net))
    return [net.op("Mul", one, net.op("LayerNormalization", two, net.weight(COLUMNS)))]


def of_computed_weights(net: Net) -> Sequence[str]:
    weight = net.input("w", DEPTH, 2 * COLUMNS)
    return [gate(net, *halves(net, net.op("MatMul", net.input("x", ROWS, DEPTH), weight)))]


def of_channels_in_groups(net: Net) -> Sequence[str]:
    x, weight = net.input("x", 1, DEPTH, 5, 5), net.weight(2 * COLUMNS, DEPTH // 2, 3, 3)
    return [net.op("Mul", *halves(net, net.op("Conv", x, weight, group=2), axis=1))]


def of_two_products(net: Net) -> Sequence[str]:
    """A recurrence's gates read what is added to another product."""
    y = net.op("Add", wide(net), net.input("h", 2, ROWS, 2 * COLUMNS))
    return [gate(net, *halves(net, y))]


def with_every_other_column(net: Net) -> Sequence[str]:
    y, ends, axes, steps = wide(net), net.ints(24), net.ints(-1), net.ints(2)
    parts = [net.op("Slice", y, net.ints(i), ends, axes, steps) for i in (0, 1)]
    return [gate(net, *parts)]


@pytest.mark.parametrize(
    "other",
    [
        uneven,
        of_rows,
        with_a_third_reader,
        with_a_half_read_elsewhere,
        with_a_half_that_is_a_result,
        that_is_a_result_itself,
        that_meet_in_a_product,
        that_meet_behind_a_norm,
        of_computed_weights,
        of_channels_in_groups,
        of_two_products,
        with_every_other_column,
    ],
)
def test_other_products_stay_whole(other: Callable[[Net], Sequence[str]], tmp_path: Path) -> None:
    net = Net()
    outputs = other(net)
    flow = flow_of(net, *outputs)
    cut = [v for v in flow.products if COLUMNS in shape(v) and 2 * COLUMNS not in shape(v)]
    assert not cut
    agreed(net.model(*outputs), tmp_path)
