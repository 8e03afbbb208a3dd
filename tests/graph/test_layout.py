"""Pictures between kernels are stored with their channels last, where all readers can read them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from tvm import ir, relax, tirx

from mcfuser.chain import Chain, ChannelsLast, dense, digits, products
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.dataflow import dataflow, extents
from mcfuser.graph.layout import (
    channels_last,
    from_last,
    layouts,
    moved_from,
    stored_shape,
    stored_strides,
    to_last,
)
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.views import Straddle
from tests.support.computed_naively import both
from tests.support.naive import primfunc
from tests.support.nets import Net


def parted(net: Net, *outputs: str, folder: Path, last: ChannelsLast = "always") -> Partition:
    """The chains of a network whose pictures have their channels last, where they may; asserts that
    it computes what onnxruntime does."""
    model = net.model(*outputs)
    loaded = load(model.SerializeToString(), {})
    found = partition(loaded.module, 1e12, 1e11, last=last)
    near = 1e-5 if net.dtype == np.float32 else 1e-2
    for a, b in both(model, loaded, found.matches, folder):
        np.testing.assert_allclose(a, b, rtol=near, atol=near * max(float(np.abs(b).max()), 1e-30))
    return found


def turned(found: Partition) -> int:
    """How many chains give what they compute with its channels last."""
    return sum(not match.channels_last.isdisjoint(match.outputs) for match in found.matches)


def conv(net: Net, x: str, columns: int, depth: int, kernel: int = 3, **attributes: object) -> str:
    if "pads" not in attributes:
        attributes["pads"] = [kernel // 2 * int(attributes.get("dilations", [1])[0])] * 4
    return net.op("Conv", x, net.weight(columns, depth, kernel, kernel), **attributes)


# --- which are


def test_what_lies_between_convolutions_has_its_channels_last(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 8, 8), 6, 3, strides=[2, 2]))
    x = net.op("Relu", conv(net, x, 6, 1, group=6))
    x = net.op("Add", x, conv(net, x, 6, 6, 1))
    found = parted(net, conv(net, x, 5, 6, 1), folder=tmp_path)
    first = found.matches[0].chain
    (out,) = first.outputs
    assert first.tensor(out).shape == first.operators[-1].axes
    assert first.tensor(out).strides is None, "its axes are in the order of its memory"
    depthwise = next(m.chain for m in found.matches if "Conv_2" in str(m.chain.name))
    (left,) = (t for t in depthwise.tensors if t.padding)
    assert left.strides[-1] == 1 and left.shape[-1] in depthwise.operators[0].axes
    last = found.matches[-1]
    assert not last.channels_last & last.outputs.keys(), "an output of the model lies as it must"
    assert turned(found) == len(found.matches) - 1


@pytest.mark.parametrize("size", [6, 7, 8, 9, 10])
@pytest.mark.parametrize("stride", [2, 3])
def test_every_other_position_is_read_of_any_number(size: int, stride: int, tmp_path: Path) -> None:
    """As in the shortcuts of residual networks."""
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, size, size), 4, 3))
    net_out = net.op("Relu", conv(net, x, 6, 4, 1, strides=[stride, stride]))
    assert len(parted(net, net_out, folder=tmp_path).matches) == 2


@pytest.mark.parametrize("reader", ["", "Concat", "Rows", "Resize", "Flatten", "output", "Pad"])
def test_what_others_read_lies_as_it_is_written(reader: str, tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 12, 12), 4, 3, strides=[2, 2]))
    after, again = conv(net, x, 4, 4, 1), net.op("Neg", conv(net, x, 4, 4, 1))
    others = {
        "Concat": lambda: net.op("Concat", x, net.const(np.ones((1, 2, 6, 6))), axis=1),
        "Rows": lambda: net.op("Concat", x, x, axis=2),
        "Resize": lambda: net.op("Resize", x, "", net.const([1, 1, 2, 2], np.float32),
                                 mode="linear"),
        "Flatten": lambda: net.op("MatMul", net.op("Flatten", x), net.weight(144, 5)),
        "output": lambda: x,
        "Pad": lambda: net.op("Pad", x, net.ints(0, 0, 1, 1, 0, 0, 1, 1)),
    }  # fmt: skip
    found = parted(net, after, again, *([others[reader]()] if reader else []), folder=tmp_path)
    assert turned(found) == (not reader)


def test_dense_convolutions_may_have_them_alone(tmp_path: Path) -> None:
    """As GPUs do: no depthwise convolution, and no norm over positions unless that costs less."""

    def stored(kind: type[np.generic], middle: str) -> int:
        net = Net(kind)
        x = net.op("Relu", conv(net, net.input("x", 1, 3, 8, 8), 6, 3))
        if middle == "depthwise":
            x = net.op("Relu", conv(net, x, 6, 1, group=6))
        elif middle == "norm":
            x = net.op("InstanceNormalization", x, net.weight(6), net.weight(6))
        elif middle == "pool":
            x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = net.op("Relu", conv(net, x, 5, 6))
        return turned(parted(net, conv(net, x, 4, 5), folder=tmp_path, last="dense"))

    for kind in (np.float32, np.float16):
        assert [stored(kind, m) for m in ("", "pool", "depthwise", "norm")] == [2, 2, 1, 1]


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_what_a_norm_reduces_lies_as_its_chains_cost_least(groups: int, tmp_path: Path) -> None:
    net = Net(opset=21)
    x = conv(net, net.input("x", 2, 3, 8, 8), 8, 3)
    x = net.op("GroupNormalization", x, net.weight(8), net.weight(8), num_groups=groups)
    model = net.model(conv(net, net.op("Relu", x), 4, 8))
    loaded = load(model.SerializeToString(), {})
    asked = list[str]()

    def price(chain: Chain) -> float:
        asked.append(chain.key)
        return 1.0 if chain.key in by_lines else cost

    by_lines, cost = set[str](), 1.0
    lines = partition(loaded.module, 1e12, 1e11, price, last="dense")
    by_lines = {m.chain.key for m in lines.matches}
    found = dict[float, Partition]()
    for cost in (0.5, 1.1, 2.0):
        asked.clear()
        found[cost] = partition(loaded.module, 1e12, 1e11, price, last="dense")
        assert len(asked) == len(set(asked)), "a chain is priced once for both"
        assert (len(by_lines.intersection(asked)) < len(by_lines)) == (cost != 1.1), "it is clear"
    assert turned(found[2.0]) == turned(found[1.1]) == turned(lines) < turned(found[0.5])
    for a, b in both(model, loaded, found[0.5].matches, tmp_path):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(b).max()))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("shuffle", ["transposed", "transposed, overlapping", "depth to space"])
def test_what_a_shuffle_of_channels_makes_of_a_picture_has_channels(
    shuffle: str, batch: int, tmp_path: Path
) -> None:
    """As in a U-Net's decoder, where it is put beside a picture of the encoder."""
    net = Net()
    beside = net.op("Relu", conv(net, net.input("x", batch, 3, 8, 8), 6, 3))
    x = net.op("Relu", conv(net, beside, 8, 6, strides=[2, 2]))
    if shuffle == "depth to space":
        x = net.op("DepthToSpace", conv(net, x, 16, 8), blocksize=2)
    else:
        kernel, pads = (2, [0] * 4) if shuffle == "transposed" else (4, [1] * 4)
        weights = net.weight(8, 4, kernel, kernel), net.weight(4)
        x = net.op("ConvTranspose", x, *weights, strides=[2, 2], pads=pads)
    x = net.op("Concat", net.op("Relu", x), beside, axis=1)
    found = parted(net, conv(net, net.op("Relu", conv(net, x, 8, 10)), 4, 8), folder=tmp_path)
    assert turned(found) == len(found.matches) - 1, "all but the output"


