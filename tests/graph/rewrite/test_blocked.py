"""Blocks of integers with scales and zero points stand for the numbers that ONNX says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.rewrite.blocked import of_constants
from tests.support.one_node import agree, expected, one_node, run

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize(
    ("axis", "block", "shape"),
    [(0, 0, ()), (0, 0, (8,)), (1, 0, (6,)), (-1, 0, (6,)), (0, 4, (2, 6)), (1, 2, (8, 3))],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_constants_are_dequantized(
    dtype: type, axis: int, block: int, shape: tuple[int, ...], zeros: bool
) -> None:
    weights = {
        "w": RANDOM.integers(0, 8, (8, 6)).astype(dtype),
        "scale": (0.1 + RANDOM.random(shape)).astype(np.float32),
    }
    if zeros:
        weights["zero"] = RANDOM.integers(0, 7, shape).astype(dtype)
    given = {"x": np.zeros((8, 6), np.float32)}
    more = {"block_size": block} if block else {}
    model = one_node("DequantizeLinear", [*weights], 1, given, weights, opset=21, axis=axis, **more)
    agree(model, given)


def test_a_single_number_is_dequantized() -> None:
    weights = {"w": np.asarray(9, np.uint8), "scale": np.float32(0.5), "zero": np.uint8(3)}
    given = {"x": np.zeros((), np.float32)}
    agree(one_node("DequantizeLinear", [*weights], 1, given, weights, opset=21), given)


@pytest.mark.parametrize(
    ("shape", "axis", "shared"), [((8, 6), 1, (1, 8)), ((6, 8), 0, (1, 8)), ((7, 6), 0, (1, 6))]
)
def test_bytes_are_shared_along_another_axis_than_the_scales(
    shape: tuple[int, int], axis: int, shared: tuple[int, int]
) -> None:
    numbers = RANDOM.integers(-8, 8, shape).astype(ml_dtypes.int4)
    scales = np.ones(shape[axis], np.float32)
    made = of_constants(numbers, scales, None, axis, 0)
    assert made.axis != axis
    assert made.numbers.shape[made.axis : made.axis + 2] == shared
    assert made.numbers.min() >= 0 and (made.zeros == 8).all()


def test_an_odd_axis_shares_no_bytes() -> None:
    weights = {
        "w": RANDOM.integers(-8, 8, (5, 3)).astype(ml_dtypes.int4),
        "scale": RANDOM.random(3).astype(np.float32),
    }
    given = {"x": np.zeros((5, 3), np.float32)}
    model = one_node("DequantizeLinear", [*weights], 1, given, weights, opset=21, axis=1)
    assert "BitShift" not in [n.op_type for n in agree(model, given).graph.node]


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_become_floats_where_they_are_asked_to(bits: int) -> None:
    weights = {
        "w": RANDOM.integers(0, 256, (5, 2, 32 * bits // 8)).astype(np.uint8),
        "scales": (0.1 + RANDOM.random((5, 2))).astype(np.float32),
    }
    given = {"x": RANDOM.standard_normal((3, 64)).astype(np.float32)}
    model = one_node(
        "MatMulNBits", ["x", *weights], 1, given, weights, "com.microsoft",
        K=64, N=5, bits=bits, block_size=32,
    )  # fmt: skip
    (wanted,) = expected(model, given)
    assert rewrite(model, integers=False)
    assert [n.op_type for n in model.graph.node] == ["MatMul", "Identity"]
    (found,) = run(model, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
