"""Quantized layers: bytes in, bytes out, and numbers that every layer has of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from mcfuser.chain import narrow_type, products, whole_range
from mcfuser.expr import Read
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.selection import places
from tests.support.computed_naively import agreed
from tests.support.nets import Net

ROWS, WIDTH = 256, 128
TOLERANCE = 2e-2
"""Of the largest number: a byte may be the next one, where a product was rounded otherwise."""


def quantized(n: Net, x: str, scale: float, zero: int, dtype: type = np.uint8) -> str:
    """x, quantized and dequantized."""
    numbers = n.const(scale), n.const(zero, dtype)
    return n.op("DequantizeLinear", n.op("QuantizeLinear", x, *numbers), *numbers)


def weights(n: Net, columns: int = WIDTH, scale: float = 0.002) -> str:
    whole = n.const(n.random.integers(-100, 101, (WIDTH, columns)), np.int8)
    return n.op("DequantizeLinear", whole, n.const(scale), n.const(0, np.int8))


def layer(n: Net, x: str, scale: float, zero: int) -> str:
    """A product, quantized, and its bias, quantized again."""
    y = quantized(n, n.op("MatMul", x, weights(n)), scale, zero)
    return quantized(n, n.op("Add", y, n.weight(WIDTH)), scale * 1.5, zero + 3)


def drawn(build: Callable[[Net, str], str], folder: Path) -> Partition:
    net = Net()
    model = net.model(build(net, net.input("x", ROWS, WIDTH)))
    return agreed(model, folder, TOLERANCE, lambda c: 9 ** len(products(c)))


def test_equal_layers_are_one_chain_of_bytes_whatever_their_numbers(tmp_path: Path) -> None:
    def build(n: Net, x: str) -> str:
        x = quantized(n, x, 0.02, 126)
        for scale, zero in ((0.0131, 121), (0.0202, 130), (0.017, 117), (0.014, 122)):
            x = layer(n, x, scale, zero)
        return x

    parted = drawn(build, tmp_path)
    groups = places(parted.matches)
    layers = [same for same in groups.values() if "sum[k]" in str(same[0].chain)]
    assert [len(same) for same in layers] == [3, 1]  # the last one's result is an output
    chain = layers[0][0].chain
    assert narrow_type(whole_range(chain, Read("P", ()))) == "int16"
    assert chain.tensor("E").dtype == "uint8"
    inputs = [chain.tensor(n) for n in chain.inputs]
    assert {t.dtype for t in inputs if "m" in t.shape} == {"uint8"}
    assert not any(np.isclose(c, 0.0131) for c in _numbers(str(chain)))


def _numbers(text: str) -> list[float]:
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return [float(w) for w in words if w.replace(".", "", 1).replace("-", "", 1).isdigit()]


def test_factors_that_follow_each_other_are_one_number(tmp_path: Path) -> None:
    def build(n: Net, x: str) -> str:
        x = n.op("Mul", quantized(n, x, 0.02, 126), n.const(0.7))
        return quantized(n, n.op("Div", x, n.const(3.0)), 0.01, 110)

    (match,) = drawn(build, tmp_path).matches
    values = {n: a.item() for n, a in match.constants.items() if a.dtype == np.float32}
    inner = 0.02 * 0.7 / 3.0 / 0.01
    assert sorted(values.values()) == pytest.approx(sorted([1 / 0.02, inner, 0.01]), rel=1e-5)


def test_a_number_divided_by_quantized_ones_is_no_factor(tmp_path: Path) -> None:
    def build(n: Net, x: str) -> str:
        x = n.op("Abs", quantized(n, x, 0.02, 126))
        return quantized(n, n.op("Div", n.const(3.0), n.op("Add", x, n.const(2.0))), 0.01, 3)

    assert len(drawn(build, tmp_path).matches) == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_types_of_quantized_numbers(dtype: type, tmp_path: Path) -> None:
    net = Net(opset=21)
    middle = (np.iinfo(dtype).min + np.iinfo(dtype).max) // 2 + 3
    x = quantized(net, net.input("x", ROWS, WIDTH), 0.0001 if dtype is np.int16 else 0.02, middle,
                  dtype)  # fmt: skip
    parted = agreed(net.model(net.op("MatMul", x, weights(net))), tmp_path, TOLERANCE)
    (chain,) = (m.chain for m in parted.matches if "sum[k]" in str(m.chain))
    kept = np.uint8 if dtype is np.int8 else dtype  # 128 more, which CPUs multiply by int8
    assert {chain.tensor(n).dtype for n in chain.inputs if "m" in chain.tensor(n).shape} == {
        np.dtype(kept).name
    }


def test_numbers_that_wrap_around_are_left_alone(tmp_path: Path) -> None:
    """A sum of bytes, and a cast of what is not clipped: TVM's own kernels compute them."""
    net = Net(opset=21)
    x = net.input("x", 64, WIDTH)
    for whole in (
        net.op("Cast", net.op("Mul", x, net.const(100.0)), to=TensorProto.INT8),
        net.op("Cast", net.op("Clip", x, net.const(-200.0), net.const(5.0)), to=TensorProto.INT8),
    ):
        y = net.op("Cast", whole, to=TensorProto.FLOAT)
        parted = partition(load(net.model(y).SerializeToString(), {}).module, 1e12, 1e11)
        assert not any("int32" in str(m.chain) for m in parted.matches)


def test_two_products_compute_what_they_dequantize_each_for_itself(tmp_path: Path) -> None:
    def build(n: Net, x: str) -> str:
        x = quantized(n, x, 0.02, 126)
        return n.op(
            "Sub", n.op("MatMul", x, weights(n)), n.op("Tanh", n.op("MatMul", x, weights(n)))
        )

    parted = drawn(build, tmp_path)
    products = [m.chain for m in parted.matches if "sum[k]" in str(m.chain)]
    for chain in products:
        assert all(chain.tensor(n).dtype != "float32" or "m" not in chain.tensor(n).shape
                   for n in chain.inputs if n != "A" and "k" in chain.tensor(n).shape)  # fmt: skip


def test_a_right_operand_with_a_zero_point_is_read_as_it_is_stored(tmp_path: Path) -> None:
    def build(n: Net, x: str) -> str:
        a = quantized(n, x, 0.02, 126)
        b = n.op("Transpose", quantized(n, n.op("Tanh", x), 0.01, 120), perm=[1, 0])
        return n.op("MatMul", a, b)

    parted = drawn(build, tmp_path)
    (chain,) = (m.chain for m in parted.matches if "sum[k]" in str(m.chain))
    (right,) = (chain.tensor(n) for n in chain.inputs if set("nk") == set(chain.tensor(n).shape))
    assert right.dtype == "float32"


def test_where_kernels_do_not_multiply_integers_products_read_real_numbers() -> None:
    net = Net()
    x = quantized(net, net.input("x", ROWS, WIDTH), 0.02, 126)
    module = load(net.model(net.op("MatMul", x, weights(net))).SerializeToString(), {}).module
    assert dataflow(module["main"]).widened and not dataflow(module["main"], False).widened
    parted = partition(module, 1e12, 1e11, integers=False)
    (chain,) = (m.chain for m in parted.matches if "sum[k]" in str(m.chain))
    assert chain.tensor("A").dtype == "float32"
