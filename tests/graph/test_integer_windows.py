"""Convolutions and maxima of quantized numbers are those of the integers, wherever zeros lie."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from mcfuser.chain import ChannelsLast, products
from mcfuser.expr import Call, reads
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition, partition
from tests.support.computed_naively import agreed, both
from tests.support.nets import Net

STEP = 0.05


def quantized(n: Net, x: str, zero: int, dtype: type = np.uint8, scale: float = STEP) -> str:
    """x rounded to steps, as an exporter writes it: quantized, and dequantized at once."""
    numbers = [n.const(scale), n.const(zero, dtype)]
    q = n.op("QuantizeLinear", x, *numbers)
    return n.op("DequantizeLinear", q, *numbers)


def weights(n: Net, *shape: int) -> str:
    """Weights of int8, with a scale for each channel."""
    whole = n.const(n.random.integers(-128, 128, shape), np.int8)
    scales = n.const(0.001 + 0.002 * n.random.random(shape[0]))
    return n.op("DequantizeLinear", whole, scales, n.const(np.zeros(shape[0]), np.int8), axis=0)


def conv(
    n: Net, x: str, columns: int, depth: int, kernel: int = 3, pad: int = -1, **more: object
) -> str:
    dilation = int(more.get("dilations", [1])[0])  # type: ignore[index]
    pads = [kernel // 2 * dilation if pad < 0 else pad] * 4
    bias = n.const(n.random.standard_normal(columns) * 0.1)
    w = weights(n, columns, depth, kernel, kernel)
    return n.op("Conv", x, w, bias, pads=pads, kernel_shape=[kernel] * 2, **more)


def parted(n: Net, *outputs: str) -> Partition:
    loaded = load(n.model(*outputs).SerializeToString(), {})
    return partition(loaded.module, 1e12, 1e11, last="always")


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize(("kernel", "strides"), [(3, 1), (3, 2), (5, 1)])
def test_a_convolution_multiplies_bytes(
    zero: int, kernel: int, strides: int, tmp_path: Path
) -> None:
    """What is around the picture is the zero point, so that no zero is written around it."""
    net = Net()
    x = quantized(net, net.input("x", 1, 8, 9, 10), zero)
    y = conv(net, x, 16, 8, kernel, strides=[strides] * 2)
    found = parted(net, y)
    (match,) = (m for m in found.matches if products(m.chain))
    (sums,) = products(match.chain)
    read = [r.tensor for r in reads(sums.body)]
    first = match.chain.operator(read[0]) if read[0] not in match.chain.inputs else sums
    source = match.chain.tensor(reads(first.body)[0].tensor)
    assert (first is sums) == (zero == 0)
    assert source.dtype == "uint8" and match.chain.tensor(read[1]).dtype == "int8"
    assert {p.value for p in source.padding} <= {zero}
    assert source.padding
    agreed(net.model(y), tmp_path, 1e-5)


@pytest.mark.parametrize("zero", [0, 128])
def test_positions_are_the_rows_of_a_convolution_of_single_ones(zero: int, tmp_path: Path) -> None:
    net = Net()
    x = quantized(net, conv(net, net.input("x", 1, 8, 9, 10), 16, 8), zero)
    y = net.op("Add", conv(net, x, 16, 16, 1), conv(net, x, 16, 16))
    y = conv(net, quantized(net, y, 9), 8, 16)
    every = [(m, o) for m in parted(net, y).matches for o in products(m.chain)]
    ((match, sums),) = ((m, o) for m, o in every if len(o.over) == 1)
    left, right = (match.chain.tensor(r.tensor) for r in reads(sums.body))
    assert right.dtype == "int8" and right.constant
    if zero:
        (read, _) = reads(match.chain.operator(left.name).body)
        left = match.chain.tensor(read.tensor)
    assert left.dtype == "uint8" and left.shape[0] == sums.axes[0]
    agreed(net.model(y), tmp_path, 1e-5)


@pytest.mark.parametrize("zero", [0, 77])
def test_depthwise_sums_subtract_what_their_weights_make_of_the_zero_point(
    zero: int, tmp_path: Path
) -> None:
    net = Net()
    x = quantized(net, net.input("x", 1, 12, 7, 9), zero)
    y = conv(net, x, 12, 1, group=12)
    (match,) = (m for m in parted(net, y).matches if products(m.chain))
    (sums,) = products(match.chain)
    assert match.chain.tensor(reads(sums.body)[0].tensor).dtype == "uint8"
    assert any(
        isinstance(o.body, Call) and "sub" in repr(o.body) for o in match.chain.operators
    ) == (zero != 0)
    agreed(net.model(y), tmp_path, 1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("pads", [0, 1])
def test_maxima_are_taken_of_the_integers(dtype: type, pads: int, tmp_path: Path) -> None:
    net = Net()
    x = quantized(net, net.input("x", 1, 64, 29, 29), 5, dtype)
    y = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[pads] * 4)
    (match,) = (m for m in parted(net, y).matches if m.chain.operators[0].reduce == "max")
    (read,) = reads(match.chain.operators[0].body)
    assert match.chain.tensor(read.tensor).dtype == "uint8"
    agreed(net.model(y), tmp_path, 1e-6)


def test_maxima_of_numbers_that_a_negative_scale_made_are_their_own(tmp_path: Path) -> None:
    net = Net()
    whole = net.op("Cast", net.op("Mul", net.input("x", 1, 6, 8, 8), net.const(9.0)), to=3)
    x = net.op("Mul", net.op("Cast", whole, to=1), net.const(-0.5))
    y = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    agreed(net.model(y), tmp_path, 1e-6)


def test_zeros_around_what_has_a_zero_point_known_at_run_time_are_written(tmp_path: Path) -> None:
    net = Net()
    q = net.op("DynamicQuantizeLinear", net.input("x", 1, 8, 6, 6), outputs=3)
    scale, zero = (net.nodes[-1].output[i] for i in (1, 2))
    x = net.op("DequantizeLinear", q, scale, zero)
    agreed(net.model(conv(net, x, 8, 8)), tmp_path, 1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_weights_of_few_channels_or_of_real_data_become_floats(kept: bool, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 1, 8 if kept else 3, 12, 12)
    x = x if kept else quantized(net, x, 128)
    y = conv(net, x, 32, 8 if kept else 3)
    found = parted(net, y)
    (match,) = (m for m in found.matches if products(m.chain))
    (sums,) = products(match.chain)
    assert {match.chain.tensor(r.tensor).dtype for r in reads(sums.body)} == {"float32"}
    agreed(net.model(y), tmp_path, 1e-5)


def test_what_is_added_to_a_result_is_read_as_bytes(tmp_path: Path) -> None:
    """The residual of a quantized block is dequantized where it is added."""
    net = Net()
    x = quantized(net, net.input("x", 1, 8, 6, 6), 3)
    y = net.op("Add", quantized(net, conv(net, x, 8, 8), 9), x)
    y = quantized(net, y, 7)
    (match,) = (m for m in parted(net, y).matches if products(m.chain))
    pictures = [t for t in match.chain.inputs if len(match.chain.tensor(t).shape) > 1]
    assert {match.chain.tensor(t).dtype for t in pictures} == {"uint8", "int8"}
    agreed(net.model(y), tmp_path, 1e-5)


def drawn(rng: random.Random) -> tuple[Net, str]:
    """A quantized network of convolutions of every kind."""
    net, dtype = Net(), rng.choice((np.uint8, np.int8))

    def zero() -> int:
        return rng.choice((0, int(np.iinfo(dtype).min), 17))

    channels = rng.choice((4, 8, 12))
    x = quantized(net, net.input("x", 1, channels, rng.choice((9, 12)), 11), zero(), dtype)
    for _ in range(rng.choice((2, 3, 4))):
        kind = rng.choice(("dense", "depthwise", "grouped", "single", "pool", "residual"))
        strides = [rng.choice((1, 1, 2))] * 2
        if kind == "pool":
            x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=strides, pads=[1] * 4)
        elif kind == "residual":
            x = net.op("Add", quantized(net, conv(net, x, channels, channels), zero(), dtype), x)
        elif kind == "depthwise":
            x = conv(net, x, channels, 1, rng.choice((3, 5)), group=channels, strides=strides)
        elif kind == "grouped":
            x = conv(net, x, channels, channels // 2, group=2, strides=strides)
        else:
            wide, dilations = rng.choice((4, 8, 16)), [rng.choice((1, 1, 2))] * 2
            size = 1 if kind == "single" else 3
            x = conv(net, x, wide, channels, size, strides=strides, dilations=dilations)
            channels = wide
        if rng.random() < 0.5:
            x = net.op(rng.choice(("Relu", "Sigmoid")), x)
        x = quantized(net, x, zero(), dtype)
    return net, x


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_any_quantized_network_computes_what_it_does(seed: int, tmp_path: Path) -> None:
    """All but a few numbers, which round the other way where their sums were near a half: what
    follows from these differs as well."""
    net, y = drawn(random.Random(seed))
    model = net.model(y)
    loaded = load(model.SerializeToString(), {})
    for last in get_args(ChannelsLast):
        found = partition(loaded.module, 1e12, 1e11, last=last)
        for a, b in both(model, loaded, found.matches, tmp_path):
            apart = np.abs(a - b)
            assert np.mean(apart > 1e-4) < 0.02 and apart.max() <= 2.01 * STEP