@pytest.mark.parametrize("last", ["always", "dense"])
def test_positions_are_no_channels_where_a_picture_is_turned_round(
    last: ChannelsLast, tmp_path: Path
) -> None:
    """As for the attention blocks of a diffusion model: each position's channels lie side by side
    in the picture before, in the one after, and in all between them."""
    net, n, channels, side = Net(), 2, 16, 12
    x = net.op("Relu", conv(net, net.input("x", n, 3, side, side), channels, 3))
    rows = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 3, 1]), net.ints(n, -1, channels))
    normal = net.op("LayerNormalization", rows, net.weight(channels), net.weight(channels))
    rows = net.op("Add", net.op("MatMul", normal, net.weight(channels, channels)), rows)
    normal = net.op("LayerNormalization", rows, net.weight(channels), net.weight(channels))
    rows = net.op("Add", net.op("MatMul", normal, net.weight(channels, channels)), rows)
    back = net.op("Reshape", rows, net.ints(n, side, side, channels))
    y = net.op("Add", net.op("Transpose", back, perm=[0, 3, 1, 2]), x)
    found = parted(net, conv(net, conv(net, y, 8, channels), 4, 8), folder=tmp_path, last=last)
    deep = [m.chain for m in found.matches if m.chain.size(m.chain.operators[0].axes[-1]) != 3]
    for chain in deep:
        for t in (*chain.inputs, *chain.outputs):
            tensor = chain.tensor(t)
            along = [chain.size(d) if isinstance(d, str) else d for d in tensor.shape]
            if channels in along and side * side in along:
                assert tensor.strides is None and along[-1] == channels, (str(chain), tensor)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("last", ["always", "dense"])
