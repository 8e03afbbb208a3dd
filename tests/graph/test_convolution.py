"""Convolutions are products over windows, or matrix products where they are such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcfuser.chain import products
from mcfuser.graph.load import load
from tests.support.computed_naively import agreed
from tests.support.nets import Net


def convolved(shape: tuple[int, ...], weight: tuple[int, ...], **attributes: object) -> Net:
    net = Net()
    x = net.input("x", *shape)
    net.op("Conv", x, net.weight(*weight), net.weight(weight[0]), **attributes)
    return net


def output(net: Net) -> str:
    return net.nodes[-1].output[0]


CONVOLUTIONS = {
    "windows": ((2, 4, 9, 7), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 3, 12, 11), (8, 3, 5, 3), {"strides": [2, 3], "pads": [2, 1, 2, 1]}),
    "dilated": ((1, 4, 12, 12), (4, 4, 3, 3), {"dilations": [2, 3]}),
    "uneven padding": ((1, 4, 6, 6), (5, 4, 2, 2), {"pads": [0, 1, 1, 0]}),
    "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
    "several to a channel": ((1, 4, 7, 7), (8, 1, 3, 3), {"group": 4}),
    "groups": ((2, 6, 7, 7), (9, 2, 3, 3), {"group": 3}),
    "groups of single positions": ((1, 6, 5, 5), (8, 3, 1, 1), {"group": 2}),
    "one dimension": ((2, 5, 17), (4, 5, 4), {"pads": [2, 1], "strides": [2]}),
    "three dimensions": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [1, 0, 0, 0, 1, 1]}),
    "single positions": ((2, 6, 5, 4), (7, 6, 1, 1), {}),
    "every second position": ((1, 6, 7, 7), (4, 6, 1, 1), {"strides": [2, 2]}),
    "patches": ((2, 3, 8, 12), (5, 3, 4, 4), {"strides": [4, 4]}),
    "all of the data": ((3, 4, 5, 5), (6, 4, 5, 5), {}),
    "same, by its name": (
        (1, 3, 9, 9),
        (4, 3, 3, 3),
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_is_one_chain_that_computes_it(case: str, tmp_path: Path) -> None:
    shape, weight, attributes = CONVOLUTIONS[case]
    net = convolved(shape, weight, **attributes)
    parted = agreed(net.model(net.op("Relu", output(net))), tmp_path)
    (match,) = parted.matches
    assert match.chain.operators[-1].reduce == "none", "the bias and the map share its kernel"
    (product,) = parted.products
    assert product.name == "Conv_0" and product.chain == 0
    groups = int(attributes.get("group", 1))
    depth = weight[1]
    for extent in weight[2:]:
        depth *= extent
    assert product.depth == depth
    flops = product.batch * product.rows * product.columns * depth
    assert flops % groups == 0


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "depth"),
    [
        ((1, 4, 7, 7), (5, 4, 3, 3), {"pads": [9, 9, 9, 9], "dilations": [9, 9]}, 4),
        ((1, 4, 7, 9), (5, 4, 3, 3), {"pads": [9, 2, 9, 2], "dilations": [9, 2]}, 4 * 3),
        ((1, 4, 7, 7), (8, 2, 3, 3), {"pads": [6, 6, 6, 6], "dilations": [6, 6], "group": 2}, 18),
        # positions -7, -5 .. 5 of three windows 2 apart, of data at 0 to 4; and -3, 0 .. 9 of four
        ((1, 4, 5, 6), (5, 4, 7, 5), {"pads": [7, 3, 5, 7], "strides": [2, 1],
                                      "dilations": [2, 3]}, 4 * 4 * 3),
        # the last window ends before the data do: nothing may be cut there
        ((1, 4, 9, 4), (5, 4, 2, 1), {"pads": [5, 0, 0, 0], "strides": [5, 1],
                                      "dilations": [8, 1]}, 4 * 2),
    ],
)  # fmt: skip
def test_what_meets_nothing_but_padding_is_left_out(
    shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict, depth: int, tmp_path: Path
) -> None:
    net = convolved(shape, weight, **attributes)
    (product,) = agreed(net.model(net.op("Relu", output(net))), tmp_path).products
    assert product.depth == depth


def test_weights_of_a_convolution_lie_with_their_columns_side_by_side(tmp_path: Path) -> None:
    net = convolved((1, 4, 9, 7), (6, 4, 3, 3))
    (match,) = agreed(net.model(output(net)), tmp_path).matches
    (o,) = products(match.chain)
    weights = next(t for t in match.chain.tensors if t.constant and len(t.shape) > 1)
    assert weights.shape[-1] == o.axes[-1], "the columns are the last axis of both"
    assert match.chain.shape(weights.name) == (4, 3, 3, 6)


def test_data_are_read_at_windows_without_a_copy(tmp_path: Path) -> None:
    net = convolved((1, 4, 9, 7), (6, 4, 3, 3), strides=[2, 1])
    (match,) = agreed(net.model(output(net)), tmp_path).matches
    data = next(t for t in match.chain.tensors if t.strides and not t.constant)
    assert sorted(data.strides) == [1, 1, 7, 14, 63]
    assert match.arguments[data.name].name == "x"


def test_a_depthwise_convolution_shares_a_chain_with_the_product_after_it(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 8, 9, 9)
    wide = net.op("Relu", net.op("Conv", x, net.weight(8, 1, 3, 3), group=8))
    out = net.op("Conv", wide, net.weight(6, 8, 1, 1))
    (match,) = agreed(net.model(out), tmp_path).matches
    assert len(products(match.chain)) == 2


def test_a_residual_and_a_map_are_a_convolution_s_epilogue(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 4, 6, 6)
    inner = net.op("Conv", x, net.weight(4, 4, 3, 3), net.weight(4), pads=[1, 1, 1, 1])
    out = net.op("Relu", net.op("Add", inner, x))
    assert len(agreed(net.model(out), tmp_path).matches) == 1


def test_a_convolution_of_transposed_data_reads_them_as_they_lie(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 2, 11, 6)
    rows = net.op("Transpose", x, perm=[0, 2, 1])
    out = net.op("Conv", rows, net.weight(5, 6, 3))
    (match,) = agreed(net.model(net.op("Transpose", out, perm=[0, 2, 1])), tmp_path).matches
    assert [a.name for a in match.arguments.values()] == ["x"]


TRANSPOSED = {
    "side by side": ((1, 4, 3, 5), (4, 6, 2, 2), {"strides": [2, 2]}),
    "overlapping": ((2, 4, 5, 4), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "with more after": (
        (1, 4, 5, 4), (4, 3, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "cut off": ((1, 3, 6, 6), (3, 2, 2, 2), {"pads": [1, 1, 1, 1]}),
    "wide apart": ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": [3, 3]}),
    "dilated": ((1, 3, 5, 5), (3, 4, 3, 2), {"strides": [2, 1], "dilations": [2, 2]}),
    "one dimension": ((1, 3, 7), (3, 4, 4), {"strides": [2], "pads": [1, 1]}),
    "three dimensions": (
        (1, 3, 3, 4, 5), (3, 2, 3, 3, 2),
        {"strides": [2, 2, 1], "pads": [1, 0, 1, 1, 0, 0], "output_padding": [1, 0, 0]},
    ),
    "cubes side by side": ((2, 3, 3, 2, 4), (3, 4, 2, 2, 2), {"strides": [2, 2, 2]}),
    "in groups": (
        (1, 6, 4, 5), (6, 2, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 3}
    ),
    "groups side by side": ((1, 4, 3, 5), (4, 3, 2, 2), {"strides": [2, 2], "group": 2}),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_convolution_is_a_product_over_windows(case: str, tmp_path: Path) -> None:
    attributes: dict[str, Any]
    shape, weight, attributes = TRANSPOSED[case]
    net = Net()
    x = net.input("x", *shape)
    bias = net.weight(weight[1] * attributes.get("group", 1))
    out = net.op("ConvTranspose", x, net.weight(*weight), bias, **attributes)
    parted = agreed(net.model(out), tmp_path)
    assert len(parted.products) == 1 and parted.products[0].chain is not None


@pytest.mark.parametrize("kind", ["ConvTranspose", "MaxPool"])
def test_no_zeros_are_written_where_there_are_none(kind: str) -> None:
    """They would be a copy of the data."""
    net = Net()
    x = net.input("x", 1, 4, 6, 6)
    if kind == "ConvTranspose":
        net.op("ConvTranspose", x, net.weight(4, 6, 2, 2), strides=[2, 2])
    else:
        net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    module = load(net.model(output(net)).SerializeToString(), {}).module
    assert "nn.pad" not in module.script()


def test_each_channel_is_enlarged_by_itself(tmp_path: Path) -> None:
    """As by a network that learns to resize: two of four positions meet data at a time."""
    net = Net()
    x = net.input("x", 1, 8, 5, 6)
    out = net.op("ConvTranspose", x, net.weight(8, 1, 4, 4), strides=[2, 2], pads=[1] * 4, group=8)
    (match,) = agreed(net.model(out), tmp_path).matches
    assert [a.extent for a in match.chain.axes][-2:] == [2, 2]
