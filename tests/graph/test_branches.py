"""Convolutions of one value that are added up are one convolution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.graph.branches import Taps, combine_branches
from mcfuser.graph.weights import OnnxModel
from tests.support.computed_naively import agreed
from tests.support.nets import Net


def combined(model: onnx.ModelProto) -> onnx.ModelProto:
    made = combine_branches(OnnxModel(model, {})).proto
    for m in (model, made):
        onnx.shape_inference.infer_shapes(m, check_type=True, strict_mode=True, data_prop=True)
    return made


def counts(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    given = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    return session.run(None, given)


def same(model: onnx.ModelProto, **expected: int) -> onnx.ModelProto:
    """Combined, the model computes what it did, with so many nodes of these kinds."""
    made = combined(model)
    found = counts(made)
    assert {kind: found[kind] for kind in expected} == expected
    for a, b in zip(run(made), run(model), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
    return made


def conv(
    net: Net, x: str, columns: int, depth: int, k: int, bias: bool = True, **more: object
) -> str:
    weights = [net.weight(columns, depth, k, k), *([net.weight(columns)] if bias else [])]
    return net.op("Conv", x, *weights, **more)


def norm(net: Net, x: str, channels: int, **more: object) -> str:
    positive = net.const(np.abs(net.random.standard_normal(channels)) + 0.5)
    values = [net.weight(channels) for _ in range(3)]
    return net.op("BatchNormalization", x, *values, positive, **more)


def added(net: Net, *values: str) -> str:
    total = values[0]
    for value in values[1:]:
        total = net.op("Add", total, value)
    return total


def test_branches_of_a_block_and_their_normalization(tmp_path: Path) -> None:
    """RepVGG's: windows of 3 x 3, single positions, and the value itself, normalized."""
    net = Net()
    x = net.op("Relu", net.input("x", 2, 8, 7, 9))
    branches = conv(net, x, 8, 8, 1), conv(net, x, 8, 8, 3, pads=[1] * 4), norm(net, x, 8)
    model = net.model(net.op("Relu", added(net, *branches)))
    made = same(model, Conv=1, BatchNormalization=0, Add=0)
    (one,) = (n for n in made.graph.node if n.op_type == "Conv")
    assert one.name == model.graph.node[2].name, "the widest one gives its name"
    assert agreed(model, tmp_path).matches[-1].chain.tensor("A").padding


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_branches_in_groups(groups: int) -> None:
    """MobileOne's, depthwise and not."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    depth, more = 8 // groups, {"group": groups}
    wide = [conv(net, x, 8, depth, 3, pads=[1] * 4, **more) for _ in range(3)]
    model = net.model(added(net, *wide, conv(net, x, 8, depth, 1, **more), norm(net, x, 8), x))
    same(model, Conv=1, BatchNormalization=0, Add=0)


def test_steps_of_two() -> None:
    """The value has other extents than what is added up, so it stays."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 9, 9))
    more = {"strides": [2, 2]}
    wide = conv(net, x, 8, 8, 3, pads=[1] * 4, **more)
    same(net.model(added(net, wide, conv(net, x, 8, 8, 1, bias=False, **more))), Conv=1, Add=0)


def test_what_else_is_added_is_added_still() -> None:
    net = Net()
    x, y = net.op("Relu", net.input("x", 1, 8, 7, 9)), net.input("y", 1, 8, 7, 9)
    one, two = conv(net, x, 8, 8, 3, pads=[1] * 4), conv(net, x, 8, 8, 1)
    left = net.op("Add", net.op("Add", one, y), net.op("Add", y, two))
    same(
        net.model(net.op("Sub", net.op("Add", left, net.weight(8, 1, 1)), y)), Conv=1, Add=3, Sub=1
    )


