"""Pooling is a reduction over windows that lie inside the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.computed_naively import agreed
from tests.support.nets import Net

POOLINGS = {
    "inside": ("MaxPool", (2, 16, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "overlapping": (
        "MaxPool", (1, 16, 9, 9),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "dilated": ("MaxPool", (1, 16, 9, 9), {"kernel_shape": [2, 2], "dilations": [3, 2]}),
    "rounded up": (
        "MaxPool", (1, 16, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    ),
    "some left over": ("MaxPool", (1, 16, 20, 20), {"kernel_shape": [3, 3], "strides": [3, 3]}),
    "one dimension": ("MaxPool", (1, 16, 40), {"kernel_shape": [3], "pads": [1, 1]}),
    "mean": ("AveragePool", (1, 16, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    "mean without padding": (
        "AveragePool", (1, 16, 9, 9),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "mean with padding": (
        "AveragePool", (1, 16, 9, 8),
        {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "count_include_pad": 1},
    ),
    "mean rounded up": (
        "AveragePool", (1, 16, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    ),
    "mean in three dimensions": ("AveragePool", (1, 8, 6, 6, 6), {"kernel_shape": [2, 2, 3]}),
}  # fmt: skip


@pytest.mark.parametrize("case", POOLINGS)
def test_pooling_is_a_chain_that_computes_it(case: str, tmp_path: Path) -> None:
    kind, shape, attributes = POOLINGS[case]
    net = Net(opset=19)
    x = net.input("x", *shape)
    parted = agreed(net.model(net.op(kind, x, **attributes)), tmp_path)
    (match,) = parted.matches
    assert sum(o.reduce != "none" for o in match.chain.operators) == 1


def test_maxima_of_negative_data_do_not_see_the_padding(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 16, 9, 9)
    low = net.op("Sub", net.op("Neg", net.op("Abs", x)), net.const(100.0))
    out = net.op("MaxPool", low, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    agreed(net.model(out), tmp_path)


def test_pools_of_a_pyramid_are_chains_of_few_loops(tmp_path: Path) -> None:
    """As in detectors: data beside three maxima over windows of their own. In one chain they would
    have ten loops, and 3,628,800 orders of these."""
    net = Net()
    x = net.input("x", 1, 16, 9, 9)
    pools = [
        net.op("MaxPool", x, kernel_shape=[k, k], strides=[1, 1], pads=[k // 2] * 4)
        for k in (3, 5, 7)
    ]
    parted = agreed(net.model(net.op("Concat", x, *pools, axis=1)), tmp_path)
    reduced = [m for m in parted.matches if any(o.reduce != "none" for o in m.chain.operators)]
    assert len(reduced) == 3
    assert max(len(m.chain.axes) for m in reduced) <= 7