def test_rows_are_written_as_they_lie_for_the_convolution_that_reads_a_picture_of_them(
    last: ChannelsLast, flat: bool, kernel: int, tmp_path: Path
) -> None:
    """However they are turned into a picture, and with an activation between."""
    net, n, channels, side = Net(), 2, 16, 12
    x = net.input("x", n, side * side, 8)
    rows = net.op("MatMul", x, net.weight(8, channels))
    if flat:
        y = net.op("Transpose", rows, perm=[0, 2, 1])
        y = net.op("Reshape", y, net.ints(n, channels, side, side))
    else:
        y = net.op("Reshape", rows, net.ints(n, side, side, channels))
        y = net.op("Transpose", y, perm=[0, 3, 1, 2])
    y = net.op("Clip", y, net.const(0.0), net.const(6.0))
    found = parted(net, conv(net, conv(net, y, 10, channels, kernel), 4, 10),
                   folder=tmp_path, last=last)  # fmt: skip
    first = found.matches[0].chain
    (out,) = first.outputs
    columns = 10 if kernel == 1 else channels  # the products of both are one chain then
    assert first.tensor(out).strides is None and first.shape(out)[-1] == columns


@pytest.mark.parametrize("group", [1, 24])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("last", ["always", "dense"])
def test_what_is_computed_of_a_picture_for_rows_has_their_order(
    last: ChannelsLast, kernel: int, group: int, tmp_path: Path
) -> None:
    """A convolution, and what becomes of it, position by position."""
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 4, 12, 12), 24, 4))
    y = net.op("Relu", conv(net, x, 24, 24 // group, kernel, group=group))
    rows = net.op("Transpose", net.op("Reshape", y, net.ints(1, 24, 144)), perm=[0, 2, 1])
    found = parted(net, rows, folder=tmp_path, last=last)
    numbers = {p.chain for p in found.products if p.chain is not None}
    chain = found.matches[max(numbers)].chain
    if group == 1 or last == "always":
        assert len({o.axes[:-1] for o in chain.operators}) == 1
        assert chain.size(chain.operators[-1].axes[-1]) == 24
        assert chain.tensor(chain.outputs[0]).strides is None


def test_rows_that_others_read_turned_round_lie_by_lines(tmp_path: Path) -> None:
    net = Net()
    rows = net.op("MatMul", net.input("x", 2, 144, 8), net.weight(8, 16))
    y = net.op("Reshape", net.op("Transpose", rows, perm=[0, 2, 1]), net.ints(2, 16, 12, 12))
    z = net.op("Concat", net.op("Relu", y), net.input("z", 2, 16, 12, 12), axis=0)
    parted(net, conv(net, y, 4, 16), conv(net, z, 4, 16), folder=tmp_path)


@pytest.mark.parametrize("given", [(24,), (4, 6), (1, 24), (2, 3, 4), ()])
@pytest.mark.parametrize("last", get_args(ChannelsLast))
def test_what_becomes_a_picture_may_have_any_dimensions(
    given: tuple[int, ...], last: ChannelsLast, tmp_path: Path
) -> None:
    net = Net()
    x = net.op("Relu", net.input("x", *given))
    x = net.op("Expand", x, net.ints(24)) if not given else x
    y = net.op("Reshape", x, net.ints(1, 4, 2, 3))
    z = net.op("Reshape", net.op("Relu", y), net.ints(1, 2, 2, 2, 3))
    parted(net, conv(net, y, 4, 4), net.op("Neg", z), folder=tmp_path, last=last)


@pytest.mark.parametrize("last", get_args(ChannelsLast))
def test_what_has_unknown_extents_has_no_channels(last: ChannelsLast) -> None:
    net = Net()
    found = net.op("Cast", net.op("NonZero", net.input("x", 4, 6)), to=TensorProto.FLOAT)
    y = net.op("Reshape", net.op("Reshape", found, net.ints(1, 2, -1, 1)), net.ints(2, -1, 1))
    z = conv(net, conv(net, net.input("z", 1, 4, 8, 8), 4, 4), 4, 4)
    flow = dataflow(load(net.model(y, z).SerializeToString(), {}).module["main"])
    assert any(extents(v) is None for v in flow.order)
    assert [len(each) for each in layouts(flow, last)] == [0 if last == "never" else 1]


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_a_gpu_interpolates_between_channels_that_lie_side_by_side(
    mode: str, tmp_path: Path
) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 4, 5), 6, 3))
    sizes = net.const([1, 1, 2, 2], np.float32)
    x = net.op("Relu", net.op("Resize", x, "", sizes, mode=mode, nearest_mode="floor"))
    y = conv(net, x, 4, 6)
    cases: dict[ChannelsLast, bool] = {"dense": True, "always": mode == "nearest"}
    for last, reads in cases.items():
        *_, reader = parted(net, y, folder=tmp_path, last=last).matches
        assert bool(reader.channels_last & reader.arguments.keys()) == reads


