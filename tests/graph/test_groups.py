"""Norms over groups of channels keep the dimensions of a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mcfuser.graph.dataflow import Dataflow, dataflow, shape
from mcfuser.graph.load import load
from tests.support.computed_naively import agreed
from tests.support.nets import Net

N, CHANNELS, GROUPS = 2, 12, 4


def flow_of(net: Net, *outputs: str) -> Dataflow:
    return dataflow(load(net.model(*outputs).SerializeToString(), {}).module["main"])


def reshaped(net: Net, x: str, *extents: int) -> str:
    return net.op("Reshape", x, net.const(extents, np.int64))


def by_instances(net: Net, x: str, weights: bool, *places: int) -> str:
    """As torch.onnx writes a norm of groups."""
    scale, shift = (
        net.weight(GROUPS) if weights else net.const(np.full(GROUPS, number, np.float32))
        for number in (1.0, 0.0)
    )
    apart = reshaped(net, x, N, GROUPS, -1)
    normal = net.op("InstanceNormalization", apart, scale, shift, epsilon=1e-3)
    return reshaped(net, normal, N, CHANNELS, *places)


def spelled_out(net: Net, x: str, *places: int) -> str:
    """With a maximum, a root of its own, and a number; nothing that TVM has a name for."""
    apart = reshaped(net, x, N, GROUPS, CHANNELS // GROUPS, -1)
    axes = {"axes": [2, 3]}
    mean = net.op("ReduceMean", apart, **axes)
    centred = net.op("Sub", apart, mean)
    most = net.op("ReduceMax", net.op("Abs", centred), **axes)
    normal = net.op("Div", net.op("Mul", centred, net.const(2.0)), net.op("Sqrt", most))
    return reshaped(net, normal, N, CHANNELS, *places)


@pytest.mark.parametrize("places", [(6,), (4, 6), (2, 3, 4)])
@pytest.mark.parametrize("written", ["operator", "instances", "weighted", "spelled out"])
def test_elements_keep_the_dimensions_of_their_picture(
    written: str, places: tuple[int, ...], tmp_path: Path
) -> None:
    net = Net(opset=21 if written == "operator" else 17)
    x = net.op("Relu", net.input("x", N, CHANNELS, *places))
    if written == "operator":
        weights = (net.weight(CHANNELS) for _ in range(2))
        y = net.op("GroupNormalization", x, *weights, num_groups=GROUPS)
    elif written == "spelled out":
        y = spelled_out(net, x, *places)
    else:
        y = by_instances(net, x, written == "weighted", *places)
    y = net.op("Relu", y)
    flow = flow_of(net, y)
    apart = {(N, GROUPS, CHANNELS // GROUPS, *places), (N, CHANNELS, *places)}
    whole = int(np.prod(shape(flow.order[0])))
    assert {shape(v) for v in flow.order if np.prod(shape(v)) == whole} == apart
    (relu,) = (v for v in flow.order if flow.operator(v) == "nn.relu" and v in flow.outputs)
    assert shape(relu) == (N, CHANNELS, *places)
    agreed(net.model(y), tmp_path)


def test_ones_and_zeros_of_a_norm_are_left_out() -> None:
    net = Net()
    x = net.input("x", N, CHANNELS, 4, 4)
    flow = flow_of(net, by_instances(net, x, False, 4, 4))
    operators = [flow.operator(v) for v in flow.order]
    assert operators.count("multiply") == 1, "the square"
    assert operators.count("add") == 1, "epsilon"


@pytest.mark.parametrize("other", ["groups", "rest", "nothing reduced", "some reduced", "weights"])
def test_what_is_no_norm_of_groups_stays(other: str, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", N, CHANNELS, 4, 4)
    groups = 8 if other == "groups" else GROUPS
    apart = reshaped(net, x, N, groups, 6, -1) if other == "some reduced" else None
    apart = apart or reshaped(net, x, N, groups, -1)
    axes = {"nothing reduced": None, "rest": [1], "some reduced": [3]}.get(other, [2])
    y = (
        net.op("Relu", apart)
        if axes is None
        else net.op("Sub", apart, net.op("ReduceMean", apart, axes=axes))
    )
    if other == "weights":
        y = net.op("Mul", y, net.weight(CHANNELS // GROUPS * 16))
    y = net.op("Relu", reshaped(net, y, N, CHANNELS, 4, 4))
    flow = flow_of(net, y)
    assert (N, groups, CHANNELS // groups, 4, 4) not in {shape(v) for v in flow.order}
    agreed(net.model(y), tmp_path)


def test_one_group_of_one_picture_has_statistics_of_one_number(tmp_path: Path) -> None:
    """Which are no constants, and constants of more dimensions than the picture."""
    net = Net()
    x = net.input("x", 1, 6, 5)
    apart = reshaped(net, x, 1, 1, 6, -1)
    centred = net.op("Sub", apart, net.op("ReduceMean", apart, axes=[2, 3]))
    y = net.op("Mul", centred, net.const(np.full((1, 1, 1, 1), 3.0)))
    y = reshaped(net, net.op("Add", y, net.const(1.0)), 1, 6, 5)
    flow = flow_of(net, y)
    assert (1, 1, 6, 5) in {shape(v) for v in flow.order}
    assert flow.operator(next(iter(flow.outputs))) == "add"
    agreed(net.model(y), tmp_path)
