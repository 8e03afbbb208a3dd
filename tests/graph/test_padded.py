"""Windows of padded data read the data themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mcfuser.chain import Chain, Padding
from mcfuser.graph.partition import Partition
from tests.support.computed_naively import agreed
from tests.support.nets import Net


def conv(net: Net, x: str, depth: int, columns: int = 6, groups: int = 1, **more: object) -> str:
    weight = net.weight(columns, depth // groups, 3, 3)
    return net.op("Conv", x, weight, group=groups, **more)


def padding_of(chain: Chain) -> tuple[Padding, ...]:
    return next((chain.tensor(n).padding for n in chain.inputs if chain.tensor(n).padding), ())


def paddings(parted: Partition) -> list[tuple[Padding, ...]]:
    return [padding_of(m.chain) for m in parted.matches]


SAME = (Padding(9, 7, 1), Padding(7, 1, 1))


def test_zeros_around_a_convolution_are_the_chains_padding(tmp_path: Path) -> None:
    net = Net()
    out = conv(net, net.input("x", 2, 4, 9, 7), 4, pads=[1, 1, 1, 1])
    assert paddings(agreed(net.model(out), tmp_path)) == [SAME]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups(groups: int, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 7)
    out = conv(net, x, 4, 8, groups, pads=[1, 1, 1, 1])
    assert paddings(agreed(net.model(out), tmp_path)) == [SAME]


@pytest.mark.parametrize(
    ("pads", "expected"),
    [([0, 1, 0, 1], (Padding(7, 1, 1),)), ([2, 0, 0, 0], (Padding(9, 7, 2),)),
     ([0, 0, 1, 2], (Padding(9, 7, 0), Padding(7, 1, 0)))],
)  # fmt: skip
def test_padding_on_some_sides(
    pads: list[int], expected: tuple[Padding, ...], tmp_path: Path
) -> None:
    net = Net()
    out = conv(net, net.input("x", 1, 4, 9, 7), 4, pads=pads)
    assert paddings(agreed(net.model(out), tmp_path)) == [expected]


def test_padding_that_no_window_reaches_is_none(tmp_path: Path) -> None:
    """Steps of two over 8 positions: the last window ends before the padding after them."""
    net = Net()
    x = net.input("x", 1, 4, 8, 8)
    out = conv(net, x, 4, pads=[1, 1, 1, 1], strides=[2, 2])
    (found,) = paddings(agreed(net.model(out), tmp_path))
    assert found == (Padding(8, 8, 1), Padding(8, 1, 1))
    net = Net()
    out = conv(net, net.input("x", 1, 4, 7, 7), 4, pads=[0, 0, 1, 1], strides=[2, 2])
    assert paddings(agreed(net.model(out), tmp_path)) == [()]


def test_a_pad_of_its_own_is_read_around(tmp_path: Path) -> None:
    """As TensorFlow's exporter writes it, on two sides."""
    net = Net()
    x = net.input("x", 1, 4, 9, 7)
    wide = net.op("Pad", net.op("Relu", x), net.ints(0, 0, 2, 0, 0, 0, 1, 3))
    (*_, found) = paddings(agreed(net.model(conv(net, wide, 4)), tmp_path))
    assert found == (Padding(9, 7, 2), Padding(7, 1, 0))


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_what_is_no_number_is_written_before(mode: str, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 7)
    wide = net.op("Pad", x, net.ints(0, 0, 1, 1, 0, 0, 1, 1), mode=mode)
    assert paddings(agreed(net.model(conv(net, wide, 4)), tmp_path)) == [()]


def test_one_value_with_two_paddings(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 4, 9, 7))
    near = conv(net, x, 4, pads=[1, 1, 1, 1])
    far = conv(net, x, 4, pads=[2, 2, 2, 2], dilations=[2, 2])
    found = paddings(agreed(net.model(net.op("Add", near, far)), tmp_path))
    assert SAME in found and (Padding(9, 7, 2), Padding(7, 1, 2)) in found


def test_maxima_have_the_lowest_number_around(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 16, 9, 7)
    out = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    (found,) = paddings(agreed(net.model(out), tmp_path))
    lowest = float(np.finfo(np.float32).min)
    assert found == (Padding(9, 7, 1, lowest), Padding(7, 1, 1, lowest))


def transposed(net: Net) -> str:
    """Pictures whose channels lie side by side, as a norm over channels leaves them."""
    rows = net.op("Relu", net.input("x", 1, 9 * 7, 8))
    return net.op("Transpose", net.op("Reshape", rows, net.ints(1, 9, 7, 8)), perm=[0, 3, 1, 2])


def test_a_convolution_reads_past_a_transpose(tmp_path: Path) -> None:
    net = Net()
    out = conv(net, transposed(net), 8, pads=[1, 1, 1, 1])
    (*_, found) = paddings(agreed(net.model(out), tmp_path))
    assert found == (Padding(9, 56, 1), Padding(7, 8, 1))


def test_what_has_lanes_along_lines_does_not(tmp_path: Path) -> None:
    net = Net()
    out = conv(net, transposed(net), 8, 8, 8, pads=[1, 1, 1, 1])
    (*_, found) = paddings(agreed(net.model(out), tmp_path))
    assert found == SAME


def test_a_slice_of_channels(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 9, 7))
    part = net.op("Slice", x, net.ints(4), net.ints(8), net.ints(1))
    parted = agreed(net.model(conv(net, part, 4, pads=[1, 1, 1, 1])), tmp_path)
    chain, starts = parted.matches[-1].chain, parted.matches[-1].starts
    assert padding_of(chain) == SAME
    (data,) = (chain.tensor(n) for n in chain.inputs if chain.tensor(n).padding)
    assert data.offset + starts[data.name] == 4 * 63


def test_zeros_between_neighbours_are_written(tmp_path: Path) -> None:
    """A transposed convolution: zeros within data, around which there are more."""
    net = Net()
    x = net.input("x", 1, 4, 5, 6)
    out = net.op("ConvTranspose", x, net.weight(4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    agreed(net.model(out), tmp_path)