def test_products_of_a_transformer_are_left_alone(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 2, 8, 12)
    y = net.op("MatMul", net.weight(6, 8), x)
    found = parted(net, net.op("MatMul", net.op("Relu", y), net.weight(12, 4)), folder=tmp_path)
    assert not any(match.channels_last for match in found.matches)


def test_a_norm_over_channels_reads_them_where_they_are(tmp_path: Path) -> None:
    net = Net()
    x = conv(net, net.input("x", 1, 8, 6, 6), 8, 8)
    rows = net.op("Transpose", x, perm=[0, 2, 3, 1])
    normed = net.op("LayerNormalization", rows, net.weight(8), net.weight(8))
    wide = net.op("MatMul", normed, net.weight(8, 6))
    back = net.op("Transpose", net.op("Relu", wide), perm=[0, 3, 1, 2])
    found = parted(net, conv(net, back, 5, 6), folder=tmp_path)
    assert turned(found) == 2, "what is normed, and the rows that become a picture"
    norm = next(m for m in found.matches if m.channels_last & m.arguments.keys())
    assert norm.chain.tensor(norm.chain.inputs[0]).strides is None


def test_what_no_chain_computes_is_turned_for_those_that_read_it(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 8, 8), 4, 3, strides=[2, 2]))
    model = net.model(*(net.op(kind, conv(net, x, 4, 4, 1)) for kind in ("Relu", "Neg")))
    loaded = load(model.SerializeToString(), {})
    found = partition(loaded.module, 1e12, 1e11, last="always")
    assert len(found.matches) == 3 and turned(found) == 1
    for kept in ([found.matches[0]], found.matches[1:]):
        for a, b in both(model, loaded, kept, tmp_path):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_rows_that_are_read_as_a_picture_are_not_turned_twice(tmp_path: Path) -> None:
    """Gated rows before a short causal convolution, as in LFM2: no chain takes their view in, and
    what is stored of it with its channels last are the rows."""
    net = Net()
    rows = net.op("MatMul", net.input("x", 1, 12, 4), net.weight(4, 24))
    gates = [net.op("Slice", rows, net.ints(a), net.ints(a + 8), net.ints(2)) for a in (0, 8, 16)]
    y = net.op("Transpose", net.op("Mul", gates[0], gates[2]), perm=[0, 2, 1])
    y = net.op("Conv", y, net.weight(8, 1, 3), group=8, pads=[2, 0])
    y = net.op("Mul", net.op("Transpose", gates[1], perm=[0, 2, 1]), y)
    out = net.op("MatMul", net.op("Transpose", y, perm=[0, 2, 1]), net.weight(8, 4))
    parted(net, out, folder=tmp_path)
    loaded = load(net.model(out).SerializeToString(), {})
    found = partition(loaded.module, 1e12, 1e11, last="always")
    assert any(m.channels_last & m.arguments.keys() for m in found.matches)
    kernels = [
        Replacement(m, (Installed(f"c{i}", m.chain, primfunc(m.chain, m.shapes, m.starts)),))
        for i, m in enumerate(found.matches)
    ]
    main = install(loaded.module, kernels)["main"]
    operators = [b.value.op for block in main.body.blocks for b in block.bindings]
    assert ir.Op.get("relax.permute_dims") not in operators


