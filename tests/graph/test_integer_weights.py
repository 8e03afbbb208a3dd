"""Integer weights stay integers in the chains that multiply by them, and what else reads them
computes what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from mcfuser.chain import Chain
from mcfuser.graph.dataflow import array, dataflow
from mcfuser.graph.dynamic.buckets import load_buckets
from mcfuser.graph.integer_weights import LEAST
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from tests.support.computed_naively import agreed
from tests.support.dynamic_nets import spans
from tests.support.nets import Net

Build = Callable[[Net, str], str]
DEPTH, COLUMNS, BLOCK = 128, 160, 32
ORT = "com.microsoft"


def octets(n: Net, *shape: int, dtype: type = np.uint8) -> str:
    bounds = np.iinfo(dtype)
    return n.const(n.random.integers(bounds.min, bounds.max + 1, shape), dtype)


def scales(n: Net, *shape: int) -> str:
    return n.const(0.01 + 0.02 * n.random.random(shape))


def few_bits(bits: int, zeros: bool = False) -> Build:
    def build(n: Net, x: str) -> str:
        blocks = DEPTH // BLOCK
        given = [octets(n, COLUMNS, blocks, BLOCK * bits // 8), scales(n, COLUMNS, blocks)]
        given += [octets(n, COLUMNS, -(-blocks * bits // 8))] * zeros
        return n.op("MatMulNBits", x, *given, domain=ORT, K=DEPTH, N=COLUMNS, bits=bits,
                    block_size=BLOCK)  # fmt: skip

    return build


def columns_scaled(n: Net, x: str) -> str:
    w = n.op("DequantizeLinear", octets(n, DEPTH, COLUMNS, dtype=np.int8), scales(n, COLUMNS),
             n.const(n.random.integers(-9, 9, COLUMNS), np.int8), axis=1)  # fmt: skip
    return n.op("MatMul", x, w)


def one_scale(n: Net, x: str) -> str:
    w = n.op("DequantizeLinear", octets(n, COLUMNS, DEPTH), n.const(0.01), n.const(7, np.uint8))
    return n.op("MatMul", x, n.op("Transpose", w, perm=[1, 0]))


def as_it_comes(n: Net, x: str) -> str:
    n.op("DynamicQuantizeLinear", x, outputs=3)
    whole, scale, zero = n.nodes[-1].output
    few = n.random.integers(-60, 60, (DEPTH, COLUMNS))  # of larger ones onnxruntime's sums saturate
    weights = n.const(few, np.int8)
    product = n.op("MatMulInteger", whole, weights, zero, n.const(0, np.int8))
    return n.op("Mul", n.op("Cast", product, to=TensorProto.FLOAT),
                n.op("Mul", scale, n.const(0.02)))  # fmt: skip


KEPT: dict[str, tuple[Build, str, str]] = {
    "two bits": (few_bits(2), "uint8", "sum[k, s, t] A[m, k, s, t] * P[k, s, t, n]"),
    "four bits": (few_bits(4), "uint8", "sum[k, s, t] A[m, k, s, t] * P[k, s, t, n]"),
    "four bits with zero points": (
        few_bits(4, True), "uint8", "sum[k, s, t] A[m, k, s, t] * P[k, s, t, n]"),
    "eight bits": (few_bits(8), "int8", "sum[k, s] A[m, k, s] * P[k, s, n]"),
    "eight bits with zero points": (
        few_bits(8, True), "int16", "sum[k, s] A[m, k, s] * P[k, s, n]"),
    "a scale for each column": (
        columns_scaled, "int16", "sum[k] A[m, k] * float32(F[k, n])"),
    "one scale": (one_scale, "int16", "sum[k] A[m, k] * float32(F[n, k])"),
    "quantized as they come": (as_it_comes, "int8", "sum[k] P[m, k] * float32(F[k, n])"),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("case", KEPT)
def test_weights_are_multiplied_by_as_integers(case: str, rows: int, tmp_path: Path) -> None:
    build, dtype, product = KEPT[case]
    net = Net()
    model = net.model(build(net, net.input("x", rows, DEPTH)))
    (match,) = agreed(model, tmp_path, 1e-4).matches
    assert product in str(match.chain)
    assert _weights(match.chain) == {dtype}
    assert all(a.nbytes < 2 * DEPTH * COLUMNS * 2 for a in match.constants.values())


def _weights(chain: Chain) -> set[str]:
    """The types of constants with a number for each weight, or for several."""
    fixed = [t for t in chain.inputs if chain.tensor(t).constant]
    large = [t for t in fixed if len(chain.tensor(t).shape) > 2]
    large = large or [t for t in fixed if len(chain.tensor(t).shape) == 2]
    return {chain.tensor(t).dtype for t in large} - {"float32"}


def test_two_products_of_one_kernel_have_weights_of_their_own(tmp_path: Path) -> None:
    def gated(n: Net) -> str:
        x = n.input("x", 3, DEPTH)
        one, two = few_bits(4)(n, x), few_bits(4, True)(n, x)
        return n.op("Mul", n.op("Sigmoid", one), two)

    net = Net()
    parted = agreed(net.model(gated(net)), tmp_path, 1e-4)
    assert [len(m.chain.operators) for m in parted.matches] == [5]


def test_half_precision_is_kept(tmp_path: Path) -> None:
    net = Net(np.float16)
    model = net.model(few_bits(4)(net, net.input("x", 2, DEPTH)))
    (match,) = agreed(model, tmp_path, 2e-2).matches
    assert "A[m, k, s, t] * float16(P[k, s, t, n])" in str(match.chain)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("block", [0, 32])
def test_types_of_four_bits_share_bytes(dtype: type, block: int, tmp_path: Path) -> None:
    net = Net(opset=21)
    net.weights.append(
        numpy_helper.from_array(net.random.integers(0, 8, (DEPTH, COLUMNS)).astype(dtype), "w")
    )
    shape = (DEPTH // block, COLUMNS) if block else (COLUMNS,)
    more = {"block_size": block} if block else {}
    w = net.op("DequantizeLinear", "w", scales(net, *shape), axis=0 if block else 1, **more)
    model = net.model(net.op("MatMul", net.input("x", 2, DEPTH), w))
    (match,) = agreed(model, tmp_path, 1e-4).matches
    assert max(a.nbytes for a in match.constants.values()) == DEPTH * COLUMNS // 2


def small(n: Net, x: str) -> str:
    rows = LEAST // DEPTH - 1
    w = n.op("DequantizeLinear", octets(n, DEPTH, rows), n.const(0.01), n.const(7, np.uint8))
    return n.op("MatMul", x, w)


def read_twice(n: Net, x: str) -> str:
    w = n.op("DequantizeLinear", octets(n, DEPTH, DEPTH), n.const(0.01), n.const(7, np.uint8))
    return n.op("Add", n.op("MatMul", x, w), n.op("ReduceMax", w, axes=[0], keepdims=0))


def on_the_left(n: Net, x: str) -> str:
    w = n.op("DequantizeLinear", octets(n, 64, DEPTH), n.const(0.01), n.const(7, np.uint8))
    return n.op("MatMul", w, n.op("Transpose", x, perm=[1, 0]))


def convolved(n: Net, x: str) -> str:
    w = n.op("DequantizeLinear", octets(n, 64, 64, 3, 3, dtype=np.int8), n.const(0.01))
    return n.op("Conv", n.op("Reshape", x, n.ints(1, 64, 8, 16)), w, kernel_shape=[3, 3])


@pytest.mark.parametrize("build", [small, read_twice, on_the_left, convolved])
def test_other_weights_become_floats(build: Build, tmp_path: Path) -> None:
    net = Net()
    model = net.model(build(net, net.input("x", 64, DEPTH)))
    loaded = load(model.SerializeToString(), {})
    assert "constant" not in dataflow(loaded.module["main"]).kinds.values()
    agreed(model, tmp_path, 1e-4)


def test_weights_are_no_inputs_of_the_module() -> None:
    net = Net()
    model = net.model(few_bits(4)(net, net.input("x", 2, DEPTH)))
    loaded = load(model.SerializeToString(), {})
    assert [p.name for p in loaded.inputs] == ["x"]
    main = loaded.module["main"]
    assert len(main.params) == int(main.attrs["num_input"]) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", ["four bits with zero points", "eight bits", "one scale"])
def test_a_device_may_have_real_weights(case: str, dtype: type) -> None:
    """Those that the integers stand for."""
    net = Net(dtype, opset=19)
    model = net.model(KEPT[case][0](net, net.input("x", 2, 3, DEPTH)))
    flow = dataflow(load(model.SerializeToString(), {}, integers=False).module["main"])
    assert "constant" not in flow.kinds.values()
    (weights,) = (array(flow.values[v].args[1]) for v in flow.products)
    assert weights is not None and weights.dtype == dtype
    assert weights.shape == (DEPTH, COLUMNS) and np.unique(weights).size > 15
    if case == "one scale":
        known = [numpy_helper.to_array(w) for w in model.graph.initializer]
        stored = next(a for a in known if a.size == DEPTH * COLUMNS)
        wanted = (stored.astype(np.float32) - 7).T * 0.01
        np.testing.assert_allclose(weights.astype(np.float32), wanted, rtol=2e-3)


@pytest.mark.parametrize("case", KEPT)
@pytest.mark.parametrize("integers", [True, False])
def test_weights_of_a_bucket_are_integers_as_those_of_a_fixed_shape(
    case: str, integers: bool
) -> None:
    """But for what an operator of integers makes of them, which is one where kernels multiply no
    integers, too."""
    build, dtype, product = KEPT[case]
    net = Net()
    model = net.model(build(net, net.input("x", "rows", DEPTH))).SerializeToString()
    loaded = load_buckets(
        model, {"x": (spans(2, 9), DEPTH)}, DEFAULTS, None, 1, lambda one: 1.0, integers=integers
    )
    (bucket,) = loaded.buckets
    parted = partition(bucket.loaded.module, 1e12, 1e11, integers=integers)
    (only,) = parted.products
    assert only.chain is not None
    match = parted.matches[only.chain]
    assert (product in str(match.chain)) == integers
    assert (_weights(match.chain) == {dtype}) == integers