def test_signs() -> None:
    """A normalization that is taken away, as FastViT's mixer has it, and one from which a
    convolution is."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    mixed = added(net, conv(net, x, 8, 8, 3, pads=[1] * 4), norm(net, x, 8))
    model = net.model(net.op("Sub", norm(net, x, 8), net.op("Sub", mixed, norm(net, x, 8))))
    same(model, Conv=1, BatchNormalization=0, Add=0, Sub=0)


def test_a_value_that_is_added_twice() -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    same(net.model(added(net, conv(net, x, 8, 8, 3, pads=[1] * 4), x, x)), Conv=1, Add=0)


def left_alone(net: Net, out: str, *more: str) -> None:
    model = net.model(out, *more)
    assert counts(combined(model)) == counts(model)


def test_convolutions_of_two_values_stay() -> None:
    net = Net()
    x, y = (net.op("Relu", net.input(n, 1, 8, 7, 9)) for n in "xy")
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1), conv(net, y, 8, 8, 1)))


def test_what_is_read_elsewhere_stays() -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    one, two = conv(net, x, 8, 8, 1), conv(net, x, 8, 8, 1)
    left_alone(net, net.op("Add", one, two), one)


def test_windows_that_would_be_mostly_zeros_stay() -> None:
    """Two windows of 3 x 3 whose positions lie 1 and 6 apart are one of 13 x 13."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 16, 16))
    far = conv(net, x, 8, 8, 3, pads=[6] * 4, dilations=[6, 6])
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 3, pads=[1] * 4), far))


def test_windows_to_one_side() -> None:
    """Two positions, the last of which is the window's place, and that place alone."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    before = conv(net, x, 8, 8, 2, pads=[1, 1, 0, 0])
    same(net.model(net.op("Add", conv(net, x, 8, 8, 1), before)), Conv=1, Add=0)


def test_other_strides_stay() -> None:
    """Two ways from 2 x 2 positions to a single one."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 2, 2))
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 2), conv(net, x, 8, 8, 1, strides=[2, 2])))


def test_other_groups_stay() -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1), conv(net, x, 8, 4, 1, group=2)))


def test_ends_that_are_the_same_at_some_extents_alone_stay() -> None:
    """In steps of two over 8 positions, the last windows read 7 and 6 .. 8."""
    net = Net()
    x, more = net.op("Relu", net.input("x", 1, 8, 8, 8)), {"strides": [2, 2]}
    wide = conv(net, x, 8, 8, 3, pads=[0, 0, 1, 1], **more)
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1, **more), wide))


def test_padding_that_is_said_by_a_name_stays() -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    named = conv(net, x, 8, 8, 3, auto_pad="SAME_UPPER")
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1), named))


def test_weights_that_are_no_constants_stay() -> None:
    net = Net()
    x, w = net.op("Relu", net.input("x", 1, 8, 7, 9)), net.input("w", 8, 8, 1, 1)
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1), net.op("Conv", x, w)))


def test_narrow_types_stay() -> None:
    """Their weights would be rounded once more."""
    net = Net(np.float16)
    x = net.op("Relu", net.input("x", 1, 8, 7, 9))
    left_alone(net, net.op("Add", conv(net, x, 8, 8, 1), conv(net, x, 8, 8, 1)))


def test_other_channels_than_the_value_has() -> None:
    net = Net()
    x = net.op("Relu", net.input("x", 1, 1, 7, 9))
    left_alone(net, net.op("Add", conv(net, x, 8, 1, 1), x))


taps = st.builds(
    lambda first, count, apart: Taps(-first, -first + (count - 1) * apart, apart, 0),
    st.integers(0, 4), st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip


def positions(t: Taps) -> set[int]:
    return {*range(t.first, t.last + 1, t.apart)}


@settings(max_examples=200)
@given(taps, taps)
def test_joined_taps_have_the_positions_of_both_and_no_coarser_ones_do(a: Taps, b: Taps) -> None:
    both = a.joined(b)
    wanted = positions(a) | positions(b)
    assert wanted <= positions(both)
    assert (both.first, both.last) == (min(wanted), max(wanted))
    if len(wanted) > 1:
        coarser = 2 * both.apart
        assert any((p - both.first) % coarser for p in wanted)