def test_sums_run_over_windows_and_then_over_channels_as_the_data_lie(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2]))
    found = parted(net, net.op("Relu", conv(net, x, 6, 8, 5)), folder=tmp_path)
    chain = found.matches[-1].chain
    (o,) = products(chain)
    data = next(t for t in chain.tensors if t.padding)
    strides = {a: digits(s, 1)[0].stride for a, s in zip(data.shape, data.strides, strict=True)}
    assert [strides[a] for a in o.over] == [8 * 8, 8, 1]
    weights = next(t for t in chain.tensors if t.constant and len(t.shape) > 1)
    assert weights.shape == (*o.over, o.axes[-1])


@pytest.mark.parametrize("output", [False, True])
def test_positions_are_the_rows_of_what_reads_channels_last_or_writes_them_so(
    output: bool, tmp_path: Path
) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 24, 24), 8, 3, strides=[2, 2]))
    y = net.op("Relu", conv(net, x, 10, 8, 1))
    many = [net.op("Relu", conv(net, y, 4, 10)) for _ in range(2)] + [y] * output
    found = parted(net, *many, net.op("Neg", conv(net, x, 8, 1, group=8)), folder=tmp_path)
    chain = next(m.chain for m in found.matches if "Conv_2" in m.chain.name)
    first, last = chain.operators
    assert chain.shape(first.out) == (144, 10)
    assert last.axes == (first.axes[::-1] if output else first.axes)
    assert chain.tensor(last.out).strides is None, "the result is written as it is stored"


def test_what_is_pooled_has_its_channels_last(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 36, 36), 4, 3, strides=[2, 2]))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    assert turned(parted(net, conv(net, x, 4, 4), folder=tmp_path)) == 2


def test_a_constant_beside_channels_last_is_laid_out_as_they_are(tmp_path: Path) -> None:
    """A detector's positions, which are added to what its attention compares, have their channels
    first."""
    net, place = Net(), np.random.default_rng(0).standard_normal((1, 32, 256)).astype("f4")
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 32, 32), 32, 3, strides=[2, 2]))
    rows = net.op("Reshape", x, net.ints(1, 32, 256))
    values = [net.op("Transpose", v, perm=[0, 2, 1])
              for v in (net.op("Add", rows, net.const(place)), rows)]  # fmt: skip
    outputs = [net.op("MatMul", values[i], net.weight(32, 32)) for i in (0, 0, 1)]
    found = parted(net, *outputs, folder=tmp_path)
    (added,) = (m for m in found.matches if next(iter(m.constants.values())).ndim == 1)
    assert np.array_equal(next(iter(added.constants.values())), place[0].T.reshape(-1))


# --- what moves elements


def moved(net: Net, kind: str, x: str, y: str) -> str:
    """Elements of two values of four and six channels, moved."""
    halves = [net.op("Slice", y, *(net.ints(n) for n in (i, i + 3, 1))) for i in (0, 3)]
    ways = {
        "joined": lambda: net.op("Concat", x, y, axis=1),
        "of parts": lambda: net.op("Concat", *halves, x, axis=1),
        "twice": lambda: net.op("Concat", net.op("Concat", x, y, axis=1), x, axis=1),
        "a slice": lambda: net.op("Slice", y, net.ints(1), net.ints(5), net.ints(1)),
        "a crop": lambda: net.op("Slice", y, net.ints(0, 1, 1), net.ints(6, 7, 5),
                                 net.ints(1, 2, 3)),
        "enlarged": lambda: net.op("Resize", y, "", net.const([1, 1, 2, 2], np.float32),
                                   coordinate_transformation_mode="asymmetric",
                                   mode="nearest", nearest_mode="floor"),
    }  # fmt: skip
    return ways[kind]()


@pytest.mark.parametrize("kind", ["joined", "of parts", "twice", "a slice", "a crop", "enlarged"])
def test_what_is_moved_is_moved_as_it_is_stored(kind: str, tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 16, 16), 4, 3, strides=[2, 2]))
    y = net.op("Relu", conv(net, x, 6, 4))
    z = moved(net, kind, x, y)
    readers = [net.op(name, conv(net, z, 5, {"joined": 10, "of parts": 10, "twice": 14,
                                             "a slice": 4, "a crop": 6, "enlarged": 6}[kind], 1))
               for name in ("Relu", "Neg")]  # fmt: skip
    model = net.model(*readers)
    loaded = load(model.SerializeToString(), {})
    found = partition(loaded.module, 1e12, 1e11, last="always")
    assert turned(found) == 2
    for a, b in both(model, loaded, found.matches, tmp_path):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_is_known_only_at_run_time_is_not_moved() -> None:
    length = tirx.Var("n", "int64")
    some, fixed = (relax.Var("x", relax.TensorType((1, 4, n), "float32")) for n in (length, 6))
    builder = relax.BlockBuilder()
    for x, expected in (some, ()), (fixed, (fixed, fixed)):
        joined = builder.normalize(relax.op.concat([x, x], axis=1))
        assert moved_from(joined) == expected
    assert moved_from(builder.normalize(relax.op.concat([fixed, fixed], axis=2))) == ()


@pytest.mark.parametrize("group", [1, 3])
def test_depthwise_convolutions_of_lines_compute_lines(group: int, tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 9, 9), 6, 3 // group, group=group))
    found = parted(net, conv(net, x, 5, 6), folder=tmp_path)
    assert (turned(found) == 0) == (group == 3)


def test_where_a_part_lies_by_lines_the_whole_does(tmp_path: Path) -> None:
    """Nothing is turned: what is read by others, too, is read as it is written."""
    net = Net()
    x = net.op("Relu", conv(net, net.input("x", 1, 3, 16, 16), 4, 3, strides=[2, 2]))
    y = net.op("Relu", conv(net, x, 6, 4, 1))
    whole = net.op("Concat", x, y, axis=1)
    outputs = net.op("Relu", conv(net, whole, 5, 10, 1)), y
    assert turned(parted(net, *outputs, folder=tmp_path)) == 0


# --- any network


def _layer(net: Net, rng: random.Random, x: str, shape: list[int]) -> str:
    """One more layer on a picture [n, channels, height, width], whose shape changes with it."""
    _, channels, height, width = shape
    kind = rng.choice(
        ("dense", "depthwise", "groups", "point", "pool", "mean", "residual", "map", "norm",
         "rows", "concat", "gate", "branch", "split", "enlarge")
    )  # fmt: skip
    least = min(height, width)
    if kind in ("dense", "groups"):
        groups = rng.choice([g for g in (1, 2, 4) if channels % g == 0])
        shape[1] = columns = groups * rng.choice((1, 2, 3, 8))
        step, apart = rng.choice((1, 1, 2)), rng.choice((1, 2))
        found = conv(net, x, columns, channels // groups, 3, group=groups,
                     strides=[step, step], dilations=[apart, apart])  # fmt: skip
        shape[2:] = [(e - 1) // step + 1 for e in (height, width)]
        return found
    if kind == "depthwise":
        many = rng.choice((1, 1, 2))
        shape[1] = channels * many
        return conv(net, x, channels * many, 1, rng.choice((3, 5)), group=channels)
    if kind == "point":
        shape[1] = rng.choice((2, 5, 16))
        return net.op("Relu", conv(net, x, shape[1], channels, 1))
    if kind in ("pool", "mean") and least > 3:
        shape[2:] = [(e - 1) // 2 + 1 for e in (height, width)]
        name = "MaxPool" if kind == "pool" else "AveragePool"
        return net.op(name, x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    if kind == "residual":
        return net.op("Add", x, conv(net, x, channels, channels, rng.choice((1, 3))))
    if kind == "rows":
        rows = net.op("Reshape", x, net.ints(shape[0], channels, -1))
        rows = net.op("Transpose", rows, perm=[0, 2, 1])
        shape[1] = rng.choice((4, 5, 16))
        rows = net.op("MatMul", rows, net.weight(channels, shape[1]))
        return net.op("Reshape", net.op("Transpose", rows, perm=[0, 2, 1]), net.ints(*shape))
    if kind == "norm":
        rows = net.op("Transpose", x, perm=[0, 2, 3, 1])
        rows = net.op("LayerNormalization", rows, net.weight(channels), net.weight(channels))
        return net.op("Transpose", rows, perm=[0, 3, 1, 2])
    if kind == "concat":
        shape[1] = channels * 2
        return net.op("Concat", x, net.op("Neg", x), axis=1)
    if kind == "branch":
        columns = rng.choice((1, 3, 8))
        shape[1] = channels + columns
        return net.op("Concat", x, conv(net, x, columns, channels, rng.choice((1, 3))), axis=1)
    if kind == "enlarge" and max(height, width) < 10:
        shape[2:] = 2 * height, 3 * width
        return net.op("Resize", x, "", net.const([1, 1, 2, 3], np.float32), mode="nearest")
    if kind == "split" and channels > 1:
        first = rng.randrange(1, channels)
        parts = [net.op("Slice", x, net.ints(a), net.ints(b), net.ints(1))
                 for a, b in ((0, first), (first, channels))]  # fmt: skip
        mixed = conv(net, parts[1], channels - first, channels - first, 3)
        return net.op("Concat", *rng.sample([parts[0], mixed], 2), axis=1)
    if kind == "gate":
        mean = net.op("GlobalAveragePool", x)
        return net.op("Mul", x, net.op("Sigmoid", conv(net, mean, channels, channels, 1)))
    return net.op("Clip", x, net.const(-1.0), net.const(1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(32))
def test_any_network_computes_what_it_does_however_it_is_stored(seed: int, tmp_path: Path) -> None:
    rng, net = random.Random(seed), Net()
    shape = [rng.choice((1, 1, 2)), rng.choice((3, 4, 8)), rng.choice((7, 9, 12)), 8]
    x = net.input("x", *shape)
    for _ in range(rng.choice((4, 6, 8))):
        x = _layer(net, rng, x, shape)
    if rng.random() < 0.5:
        x = net.op("Flatten", net.op("GlobalAveragePool", x))
    parted(net, x, folder=tmp_path)


# --- addresses


@given(st.lists(st.integers(1, 5), min_size=3, max_size=5))
def test_strides_are_those_of_the_transposed_array(extents: list[int]) -> None:
    rank, units = len(extents), dense(extents)
    array = np.arange(math.prod(extents)).reshape(extents)
    stored = array.transpose(to_last(rank))
    assert stored.shape == stored_shape(tuple(extents))
    assert (stored.transpose(from_last(rank)) == array).all()
    layout = {d: units[d] for d in range(rank) if extents[d] > 1}
    found = stored_strides(layout, dict(enumerate(extents)), tuple(extents))
    flat = np.ascontiguousarray(stored).reshape(-1)
    for at in np.ndindex(*extents):
        assert flat[sum(at[d] * stride for d, stride in found.items())] == array[at]


def test_an_axis_along_channels_and_positions_must_be_cut() -> None:
    with pytest.raises(Straddle) as cut:
        stored_strides({0: 1}, {0: 24}, (1, 4, 2, 3))
    assert cut.value.inner == 6


def test_there_are_none_without_convolutions() -> None:
    net = Net()
    x = net.input("x", 1, 4, 6, 6)
    model = net.model(net.op("MaxPool", net.op("Relu", x), kernel_shape=[2, 2]))
    flow = dataflow(load(model.SerializeToString(), {}).module["main"])
    assert channels_last(flow) == frozenset()
